"""What the environment says, read once and checked: clusters, queues, settings.

::

    JOURNEYMAN_CLUSTERS            JSON list: [{"name": "dev", "region": "eu-west-1", "access": {"kind": "eks"}}]
        access is one of           {"kind": "eks", "roleArn": "arn:…", "externalId": "…", "endpoint": "any|public|private"}
                                   {"kind": "ack", "clusterId": "c…", "endpoint": "public|private", "minutes": 180}
                                   {"kind": "cce", "clusterId": "…", "projectId": "…", "endpoint": "…", "days": 1}
                                   {"kind": "kubeconfig", "path": "…", "context": "…"}, {"kind": "in-cluster"}; then endpoint,
                                   certificateAuthority, kubernetesVersion and serviceCidr beside it say what nodes join with
    JOURNEYMAN_MORE_CLUSTERS       the same, added to it
    JOURNEYMAN_PROVISION_QUEUE_URL, …_TERMINATE_QUEUE_URL, …_CONSOLIDATE_QUEUE_URL, …_REQUEUE_QUEUE_URL
    AWS_REGION                     set by Lambda: where the queues are
    PREFERENCE_POLICY              Respect, Ignore, or our own WhenFree
    SCHEDULER_CONFIG               kube-scheduler's podTopologySpread.defaultConstraints, as YAML or JSON
    MIN_VALUES_POLICY, FEATURE_GATES, IGNORE_DRA_REQUESTS, BATCH_IDLE_DURATION, BATCH_MAX_DURATION,
    VM_MEMORY_OVERHEAD_PERCENT, RESERVED_ENIS, ISOLATED_VPC, DISABLE_CLUSTER_STATE_OBSERVABILITY
                                   Karpenter's settings, with its names and defaults
    POD_NOMINATION                true, or false: pods are not nominated to the nodes they were planned for
    FORWARDER_SERVICE_ACCOUNT, FORWARDER_AUDIENCE                whose events the API function takes (`runtime.receiver`)
    EVENT_COMPONENT                who Kubernetes Events are said to be from: karpenter, so that alerts that filter on it go on
    SYSTEM_NAMESPACE               where the Leases live (kube-system)

LOG_LEVEL is the logger's own (`runtime.aws.logger`): it is needed before anything else is read.

A mistake raises ConfigurationError naming the variable, at the first invocation rather than at import.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from fractions import Fraction
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.structs import fields

from journeyman.core.api.duration import parse_duration
from journeyman.core.api.objects import TopologySpreadConstraint
from journeyman.core.plan import Step
from journeyman.core.scheduling.options import MinValuesPolicy, PreferencePolicy
from journeyman.core.scheduling.topology import read_default_spread
from journeyman.errors import ConfigurationError
from journeyman.kube.clusters import RegisteredCluster, read_clusters, registered
from journeyman.observe.kube_events import COMPONENT
from journeyman.steps.context import FeatureGates, Settings

T = TypeVar("T")
E = TypeVar("E", bound=Enum)
Variables = Mapping[str, str]

FIFO_QUEUE_STEPS = (Step.PROVISION, Step.TERMINATE, Step.CONSOLIDATE)


class Environment(Struct, frozen=True, kw_only=True):
    """Everything a process is told from outside."""

    region: str  # this deployment's own, where its queues are
    clusters: Mapping[str, RegisteredCluster]
    settings: Mapping[str, Settings]  # by cluster name
    queues: Mapping[Step, str]  # FIFO queue URLs
    requeue_url: str
    system_namespace: str
    vm_memory_overhead_percent: Fraction
    reserved_enis: int
    isolated_vpc: bool
    event_component: str = COMPONENT


def read_environment(variables: Variables) -> Environment:
    """The environment, checked.

    Raises:
        ConfigurationError: A variable is missing or does not parse; it is named, with what it should look like.
    """
    clusters = _clusters(variables)
    return Environment(
        region=variables.get("AWS_REGION") or next(iter(clusters.values())).region,
        clusters=clusters,
        settings={name: _settings(variables, name) for name in clusters},
        queues={step: _required(variables, f"JOURNEYMAN_{step.name}_QUEUE_URL") for step in FIFO_QUEUE_STEPS},
        requeue_url=_required(variables, "JOURNEYMAN_REQUEUE_QUEUE_URL"),
        system_namespace=variables.get("SYSTEM_NAMESPACE", "kube-system"),
        vm_memory_overhead_percent=_read(variables, "VM_MEMORY_OVERHEAD_PERCENT", "0.075", Fraction),
        reserved_enis=_read(variables, "RESERVED_ENIS", "0", int),
        isolated_vpc=_read(variables, "ISOLATED_VPC", "false", _boolean),
        event_component=variables.get("EVENT_COMPONENT") or COMPONENT,
    )


def _clusters(variables: Variables) -> dict[str, RegisteredCluster]:
    _required(variables, "JOURNEYMAN_CLUSTERS")
    found = [
        cluster for name in _REGISTERS for cluster in _read(variables, name, "[]", read_clusters, _CLUSTER_EXAMPLE)
    ]
    if not found:
        raise ConfigurationError(
            "JOURNEYMAN_CLUSTERS names no cluster",
            variable="JOURNEYMAN_CLUSTERS",
            to_do="register one, or remove the stack",
        )
    try:
        return registered(found)
    except ConfigurationError as error:
        error.context |= {"variable": " and ".join(_REGISTERS), "to_do": "give each cluster a name of its own"}
        raise


_REGISTERS: Final = ("JOURNEYMAN_CLUSTERS", "JOURNEYMAN_MORE_CLUSTERS")
_CLUSTER_EXAMPLE: Final = '[{"name": "dev", "region": "eu-west-1", "access": {"kind": "eks"}}]'


def _settings(variables: Variables, name: str) -> Settings:
    return Settings(
        cluster_name=name,
        batch_idle_duration=_read(variables, "BATCH_IDLE_DURATION", "1s", parse_duration),
        batch_max_duration=_read(variables, "BATCH_MAX_DURATION", "10s", parse_duration),
        preference_policy=_read(variables, "PREFERENCE_POLICY", "Respect", PreferencePolicy),
        min_values_policy=_read(variables, "MIN_VALUES_POLICY", "Strict", MinValuesPolicy),
        feature_gates=_read(variables, "FEATURE_GATES", "", _feature_gates),
        ignore_dra_requests=_read(variables, "IGNORE_DRA_REQUESTS", "true", _boolean),
        default_spread=_read(variables, "SCHEDULER_CONFIG", "", _default_spread, _SPREAD_EXAMPLE),
        cluster_state_observability=not _read(variables, "DISABLE_CLUSTER_STATE_OBSERVABILITY", "false", _boolean),
        pod_nomination=_read(variables, "POD_NOMINATION", "true", _boolean),
    )


_SPREAD_EXAMPLE: Final = (
    "podTopologySpread: {defaultConstraints: "
    "[{maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: DoNotSchedule}]}"
)


def _default_spread(text: str) -> tuple[TopologySpreadConstraint, ...]:
    """kube-scheduler's default constraints, from YAML or JSON."""
    if not text.strip():
        return ()
    import yaml  # noqa: PLC0415 - only who sets it pays for it

    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigurationError(f"neither YAML nor JSON: {error}") from error
    return read_default_spread(document)


def _feature_gates(text: str) -> FeatureGates:
    """`SpotToSpotConsolidation=true,NodeRepair=false`; unknown names are ignored, as Karpenter does."""
    known = {field.name.replace("_", ""): field.name for field in fields(FeatureGates)}
    pairs = (pair.partition("=") for pair in text.split(",") if pair.strip())
    chosen = {name.strip().lower(): _boolean(value.strip()) for name, _, value in pairs}
    return FeatureGates(**{known[name]: value for name, value in chosen.items() if name in known})


def _boolean(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ValueError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def _required(variables: Variables, name: str) -> str:
    value = variables.get(name, "")
    if not value:
        raise ConfigurationError(
            f"{name} is not set", variable=name, to_do="set it on the function; template.yaml does"
        )
    return value


def _read(variables: Variables, name: str, default: str, parse: Callable[[str], T], example: str = "") -> T:
    text = variables.get(name) or default
    try:
        return parse(text)
    except (ValueError, ConfigurationError) as error:
        raise _wrong(name, text, example or default, error) from error


def _wrong(name: str, value: str, example: str, error: Exception) -> ConfigurationError:
    return ConfigurationError(
        f"{name} does not parse: {error}", variable=name, value=value[:200], to_do=f"give it the form {example!r}"
    )
