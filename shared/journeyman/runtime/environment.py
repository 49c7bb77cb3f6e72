"""Defines and parses the functions' environment variables.

A wrong value raises a ConfigurationError that names the variable, in the first invocation rather than at import.
`runtime.adapters.logger` reads LOG_LEVEL; `runtime.receiver` reads FORWARDER_SERVICE_ACCOUNT and FORWARDER_AUDIENCE.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from fractions import Fraction
from math import isfinite
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.structs import fields, replace

from journeyman.core.api.duration import parse_duration
from journeyman.core.api.objects import TopologySpreadConstraint
from journeyman.core.plan import Step
from journeyman.core.scheduling.results import MinValuesPolicy, PreferencePolicy
from journeyman.core.state.default_spread import read_default_spread
from journeyman.errors import ConfigurationError
from journeyman.kube.clusters import RegisteredCluster, read_clusters, registered, with_role_of
from journeyman.observe.kube_events import COMPONENT
from journeyman.runtime.access_providers import function_name
from journeyman.steps.context import FeatureGates, Settings

T = TypeVar("T")
E = TypeVar("E", bound=Enum)
Variables = Mapping[str, str]

FIFO_QUEUE_STEPS = (Step.PROVISION, Step.TERMINATE, Step.CONSOLIDATE)


class Variable(Struct, frozen=True):
    """One environment variable; `default` is empty if it has none."""

    name: str
    default: str
    meaning: str
    example: str = ""
    is_karpenters: bool = False


_CLUSTERS: Final = '[{"name": "dev", "region": "eu-west-1", "access": {"kind": "eks"}}]'

VARIABLES: Final = (
    Variable(
        "JOURNEYMAN_CLUSTERS",
        "",
        "The registered clusters, a JSON list; required. `docs/architecture.md` describes the kinds of `access`.",
        _CLUSTERS,
    ),
    Variable("JOURNEYMAN_MORE_CLUSTERS", "[]", "Further clusters, in the same form.", _CLUSTERS),
    Variable(
        "JOURNEYMAN_CLUSTERS_PATH",
        "",
        "Path of SSM parameters with further clusters, one each: the last part of the parameter's name is the cluster's name, its "
        "value the same JSON object. They are read every five minutes.",
    ),
    Variable("JOURNEYMAN_PROVISION_QUEUE_URL", "", "FIFO queue of the provision step; required."),
    Variable("JOURNEYMAN_TERMINATE_QUEUE_URL", "", "FIFO queue of the terminate step; required."),
    Variable("JOURNEYMAN_CONSOLIDATE_QUEUE_URL", "", "FIFO queue of the consolidate step; required."),
    Variable("JOURNEYMAN_REQUEUE_QUEUE_URL", "", "Standard queue for requeue messages that are not due yet; required."),
    Variable(
        "JOURNEYMAN_SCHEDULE_GROUP",
        "",
        "Group of EventBridge Scheduler in which the sweep keeps an entry for each edge of a window; without it, the sweep alone "
        "starts the steps, within a minute.",
    ),
    Variable(
        "JOURNEYMAN_SCHEDULE_ROLE_ARN",
        "",
        "Role with which those entries send to the steps' queues; required with a group.",
        "arn:aws:iam::111122223333:role/windows",
    ),
    Variable(
        "JOURNEYMAN_SCHEDULE_DEAD_LETTERS_ARN",
        "",
        "Queue for the messages of those entries that cannot be delivered; required with a group.",
        "arn:aws:sqs:eu-west-1:111122223333:dead",
    ),
    Variable(
        "JOURNEYMAN_MAX_HOPS",
        "12",
        "How many requeues may follow one another before the next sweep continues the work. Lambda stops a function after about "
        "16 runs of one chain, unless its property RecursiveLoop is `Allow`.",
    ),
    Variable("AWS_REGION", "", "Region of the queues; Lambda sets it."),
    Variable(
        "PREFERENCE_POLICY",
        "Respect",
        "`Respect`: preferences are constraints until no node satisfies them. `Ignore`: preferences of pods are ignored. "
        "`WhenFree`: preferences are kept where they cost nothing.",
        is_karpenters=True,
    ),
    Variable(
        "MIN_VALUES_POLICY",
        "Strict",
        "`Strict`: no node is launched when minValues cannot be met. `BestEffort`: minValues are lowered, and the NodeClaim "
        "records it.",
        is_karpenters=True,
    ),
    Variable(
        "FEATURE_GATES",
        "",
        "Gates to enable, e.g. `NodeRepair=true,SpotToSpotConsolidation=true,NodeOverlay=true,StaticCapacity=true,"
        "CapacityBuffer=true`. `PodDeletionCostManagement=false` disables the deletion costs of pods, which are enabled otherwise.",
        "NodeRepair=true",
        is_karpenters=True,
    ),
    Variable(
        "IGNORE_DRA_REQUESTS",
        "true",
        "`true`: pods with ResourceClaims are ignored. `false`: devices are allocated for them.",
        is_karpenters=True,
    ),
    Variable(
        "SCHEDULER_CONFIG",
        "",
        "kube-scheduler's `podTopologySpread.defaultConstraints`, as YAML or JSON, if your kube-scheduler has any.",
        "podTopologySpread: {defaultConstraints: "
        "[{maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: DoNotSchedule}]}",
    ),
    Variable(
        "POD_NOMINATION", "true", "Whether pods are nominated to the nodes they were planned for (Kubernetes 1.35)."
    ),
    Variable(
        "FLEET_PLANS", "true", "Whether the whole fleet is planned at once, before single nodes are consolidated."
    ),
    Variable("DISRUPTION_HISTORY_LIMIT", "100", "How many finished NodeDisruptions are kept."),
    Variable("DISRUPTION_HISTORY_AGE", "24h", "How long finished NodeDisruptions are kept."),
    Variable(
        "CONSOLIDATION_PAYBACK",
        "1h",
        "A consolidation must save within this time what it costs: the boot of the replacement, image pulls and evictions. `0s`: "
        "any saving suffices, as with Karpenter.",
    ),
    Variable(
        "CONSOLIDATION_EVICTION_COST", "0.0001", "What moving one pod costs, in the currency of the cloud's prices."
    ),
    Variable(
        "CONSOLIDATION_REVERSAL_WINDOW",
        "10m",
        "How long consolidation leaves a node alone on which workloads run for which it was launched, and workloads for which a "
        "node had to be launched again after it had moved them; the latter for twice as long each time, at most four hours. "
        "`0s`: it reverses itself at once, as with Karpenter.",
    ),
    Variable(
        "INITIALIZATION_TIMEOUT",
        "30m",
        "How long after its registration a node without pods may take to initialize, before it is deleted; by default twice the "
        "registration timeout. `0s`: it stays, as with Karpenter.",
    ),
    Variable(
        "BATCH_IDLE_DURATION", "1s", "How long the forwarder's batch waits for a further pod.", is_karpenters=True
    ),
    Variable("BATCH_MAX_DURATION", "10s", "How long the forwarder's batch waits at most.", is_karpenters=True),
    Variable(
        "VM_MEMORY_OVERHEAD_PERCENT",
        "0.075",
        "Share of an instance's memory that the hypervisor keeps, until a node of the type has run.",
        is_karpenters=True,
    ),
    Variable("RESERVED_ENIS", "0", "Network interfaces that pods do not get.", is_karpenters=True),
    Variable("ISOLATED_VPC", "false", "`true`: neither IAM nor the Pricing API can be reached.", is_karpenters=True),
    Variable(
        "DISABLE_CLUSTER_STATE_OBSERVABILITY",
        "false",
        "`true`: no gauges of nodes, NodePools, pods and conditions.",
        is_karpenters=True,
    ),
    Variable(
        "EVENT_COMPONENT", COMPONENT, "The reporting component of Kubernetes Events; alerts for Karpenter filter on it."
    ),
    Variable("SYSTEM_NAMESPACE", "kube-system", "Namespace of the Leases.", is_karpenters=True),
    Variable(
        "FORWARDER_SERVICE_ACCOUNT",
        "",
        "`namespace/name` of the service account whose events the API accepts over HTTPS; empty accepts none.",
    ),
    Variable("FORWARDER_AUDIENCE", "journeyman", "Audience of that service account's tokens."),
    Variable("LOG_LEVEL", "info", "`debug`, `info` or `error`.", is_karpenters=True),
)
"""Every variable that a function reads. docs/settings.md is generated from this table."""

_BY_NAME: Final = {variable.name: variable for variable in VARIABLES}


class Environment(Struct, frozen=True, kw_only=True):
    """The settings of one process."""

    region: str  # of this deployment's queues
    clusters: Mapping[str, RegisteredCluster]  # those in the variables themselves
    clusters_path: str  # of SSM parameters with further clusters; empty without
    function: str  # the function that runs here; empty outside of Lambda
    defaults: Settings  # of every cluster, but for its name
    queues: Mapping[Step, str]  # FIFO queue URLs
    requeue_url: str
    schedule_group: str  # of EventBridge Scheduler, for window edges; empty without
    schedule_role_arn: str  # sends to the queues
    schedule_dead_letters_arn: str  # of what it cannot send
    system_namespace: str
    vm_memory_overhead_percent: Fraction | None  # None: the cloud's default
    reserved_enis: int
    isolated_vpc: bool
    event_component: str = COMPONENT

    def memory_overhead(self, *, default: Fraction) -> Fraction:
        """Return the share of memory that a hypervisor keeps; the cloud's default if it is not set."""
        return default if self.vm_memory_overhead_percent is None else self.vm_memory_overhead_percent

    @property
    def settings(self) -> Mapping[str, Settings]:
        """The settings of the clusters in the variables, by name."""
        return {name: replace(self.defaults, cluster_name=name) for name in self.clusters}


def read_environment(variables: Variables, *, has_sqs: bool = True) -> Environment:
    """Return the parsed environment.

    Args:
        variables: The process's.
        has_sqs: Whether the variables name queues of SQS, as on AWS.

    Raises:
        ConfigurationError: A variable is missing or does not parse; the error names it and shows a valid value.
    """
    clusters = _clusters(variables)
    return Environment(
        region=variables.get("AWS_REGION") or variables.get("FC_REGION") or next(iter(clusters.values())).region,
        clusters=clusters,
        clusters_path=_read(variables, "JOURNEYMAN_CLUSTERS_PATH", str),
        function=function_name(variables),
        defaults=_settings(variables),
        queues={s: _required(variables, f"JOURNEYMAN_{s.name}_QUEUE_URL") for s in FIFO_QUEUE_STEPS if has_sqs},
        requeue_url=_required(variables, "JOURNEYMAN_REQUEUE_QUEUE_URL") if has_sqs else "",
        schedule_group=_read(variables, "JOURNEYMAN_SCHEDULE_GROUP", str) if has_sqs else "",
        schedule_role_arn=_with_group(variables, "JOURNEYMAN_SCHEDULE_ROLE_ARN") if has_sqs else "",
        schedule_dead_letters_arn=_with_group(variables, "JOURNEYMAN_SCHEDULE_DEAD_LETTERS_ARN") if has_sqs else "",
        system_namespace=_read(variables, "SYSTEM_NAMESPACE", str),
        vm_memory_overhead_percent=_memory_overhead(variables, has_sqs=has_sqs),
        reserved_enis=_read(variables, "RESERVED_ENIS", int),
        isolated_vpc=_read(variables, "ISOLATED_VPC", _boolean),
        event_component=_read(variables, "EVENT_COMPONENT", str),
    )


def _with_group(variables: Variables, name: str) -> str:
    """Return a variable that the entries of EventBridge Scheduler need; empty without a group for them."""
    return _required(variables, name) if variables.get("JOURNEYMAN_SCHEDULE_GROUP") else ""


def _memory_overhead(variables: Variables, *, has_sqs: bool) -> Fraction | None:
    """Return the setting; None if it is not set and the default is that of another cloud."""
    name = "VM_MEMORY_OVERHEAD_PERCENT"
    return _read(variables, name, Fraction) if has_sqs or variables.get(name) else None


def _clusters(variables: Variables) -> dict[str, RegisteredCluster]:
    _required(variables, "JOURNEYMAN_CLUSTERS")
    found = [cluster for name in _REGISTERS for cluster in _read(variables, name, read_clusters)]
    if not found and not variables.get("JOURNEYMAN_CLUSTERS_PATH"):
        raise ConfigurationError(
            "JOURNEYMAN_CLUSTERS names no cluster",
            variable="JOURNEYMAN_CLUSTERS",
            to_do="register one, or remove the stack",
        )
    try:
        return registered(with_role_of(cluster, function_name(variables)) for cluster in found)
    except ConfigurationError as error:
        error.context.setdefault("variable", " and ".join(_REGISTERS))
        error.context.setdefault("to_do", "give each cluster a name of its own")
        raise


_REGISTERS: Final = ("JOURNEYMAN_CLUSTERS", "JOURNEYMAN_MORE_CLUSTERS")


def _settings(variables: Variables) -> Settings:
    return Settings(
        cluster_name="",
        batch_idle_duration=_read(variables, "BATCH_IDLE_DURATION", parse_duration),
        batch_max_duration=_read(variables, "BATCH_MAX_DURATION", parse_duration),
        preference_policy=_read(variables, "PREFERENCE_POLICY", PreferencePolicy),
        min_values_policy=_read(variables, "MIN_VALUES_POLICY", MinValuesPolicy),
        feature_gates=_read(variables, "FEATURE_GATES", _feature_gates),
        ignore_dra_requests=_read(variables, "IGNORE_DRA_REQUESTS", _boolean),
        default_spread=_read(variables, "SCHEDULER_CONFIG", _default_spread),
        cluster_state_observability=not _read(variables, "DISABLE_CLUSTER_STATE_OBSERVABILITY", _boolean),
        pod_nomination=_read(variables, "POD_NOMINATION", _boolean),
        fleet_plans=_read(variables, "FLEET_PLANS", _boolean),
        disruption_history_limit=_read(variables, "DISRUPTION_HISTORY_LIMIT", int),
        disruption_history_age=_read(variables, "DISRUPTION_HISTORY_AGE", parse_duration),
        consolidation_payback=_read(variables, "CONSOLIDATION_PAYBACK", parse_duration),
        eviction_cost=_read(variables, "CONSOLIDATION_EVICTION_COST", _price),
        reversal_window=_read(variables, "CONSOLIDATION_REVERSAL_WINDOW", parse_duration),
        initialization_timeout=_read(variables, "INITIALIZATION_TIMEOUT", parse_duration),
        max_hops=_read(variables, "JOURNEYMAN_MAX_HOPS", int),
    )


def _default_spread(text: str) -> tuple[TopologySpreadConstraint, ...]:
    """Return kube-scheduler's default spread constraints from YAML or JSON."""
    if not text.strip():
        return ()
    import yaml  # noqa: PLC0415 - imported only if the variable is set

    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigurationError(f"neither YAML nor JSON: {error}") from error
    return read_default_spread(document)


def _feature_gates(text: str) -> FeatureGates:
    """Parse feature gates such as `SpotToSpotConsolidation=true,NodeRepair=false`; ignore unknown names, as Karpenter does."""
    field_names = {field.name.replace("_", ""): field.name for field in fields(FeatureGates)}
    pairs = (pair.partition("=") for pair in text.split(",") if pair.strip())
    gates = {name.strip().lower(): _boolean(value.strip()) for name, _, value in pairs}
    return FeatureGates(**{field_names[name]: value for name, value in gates.items() if name in field_names})


def _price(text: str) -> float:
    price = float(text)
    if not isfinite(price) or price < 0:
        raise ValueError(f"{text!r} is not a price")
    return price


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


def _read(variables: Variables, name: str, parse: Callable[[str], T]) -> T:
    variable = _BY_NAME[name]
    text = variables.get(name) or variable.default
    try:
        return parse(text)
    except (ValueError, ConfigurationError) as error:
        example = variable.example or variable.default
        raise ConfigurationError(
            f"{name} does not parse: {error}", variable=name, value=text[:200], to_do=f"give it the form {example!r}"
        ) from error
