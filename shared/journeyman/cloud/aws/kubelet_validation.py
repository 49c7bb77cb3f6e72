"""Validate `spec.kubelet` against the kubelet's configuration and the settings that the AMI family passes on.

`spec.kubelet` is an open object, so the API server does not validate it. Without this module, a mistake would show only
when a node does not join.

Restates: karpenter-provider-aws pkg/apis/v1/kubeletconfiguration_validation.go, pkg/controllers/nodeclass/validation.go.

The field names are those of k8s.io/kubelet config/v1beta1 `KubeletConfiguration` (Kubernetes 1.36).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, Final

from journeyman.cloud.aws.ami_families import AL2023, BOTTLEROCKET, CUSTOM
from journeyman.cloud.aws.nodeclass_view import NodeClassView
from journeyman.core.api import quantity
from journeyman.errors import InvalidQuantityError

_STRING: Final = (
    "address apiVersion cgroupDriver cgroupRoot clusterDomain configMapAndSecretChangeDetectionStrategy "
    "containerLogMaxSize containerLogMonitorInterval containerRuntimeEndpoint contentType cpuCFSQuotaPeriod "
    "cpuManagerPolicy cpuManagerReconcilePeriod draManagerReconcilePeriod evictionPressureTransitionPeriod "
    "fileCheckFrequency hairpinMode healthzBindAddress httpCheckFrequency imageMaximumGCAge imageMinimumGCAge "
    "imagePullCredentialsVerificationPolicy imageServiceEndpoint kind kubeReservedCgroup kubeletCgroups "
    "memoryManagerPolicy memoryReservationPolicy nodeStatusReportFrequency nodeStatusUpdateFrequency podCIDR podLogsDir "
    "providerID reservedSystemCPUs resolvConf runtimeRequestTimeout showHiddenMetricsForVersion shutdownGracePeriod "
    "shutdownGracePeriodCriticalPods staticPodPath staticPodURL streamingConnectionIdleTimeout syncFrequency "
    "systemCgroups systemReservedCgroup tlsCertFile tlsMinVersion tlsPrivateKeyFile topologyManagerPolicy "
    "topologyManagerScope volumePluginDir volumeStatsAggPeriod"
)
_INTEGER: Final = (
    "containerLogMaxFiles containerLogMaxWorkers eventBurst eventRecordQPS evictionMaxPodGracePeriod healthzPort "
    "imageGCHighThresholdPercent imageGCLowThresholdPercent iptablesDropBit iptablesMasqueradeBit kubeAPIBurst kubeAPIQPS "
    "maxOpenFiles maxParallelImagePulls maxPods nodeLeaseDurationSeconds nodeStatusMaxImages oomScoreAdj podPidsLimit "
    "podsPerCore port readOnlyPort registryBurst registryPullQPS"
)
_BOOLEAN: Final = (
    "cgroupsPerQOS cpuCFSQuota enableContentionProfiling enableControllerAttachDetach enableDebugFlagsHandler "
    "enableDebuggingHandlers enableProfilingHandler enableServer enableSystemLogHandler enableSystemLogQuery failCgroupV1 "
    "failSwapOn kernelMemcgNotification localStorageCapacityIsolation makeIPTablesUtilChains mergeDefaultEvictionSettings "
    "protectKernelDefaults registerNode rotateCertificates runOnce seccompDefault serializeImagePulls serverTLSBootstrap "
    "singleProcessOOMKill"
)
_LIST: Final = (
    "allowedUnsafeSysctls clusterDNS enforceNodeAllocatable preloadedImagesVerificationAllowlist registerWithTaints "
    "reservedMemory shutdownGracePeriodByPodPriority tlsCipherSuites tlsCurvePreferences"
)
_STRING_MAP: Final = (
    "cpuManagerPolicyOptions evictionHard evictionMinimumReclaim evictionSoft evictionSoftGracePeriod kubeReserved "
    "qosReserved systemReserved topologyManagerPolicyOptions"
)
_OBJECT: Final = (
    "authentication authorization crashLoopBackOff featureGates logging memorySwap staticPodURLHeader tracing "
    "userNamespaces"
)
_FIELDS: Final[Mapping[str, str]] = {
    name: kind
    for kind, names in (
        ("a text", _STRING),
        ("a whole number", _INTEGER),
        ("true or false", _BOOLEAN),
        ("a number", "memoryThrottlingFactor"),
        ("a list", _LIST),
        ("an object with string values", _STRING_MAP),
        ("an object", _OBJECT),
    )
    for name in names.split()
}
# the settings that flag-based families write into user data
_RENDERED: Final = frozenset(
    {
        "clusterDNS",
        "cpuCFSQuota",
        "evictionHard",
        "evictionMaxPodGracePeriod",
        "evictionSoft",
        "evictionSoftGracePeriod",
        "imageGCHighThresholdPercent",
        "imageGCLowThresholdPercent",
        "kubeReserved",
        "maxPods",
        "podsPerCore",
        "systemReserved",
    }
)
_SIGNALS: Final = frozenset(
    {
        "memory.available",
        "nodefs.available",
        "nodefs.inodesFree",
        "imagefs.available",
        "imagefs.inodesFree",
        "pid.available",
    }
)
_RESERVABLE: Final = frozenset({"cpu", "memory", "ephemeral-storage", "pid"})
_DURATION: Final = re.compile(r"0|([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+", re.ASCII)

INVALID: Final = "InvalidKubeletConfiguration"
UNSUPPORTED: Final = "UnsupportedKubeletConfiguration"
EXPRESSIONS_DISABLED: Final = "KubeletExpressionsDisabled"


def kubelet_problems(node_class: NodeClassView) -> tuple[str, str] | None:
    """Return the reason and message of a condition for the mistakes in `spec.kubelet`; None if it has none."""
    kubelet = node_class.spec.kubelet
    for reason, problems in (
        (INVALID, _malformed_fields(kubelet)),
        (INVALID, _invalid_values(kubelet)),
        (EXPRESSIONS_DISABLED, _expressions(kubelet)),
        (UNSUPPORTED, _unsupported(node_class)),
    ):
        if found := list(problems):
            return reason, "; ".join(found)
    return None


def _malformed_fields(kubelet: Mapping[str, Any]) -> Iterator[str]:
    for field in sorted(kubelet):
        kind = _FIELDS.get(field)
        if kind is None:
            yield f"spec.kubelet.{field}: the kubelet has no such setting"
        elif field == "maxPods" and isinstance(kubelet[field], str):
            continue  # an expression, which `_expressions` reports
        elif not _has_type(kind, kubelet[field]):
            yield f"spec.kubelet.{field}: must be {kind}"


def _has_type(kind: str, value: Any) -> bool:
    if kind == "a whole number":
        return isinstance(value, int) and not isinstance(value, bool)
    if kind == "a number":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind == "an object with string values":
        return isinstance(value, Mapping) and all(isinstance(item, str) for item in value.values())
    types: Mapping[str, type | tuple[type, ...]] = {
        "a text": str,
        "true or false": bool,
        "a list": (list, tuple),
        "an object": Mapping,
    }
    return isinstance(value, types[kind])


def _invalid_values(kubelet: Mapping[str, Any]) -> Iterator[str]:
    if "registerWithTaints" in kubelet:
        yield "spec.kubelet.registerWithTaints: is set from the NodeClaim's taints; remove it"
    for field in ("evictionHard", "evictionSoft", "evictionMinimumReclaim"):
        yield from _thresholds(field, kubelet.get(field) or {})
    yield from _grace_periods(kubelet.get("evictionSoft") or {}, kubelet.get("evictionSoftGracePeriod") or {})
    for field in ("kubeReserved", "systemReserved"):
        for name, value in sorted((kubelet.get(field) or {}).items()):
            if name not in _RESERVABLE:
                yield f"spec.kubelet.{field}: {name} cannot be reserved, only {', '.join(sorted(_RESERVABLE))}"
            if value.startswith("-"):
                yield f"spec.kubelet.{field}[{name}]: {value} is negative"
    yield from _numbers(kubelet)


def _thresholds(field: str, thresholds: Mapping[str, str]) -> Iterator[str]:
    for signal, value in sorted(thresholds.items()):
        if signal not in _SIGNALS:
            yield f"spec.kubelet.{field}: {signal} is no eviction signal, only {', '.join(sorted(_SIGNALS))}"
        if not _is_threshold(value):
            yield f"spec.kubelet.{field}[{signal}]: {value} must be 0% to 100% or a quantity that is not negative"


def _is_threshold(value: str) -> bool:
    try:
        return 0 <= Fraction(value[:-1]) <= 100 if value.endswith("%") else quantity.parse(value).nano >= 0
    except (InvalidQuantityError, ValueError):
        return False


def _grace_periods(soft: Mapping[str, str], periods: Mapping[str, str]) -> Iterator[str]:
    """Yield mistakes: the kubelet ignores a soft threshold without a period, and rejects a period without a threshold."""
    for signal, value in sorted(periods.items()):
        if not _DURATION.fullmatch(value):
            yield f"spec.kubelet.evictionSoftGracePeriod[{signal}]: {value} must be a duration such as 1m30s"
    for signal in sorted(soft.keys() ^ periods.keys()):
        lacking = "evictionSoftGracePeriod" if signal in soft else "evictionSoft"
        yield f"spec.kubelet.{lacking}: lacks {signal}, both must have the same signals"


def _numbers(kubelet: Mapping[str, Any]) -> Iterator[str]:
    high, low = (kubelet.get(f"imageGC{end}ThresholdPercent") for end in ("High", "Low"))
    for field, value in (("imageGCHighThresholdPercent", high), ("imageGCLowThresholdPercent", low)):
        if value is not None and not 0 <= value <= 100:
            yield f"spec.kubelet.{field}: {value} is not between 0 and 100"
    if high is not None and low is not None and high <= low:
        yield "spec.kubelet: imageGCHighThresholdPercent must be greater than imageGCLowThresholdPercent"
    for field in ("podsPerCore", "evictionMaxPodGracePeriod", "maxPods"):
        value = kubelet.get(field)
        if isinstance(value, int) and value < 0:
            yield f"spec.kubelet.{field}: {value} is negative"


def _expressions(kubelet: Mapping[str, Any]) -> Iterator[str]:
    """Yield CEL expressions, which Karpenter evaluates only with the feature gate NodeClassCEL, off by default."""
    if isinstance(kubelet.get("maxPods"), str):
        yield "spec.kubelet.maxPods: must be a whole number"
    for field in ("kubeReserved", "systemReserved"):
        for name, value in sorted((kubelet.get(field) or {}).items()):
            if not _is_quantity(value):
                yield f"spec.kubelet.{field}[{name}]: {value} must be a quantity"


def _is_quantity(text: str) -> bool:
    try:
        quantity.parse(text)
    except InvalidQuantityError:
        return False
    return True


def _unsupported(node_class: NodeClassView) -> Iterator[str]:
    """Yield settings that the family does not pass on: AL2023 passes on all; for Custom the user writes the user data."""
    if node_class.family in (AL2023, CUSTOM):
        return
    kubelet, family = node_class.spec.kubelet, node_class.family.name
    for field in sorted(kubelet.keys() - _RENDERED):
        yield f"spec.kubelet.{field}: is not passed on to {family} nodes"
    if len(kubelet.get("clusterDNS") or ()) > 1:
        yield f"spec.kubelet.clusterDNS: {family} nodes take one address"
    if node_class.family is BOTTLEROCKET and kubelet.get("podsPerCore") is not None:
        yield "spec.kubelet.podsPerCore: Bottlerocket has no such setting"
