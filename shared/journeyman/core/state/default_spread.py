"""The default topology spread constraints of the cluster, as kube-scheduler is configured with them.

Pods without spread constraints get the cluster's default ones. They are configured for kube-scheduler, and for us in
the setting SCHEDULER_CONFIG::

    podTopologySpread:
      defaultConstraints:
        - {maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: DoNotSchedule}

Default constraints have no selector: it is built for each pod from the Services that select it and from the
ReplicationController, ReplicaSet or StatefulSet that owns it.

Restates: kubernetes pkg/scheduler/framework/plugins/podtopologyspread/common.go `buildDefaultConstraints`; kubernetes
pkg/scheduler/framework/plugins/helper/spread.go `DefaultSelector`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from journeyman.core.api.objects import LabelSelector, LabelSelectorRequirement, Object, Pod, TopologySpreadConstraint
from journeyman.core.state.pod_predicates import is_terminal
from journeyman.core.state.snapshot import Workloads
from journeyman.errors import ConfigurationError

Policy = Literal["Honor", "Ignore"]
_AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]


class _Strict(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A part of the document; unknown fields are errors."""


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
    """Return the default constraints of a decoded SCHEDULER_CONFIG document; none if it is empty.

    Raises:
        ConfigurationError: An unknown field (`labelSelector` is one: each pod gets its own), a value out of range, or
        two
            constraints of the same key and `whenUnsatisfiable`.
    """
    try:
        config = msgspec.convert({} if document is None else document, _Config)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"not a scheduler configuration: {error}") from error
    constraints = config.pod_topology_spread.default_constraints
    kinds = [(c.topology_key, c.when_unsatisfiable) for c in constraints]
    for constraint, kind in zip(constraints, kinds, strict=True):
        if kinds.count(kind) > 1:
            raise ConfigurationError(f"two defaultConstraints say {kind[1]} over {kind[0]}; keep one of them")
        if constraint.min_domains is not None and constraint.when_unsatisfiable != "DoNotSchedule":
            raise ConfigurationError(f"the defaultConstraint over {kind[0]} has minDomains, which needs DoNotSchedule")
    return tuple(msgspec.convert(msgspec.to_builtins(c), TopologySpreadConstraint) for c in constraints)


def with_default_spread(
    pods: Iterable[Pod], workloads: Workloads, constraints: tuple[TopologySpreadConstraint, ...]
) -> tuple[Pod, ...]:
    """Return the pods in the same order; those without constraints of their own get the default ones.

    Args:
        pods: Any pods. Pods that have ended, and pods that no Service or owner selects, stay as they are.
        workloads: The Services and owners.
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
        defaults = tuple(msgspec.structs.replace(c, label_selector=selector) for c in constraints)
        return msgspec.structs.replace(
            pod, spec=msgspec.structs.replace(pod.spec, topology_spread_constraints=defaults)
        )

    return tuple(completed(pod) for pod in pods)


class _Selectors:
    """Finds selectors of Services and owners; pods of one owner with the same labels share one selector."""

    def __init__(self, workloads: Workloads) -> None:
        self._services: dict[str, list[Mapping[str, str]]] = {}
        for service in workloads.services:
            if service.spec.selector:
                self._services.setdefault(service.metadata.namespace, []).append(service.spec.selector)
        self._owners: dict[tuple[str, str, str], LabelSelector] = {}
        for controller in workloads.replication_controllers:
            self._add_owner("ReplicationController", controller, LabelSelector(match_labels=controller.spec.selector))
        for kind, owners in (("ReplicaSet", workloads.replica_sets), ("StatefulSet", workloads.stateful_sets)):
            for owner in owners:
                self._add_owner(kind, owner, owner.spec.selector or LabelSelector())
        self._selectors: dict[bytes, LabelSelector | None] = {}

    def _add_owner(self, kind: str, owner: Object, selector: LabelSelector) -> None:
        self._owners[owner.metadata.namespace, kind, owner.metadata.name] = selector

    def selector(self, pod: Pod) -> LabelSelector | None:
        """Return the selector for a pod's default constraints; None if no Service or owner has one."""
        owner = _controller(pod)
        owned = self._owners.get((pod.metadata.namespace, *owner)) if owner is not None else None
        case = msgspec.msgpack.encode((pod.metadata.namespace, owner, sorted(pod.metadata.labels.items())))
        if case not in self._selectors:
            replaces = owner is not None and owner[0] == "ReplicationController"
            self._selectors[case] = self._select(pod, owned or LabelSelector(), replaces=replaces)
        return self._selectors[case]

    def _select(self, pod: Pod, owned: LabelSelector, *, replaces: bool) -> LabelSelector | None:
        """Return the selectors of the pod's Services and owner combined.

        A ReplicationController's labels replace those of the Services, as in kube-scheduler (`replaces`); those of
        other owners are required beside them.
        """
        merged: dict[str, str] = {}
        for selector in self._services.get(pod.metadata.namespace, ()):
            if selector.items() <= pod.metadata.labels.items():
                merged.update(selector)
        if replaces:
            merged.update(owned.match_labels)
        required = {*merged.items(), *owned.match_labels.items()}
        if not required and not owned.match_expressions:
            return None
        # as expressions, because an owner may require another value than a Service once the pod was relabelled
        values = (LabelSelectorRequirement(key=key, operator="In", values=(value,)) for key, value in sorted(required))
        return LabelSelector(match_expressions=(*values, *owned.match_expressions))


_API_VERSIONS: Final = {"ReplicationController": "v1", "ReplicaSet": "apps/v1", "StatefulSet": "apps/v1"}


def _controller(pod: Pod) -> tuple[str, str] | None:
    """Return the kind and name of the pod's controller; None if kube-scheduler ignores its kind."""
    reference = pod.metadata.controller
    if reference is None or _API_VERSIONS.get(reference.kind) != reference.api_version:
        return None
    return reference.kind, reference.name
