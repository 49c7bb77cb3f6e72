"""Checks of `spec.kubelet` of an EC2NodeClass, which is an open object to the API server.

A fault does not make the object unreadable: it becomes the reason of the NodeClass's `ValidationSucceeded` condition.

Restates: karpenter-provider-aws pkg/apis/v1/kubeletconfiguration_validation.go `ValidateKubeletConfig`,
pkg/controllers/nodeclass/validation.go; field names and types of kubelet.config.k8s.io/v1beta1 `KubeletConfiguration`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from journeyman.core.api import quantity
from journeyman.errors import InvalidQuantityError

INVALID: Final = "InvalidKubeletConfiguration"
EXPRESSIONS_DISABLED: Final = "KubeletExpressionsDisabled"
UNSUPPORTED: Final = "UnsupportedKubeletConfiguration"

EVICTION_SIGNALS: Final = (
    "memory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
    "pid.available",
)
RESERVABLE: Final = ("cpu", "memory", "ephemeral-storage", "pid")

# What bootstrap arguments carry; the other families take the whole configuration
MAPPED_FIELDS: Final = frozenset(
    {
        "clusterDNS",
        "maxPods",
        "podsPerCore",
        "systemReserved",
        "kubeReserved",
        "evictionHard",
        "evictionSoft",
        "evictionSoftGracePeriod",
        "evictionMaxPodGracePeriod",
        "imageGCHighThresholdPercent",
        "imageGCLowThresholdPercent",
        "cpuCFSQuota",
    }
)
WHOLE_CONFIGURATION_FAMILIES: Final = frozenset({"AL2023", "Custom"})

_FIELDS_BY_TYPE: Final = {
    "boolean": """
        enableServer rotateCertificates serverTLSBootstrap enableDebuggingHandlers enableContentionProfiling cgroupsPerQOS
        singleProcessOOMKill runOnce cpuCFSQuota serializeImagePulls enableControllerAttachDetach protectKernelDefaults
        makeIPTablesUtilChains failSwapOn mergeDefaultEvictionSettings kernelMemcgNotification enableSystemLogHandler
        enableSystemLogQuery enableProfilingHandler enableDebugFlagsHandler seccompDefault registerNode
        localStorageCapacityIsolation failCgroupV1""",
    "integer": """
        port readOnlyPort registryPullQPS registryBurst eventRecordQPS eventBurst healthzPort oomScoreAdj
        nodeLeaseDurationSeconds imageGCHighThresholdPercent imageGCLowThresholdPercent maxPods podPidsLimit
        nodeStatusMaxImages maxOpenFiles kubeAPIQPS kubeAPIBurst maxParallelImagePulls evictionMaxPodGracePeriod podsPerCore
        iptablesMasqueradeBit iptablesDropBit containerLogMaxFiles containerLogMaxWorkers""",
    "number": "memoryThrottlingFactor",
    "string": """
        apiVersion kind staticPodPath podLogsDir staticPodURL address tlsCertFile tlsPrivateKeyFile tlsMinVersion
        imagePullCredentialsVerificationPolicy healthzBindAddress clusterDomain kubeletCgroups systemCgroups cgroupRoot
        cgroupDriver cpuManagerPolicy memoryManagerPolicy topologyManagerPolicy topologyManagerScope hairpinMode podCIDR
        resolvConf contentType containerLogMaxSize configMapAndSecretChangeDetectionStrategy reservedSystemCPUs
        showHiddenMetricsForVersion systemReservedCgroup kubeReservedCgroup volumePluginDir providerID
        containerRuntimeEndpoint imageServiceEndpoint
        syncFrequency fileCheckFrequency httpCheckFrequency streamingConnectionIdleTimeout nodeStatusUpdateFrequency
        nodeStatusReportFrequency imageMinimumGCAge imageMaximumGCAge volumeStatsAggPeriod cpuManagerReconcilePeriod
        runtimeRequestTimeout cpuCFSQuotaPeriod evictionPressureTransitionPeriod containerLogMonitorInterval
        shutdownGracePeriod shutdownGracePeriodCriticalPods""",
    "list": """
        tlsCipherSuites preloadedImagesVerificationAllowlist clusterDNS enforceNodeAllocatable allowedUnsafeSysctls
        shutdownGracePeriodByPodPriority reservedMemory registerWithTaints""",
    "map of strings": """
        staticPodURLHeader cpuManagerPolicyOptions topologyManagerPolicyOptions qosReserved evictionHard evictionSoft
        evictionSoftGracePeriod evictionMinimumReclaim systemReserved kubeReserved""",
    "object": """
        authentication authorization featureGates memorySwap logging crashLoopBackOff tracing userNamespaces""",
}
_TYPE_OF: Final = {field: type_ for type_, fields in _FIELDS_BY_TYPE.items() for field in fields.split()}

_PERCENTAGE: Final = re.compile(r"\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)%", re.ASCII)
_GO_DURATION: Final = re.compile(r"\+?(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h))+)", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletFault:
    """What is wrong, as a condition says it."""

    reason: str
    message: str


def kubelet_fault(kubelet: Mapping[str, Any], ami_family: str) -> KubeletFault | None:
    """The first kind of fault in a kubelet configuration, None if it is sound.

    Args:
        kubelet: `spec.kubelet`.
        ami_family: The resolved family, such as `AL2023`.
    """
    if faults := list(_structure(kubelet)) or list(_meaning(kubelet)):
        return KubeletFault(reason=INVALID, message="; ".join(faults))
    if expressions := list(_expressions(kubelet)):
        return KubeletFault(
            reason=EXPRESSIONS_DISABLED,
            message=f"{', '.join(expressions)}: neither a number nor a quantity; expressions are not enabled",
        )
    if faults := list(_unsupported(kubelet, ami_family)):
        return KubeletFault(reason=UNSUPPORTED, message="; ".join(faults))
    return None


def _structure(kubelet: Mapping[str, Any]) -> Iterator[str]:
    for field in sorted(kubelet):
        value = kubelet[field]
        expected = _TYPE_OF.get(field)
        if expected is None:
            yield f"spec.kubelet.{field}: unknown field"
        elif value is not None and not _IS[expected](value) and not (field == "maxPods" and isinstance(value, str)):
            yield f"spec.kubelet.{field}: must be of type {expected}"


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_map_of_strings(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(item, str) for item in value.values())


_IS: Final[dict[str, Callable[[Any], bool]]] = {
    "boolean": lambda value: isinstance(value, bool),
    "integer": _is_integer,
    "number": lambda value: _is_integer(value) or isinstance(value, float),
    "string": lambda value: isinstance(value, str),
    "list": lambda value: isinstance(value, (list, tuple)),
    "map of strings": _is_map_of_strings,
    "object": lambda value: isinstance(value, Mapping),
}


def _meaning(kubelet: Mapping[str, Any]) -> Iterator[str]:
    """Faults that types cannot express; the structure is sound here."""
    if "registerWithTaints" in kubelet:
        yield "spec.kubelet.registerWithTaints: can't be set, it follows from the NodeClaim's taints"
    yield from _evictions(kubelet)
    yield from _reservations(kubelet)
    for field in ("imageGCHighThresholdPercent", "imageGCLowThresholdPercent"):
        if not 0 <= (kubelet.get(field) or 0) <= 100:
            yield f"spec.kubelet.{field}: {kubelet[field]} must be between 0 and 100"
    for field in ("podsPerCore", "evictionMaxPodGracePeriod", "maxPods"):
        if _is_integer(kubelet.get(field)) and kubelet[field] < 0:
            yield f"spec.kubelet.{field}: {kubelet[field]} can't be negative"
    high, low = kubelet.get("imageGCHighThresholdPercent"), kubelet.get("imageGCLowThresholdPercent")
    if high is not None and low is not None and high <= low:
        yield (
            f"spec.kubelet: imageGCHighThresholdPercent ({high}) must be greater than imageGCLowThresholdPercent ({low})"
        )


def _evictions(kubelet: Mapping[str, Any]) -> Iterator[str]:
    for field in ("evictionHard", "evictionSoft", "evictionSoftGracePeriod", "evictionMinimumReclaim"):
        for signal, value in sorted((kubelet.get(field) or {}).items()):
            path = f"spec.kubelet.{field}[{signal}]"
            if signal not in EVICTION_SIGNALS:
                yield f"{path}: isn't an eviction signal, must be one of {', '.join(EVICTION_SIGNALS)}"
            if field == "evictionSoftGracePeriod":
                if not _GO_DURATION.fullmatch(value):
                    yield f"{path}: {value!r} must be a duration such as 30s"
            elif not (_is_percentage(value) or _is_amount(value)):
                yield f"{path}: {value!r} must be a percentage or a resource quantity that is not negative"
    soft, grace = kubelet.get("evictionSoft") or {}, kubelet.get("evictionSoftGracePeriod") or {}
    for signal in sorted(soft.keys() - grace.keys()):
        yield f"spec.kubelet.evictionSoft[{signal}]: has no matching evictionSoftGracePeriod"
    for signal in sorted(grace.keys() - soft.keys()):
        yield f"spec.kubelet.evictionSoftGracePeriod[{signal}]: has no matching evictionSoft"


def _reservations(kubelet: Mapping[str, Any]) -> Iterator[str]:
    for field in ("kubeReserved", "systemReserved"):
        for name, value in sorted((kubelet.get(field) or {}).items()):
            if name not in RESERVABLE:
                yield f"spec.kubelet.{field}[{name}]: isn't reservable, must be one of {', '.join(RESERVABLE)}"
            if value.startswith("-"):
                yield f"spec.kubelet.{field}[{name}]: {value!r} can't be negative"


def _expressions(kubelet: Mapping[str, Any]) -> Iterator[str]:
    """Where an expression stands instead of a number or a quantity."""
    if isinstance(kubelet.get("maxPods"), str):
        yield "spec.kubelet.maxPods"
    for field in ("kubeReserved", "systemReserved"):
        for name, value in sorted((kubelet.get(field) or {}).items()):
            if not _is_amount(value):
                yield f"spec.kubelet.{field}[{name}]"


def _unsupported(kubelet: Mapping[str, Any], ami_family: str) -> Iterator[str]:
    if ami_family in WHOLE_CONFIGURATION_FAMILIES:
        return
    if beyond := sorted(kubelet.keys() - MAPPED_FIELDS):
        yield f"spec.kubelet: {', '.join(beyond)} can't be passed to nodes of the {ami_family} AMI family"
    if len(kubelet.get("clusterDNS") or ()) > 1:
        yield f"spec.kubelet.clusterDNS: the {ami_family} AMI family takes one address only"
    if ami_family == "Bottlerocket" and "podsPerCore" in kubelet:
        yield "spec.kubelet.podsPerCore: not supported by the Bottlerocket AMI family"


def _is_percentage(value: str) -> bool:
    return bool(_PERCENTAGE.fullmatch(value)) and float(value[:-1]) <= 100


def _is_amount(value: str) -> bool:
    try:
        return quantity.parse(value).nano >= 0
    except InvalidQuantityError:
        return False
