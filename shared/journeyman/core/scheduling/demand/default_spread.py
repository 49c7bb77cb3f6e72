"""Topology spread constraints that the cluster's kube-scheduler gives to pods without any of their own.

Who configures kube-scheduler so tells us the same, in the setting SCHEDULER_CONFIG::

    podTopologySpread:
      defaultConstraints:
        - {maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: DoNotSchedule}

The constraints name no pods: those to be counted are found for each pod, from the Services that select it and from
the ReplicationController, ReplicaSet or StatefulSet that owns it.

Restates: kubernetes pkg/scheduler/framework/plugins/podtopologyspread/common.go `buildDefaultConstraints`,
plugins/helper/spread.go `DefaultSelector`; karpenter's `SCHEDULER_CONFIG`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from journeyman.core.api.objects import (
    LabelSelector,
    LabelSelectorRequirement,
    Object,
    Pod,
    TopologySpreadConstraint,
)
from journeyman.core.scheduling.pods import is_terminal
from journeyman.core.state.snapshot import Workloads
from journeyman.errors import ConfigurationError

Policy = Literal["Honor", "Ignore"]
_AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]


class _Strict(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A misspelled field is a mistake, not something to ignore."""


class _Constraint(_Strict, frozen=True):
    max_skew: _AtLeastOne
    topology_key: Annotated[str, msgspec.Meta(min_length=1)]
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"]
    min_domains: _AtLeastOne | None = None
    node_affinity_policy: Policy | None = None
    node_taints_policy: Policy | None = None


class _PodTopologySpread(_Strict, frozen=True):
    default_constraints: tuple[_Constraint, ...] = ()


class _Config(_Strict, frozen=True):
    pod_topology_spread: _PodTopologySpread = _PodTopologySpread()


def read_default_spread(document: Any) -> tuple[TopologySpreadConstraint, ...]:
    """The default constraints of a SCHEDULER_CONFIG document, as YAML or JSON gives it; none if it is empty.

    Raises:
        ConfigurationError: An unknown field (a `labelSelector` is one: it is found for each pod), a value out of range,
            or two constraints of the same key and `whenUnsatisfiable`.
    """
    try:
        config = msgspec.convert({} if document is None else document, _Config)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"not a scheduler configuration: {error}") from error
    found = config.pod_topology_spread.default_constraints
    kinds = [(c.topology_key, c.when_unsatisfiable) for c in found]
    for constraint, kind in zip(found, kinds, strict=True):
        if kinds.count(kind) > 1:
            raise ConfigurationError(f"two defaultConstraints say {kind[1]} over {kind[0]}; keep one of them")
        if constraint.min_domains is not None and constraint.when_unsatisfiable != "DoNotSchedule":
            raise ConfigurationError(f"the defaultConstraint over {kind[0]} has minDomains, which needs DoNotSchedule")
    return tuple(msgspec.convert(msgspec.to_builtins(c), TopologySpreadConstraint) for c in found)


def with_default_spread(
    pods: Iterable[Pod], workloads: Workloads, constraints: tuple[TopologySpreadConstraint, ...]
) -> tuple[Pod, ...]:
    """The pods in the same order; those without constraints of their own have the default ones.

    Args:
        pods: Any pods. Those that have ended, and those that nothing selects, stay as they are.
        workloads: The Services and owners that say which pods belong together.
        constraints: From `read_default_spread`.
    """
    if not constraints:
        return tuple(pods)
    finder = _Selectors(workloads)

    def completed(pod: Pod) -> Pod:
        if pod.spec.topology_spread_constraints or is_terminal(pod):
            return pod
        selector = finder.selector(pod)
        if selector is None:
            return pod
        own = tuple(msgspec.structs.replace(c, label_selector=selector) for c in constraints)
        return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, topology_spread_constraints=own))

    return tuple(completed(pod) for pod in pods)


class _Selectors:
    """Services and owners, indexed; pods of one owner with the same labels share one selector."""

    def __init__(self, workloads: Workloads) -> None:
        self._services: dict[str, list[Mapping[str, str]]] = {}
        for service in workloads.services:
            if service.spec.selector:
                self._services.setdefault(service.metadata.namespace, []).append(service.spec.selector)
        self._owners: dict[tuple[str, str, str], LabelSelector] = {}
        for controller in workloads.replication_controllers:
            self._own("ReplicationController", controller, LabelSelector(match_labels=controller.spec.selector))
        for kind, owners in (("ReplicaSet", workloads.replica_sets), ("StatefulSet", workloads.stateful_sets)):
            for owner in owners:
                self._own(kind, owner, owner.spec.selector or LabelSelector())
        self._found: dict[bytes, LabelSelector | None] = {}

    def _own(self, kind: str, owner: Object, selector: LabelSelector) -> None:
        self._owners[owner.metadata.namespace, kind, owner.metadata.name] = selector

    def selector(self, pod: Pod) -> LabelSelector | None:
        """What selects the pods that belong with this one, None if nothing does."""
        owner = _controller(pod)
        owned = self._owners.get((pod.metadata.namespace, *owner)) if owner is not None else None
        case = msgspec.msgpack.encode((pod.metadata.namespace, owner, sorted(pod.metadata.labels.items())))
        if case not in self._found:
            self._found[case] = self._select(pod, owned or LabelSelector())
        return self._found[case]

    def _select(self, pod: Pod, owned: LabelSelector) -> LabelSelector | None:
        """Everything that Services and owner ask for, together."""
        asked: set[tuple[str, str]] = set(owned.match_labels.items())
        for selector in self._services.get(pod.metadata.namespace, ()):
            if selector.items() <= pod.metadata.labels.items():
                asked |= selector.items()
        if not asked and not owned.match_expressions:
            return None
        # as expressions, for an owner may ask for another value than a Service once the pod was relabelled
        values = (LabelSelectorRequirement(key=key, operator="In", values=(value,)) for key, value in sorted(asked))
        return LabelSelector(match_expressions=(*values, *owned.match_expressions))


_API_VERSIONS: Final = {"ReplicationController": "v1", "ReplicaSet": "apps/v1", "StatefulSet": "apps/v1"}


def _controller(pod: Pod) -> tuple[str, str] | None:
    """Kind and name of the pod's controller, if it is of a kind that kube-scheduler asks."""
    found = next((o for o in pod.metadata.owner_references if o.controller), None)
    if found is None or _API_VERSIONS.get(found.kind) != found.api_version:
        return None
    return found.kind, found.name
