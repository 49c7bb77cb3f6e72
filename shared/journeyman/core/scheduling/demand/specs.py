"""What pod specs mean for placement: each distinct part is read once, however many pods share it.

A spec is taken apart (what it takes of a node, which node it wants, what it tolerates, what it wants of other pods).
Parts are known by their bytes, and specs whose parts mean the same get the same number. Volumes are read pod by pod,
for each pod may have its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.api.objects import (
    Affinity,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Object,
    Pod,
    PodAffinity,
    PodSpec,
    Toleration,
    TopologySpreadConstraint,
)
from journeyman.core.api.resources import pod_requests
from journeyman.core.scheduling.demand.host_ports import HostPort, host_ports
from journeyman.core.scheduling.demand.topology import Group, Spread, group_of, selector_keys, spread_of
from journeyman.core.scheduling.demand.validation import (
    absurd_amount,
    invalid_rules,
    invalid_selection,
    opted_out,
    required_terms,
    unlisted_claim,
    unsupported,
)
from journeyman.core.scheduling.requirements import (
    EMPTY,
    InvalidRequirementError,
    Requirements,
    from_labels,
    from_selectors,
)
from journeyman.core.scheduling.results import PodError
from journeyman.errors import InvalidQuantityError

encode: Final = msgspec.msgpack.Encoder(order="deterministic").encode
_NOTHING: Final = b""


class Preferences(Struct, frozen=True, kw_only=True):
    """What pods would rather have, each kind in the order in which it is given up.

    `node_terms` hold one at a time, heaviest first; of the others all hold together.
    """

    affinities: tuple[Group, ...] = ()
    anti_affinities: tuple[Group, ...] = ()
    node_terms: tuple[Requirements, ...] = ()
    spreads: tuple[Spread, ...] = ()


NO_PREFERENCES: Final = Preferences()


class Demand(Struct, frozen=True, kw_only=True, eq=False):
    """What a pod takes of its node."""

    requests: Mapping[str, int]
    ports: tuple[HostPort, ...]


class Selection(Struct, frozen=True, kw_only=True, eq=False):
    """Which node a pod wants: one of `terms`; and rather one of `preferred`, heaviest first."""

    terms: tuple[Requirements, ...]
    preferred: tuple[Requirements, ...]


class Rules(Struct, frozen=True, kw_only=True, eq=False):
    """What a pod wants of other pods. `preferences` has no node terms."""

    spreads: tuple[Spread, ...] = ()
    affinities: tuple[Group, ...] = ()
    anti_affinities: tuple[Group, ...] = ()
    preferences: Preferences = NO_PREFERENCES


_NO_RULES: Final = Rules()


class Parts(Struct, frozen=True, kw_only=True, eq=False):
    """A spec taken apart. What it wants of other pods depends on its labels too: ask `SpecReader.rules`."""

    demand: Demand
    selection: Selection
    tolerations: tuple[Toleration, ...]
    rules: bytes


class SpecReader:
    """Reads specs. `label_keys` are the pod labels that the selectors read so far look at."""

    def __init__(self, namespaces: Mapping[str, Object], *, with_claims: bool = False) -> None:
        """`namespaces` are all of them by name, for namespace selectors; `with_claims`: plan for ResourceClaims."""
        self.label_keys: set[str] = set()
        self.parts: list[Parts] = []
        self._numbers: dict[object, int] = {}
        self._namespaces = namespaces
        self._with_claims = with_claims
        self._demands: dict[bytes, tuple[object, Demand] | PodError] = {}
        self._selections: dict[bytes, tuple[object, Selection] | PodError | None] = {}
        self._tolerations: dict[bytes, tuple[Toleration, ...]] = {_NOTHING: ()}
        self._samples: dict[bytes, PodSpec | PodError] = {}
        self._rules: dict[tuple[bytes, object], Rules] = {}

    def read(self, pod: Pod) -> int | PodError | None:
        """The position in `parts` of what its spec means; why it cannot be scheduled; None if the pod opted out."""
        selected = self._selection(pod)
        if selected is None or isinstance(selected, PodError):
            return selected
        taken = self._demand(pod)
        if isinstance(taken, PodError):
            return taken
        rules = self._rules_key(pod.spec)
        if isinstance(rules, PodError):
            return rules
        wanted, selection = selected
        amounts, demand = taken
        tolerations = self._tolerated(pod.spec.tolerations)
        number = self._numbers.setdefault((amounts, wanted, tolerations, rules), len(self.parts))
        if number == len(self.parts):
            self.parts.append(Parts(demand=demand, selection=selection, tolerations=tolerations, rules=rules))
        return number

    def rules(self, key: bytes, namespace: str, own: Mapping[str, str], seen: object) -> Rules:
        """What the rules known by `key` are to a pod of this namespace with these labels (`seen` stands for both)."""
        if key == _NOTHING:
            return _NO_RULES
        known = self._rules.get((key, seen))
        if known is None:
            spec = self._samples[key]
            assert isinstance(spec, PodSpec)  # noqa: S101 - invalid rules make no parts
            known = self._rules[key, seen] = _rules(spec, namespace, own, self._namespaces)
        return known

    def _selection(self, pod: Pod) -> tuple[object, Selection] | PodError | None:
        """Which node it wants, with something that is equal if another wants the same."""
        affinity = pod.spec.affinity
        key = encode((pod.spec.node_selector, affinity.node_affinity if affinity is not None else None))
        if key not in self._selections:
            self._selections[key] = _selection(pod)
        return self._selections[key]

    def _tolerated(self, tolerations: tuple[Toleration, ...]) -> tuple[Toleration, ...]:
        """The same in one order, and without how long they last once a pod runs."""
        key = encode(tolerations) if tolerations else _NOTHING
        known = self._tolerations.get(key)
        if known is None:
            distinct = {(t.key, t.operator, t.value, t.effect) for t in tolerations}
            known = tuple(Toleration(key=k, operator=o, value=v, effect=e) for k, o, v, e in sorted(distinct))
            self._tolerations[key] = known
        return known

    def _demand(self, pod: Pod) -> tuple[object, Demand] | PodError:
        """What it takes, with something that is equal if another takes the same."""
        spec = pod.spec
        key = encode((spec.containers, spec.init_containers, spec.overhead, spec.resources, bool(spec.resource_claims)))
        known = self._demands.get(key)
        if known is None:
            known = self._demands[key] = _demand(pod, with_claims=self._with_claims)
        return known

    def _rules_key(self, spec: PodSpec) -> bytes | PodError:
        """The bytes by which its rules about other pods are known, or what is wrong with them."""
        affinity, constraints = spec.affinity, spec.topology_spread_constraints
        about_pods = (affinity.pod_affinity, affinity.pod_anti_affinity) if affinity is not None else (None, None)
        if not constraints and about_pods == (None, None):
            return _NOTHING
        key = encode((constraints, about_pods))
        known = self._samples.get(key)
        if known is None:
            reason = invalid_rules(constraints, affinity)
            known = self._samples[key] = PodError(kind="invalid", message=reason) if reason else spec
            self.label_keys |= _label_keys(spec)
        return known if isinstance(known, PodError) else key


def alternatives(node_selector: Mapping[str, str], required: Sequence[NodeSelectorTerm]) -> tuple[Requirements, ...]:
    """The alternatives for a node: a node selector together with each required term, in order.

    Raises:
        InvalidRequirementError: An expression cannot be read.
    """
    selector = from_labels(node_selector) if node_selector else EMPTY
    return tuple(selector & from_selectors(t.match_expressions) for t in required) or (selector,)


def _selection(pod: Pod) -> tuple[object, Selection] | PodError | None:
    spec = pod.spec
    if opted_out(pod):
        return None
    invalid = invalid_selection(spec.node_selector, spec.affinity)
    if invalid:
        return PodError(kind="invalid", message=invalid)
    terms = alternatives(spec.node_selector, required_terms(spec.affinity))
    preferred = tuple(_preferred_terms(spec.affinity))
    return (terms, preferred), Selection(terms=terms, preferred=preferred)


def _preferred_terms(affinity: Affinity | None) -> Iterable[Requirements]:
    """Preferred terms, heaviest first; one that says nothing or cannot be read is no preference."""
    node_affinity = affinity.node_affinity if affinity is not None else None
    preferred = sorted(node_affinity.preferred if node_affinity is not None else (), key=lambda t: -t.weight)
    return filter(None, (_read(term.preference.match_expressions) for term in preferred))


def _read(expressions: Iterable[NodeSelectorRequirement]) -> Requirements | None:
    try:
        return from_selectors(expressions)
    except InvalidRequirementError:
        return None


def _demand(pod: Pod, *, with_claims: bool) -> tuple[object, Demand] | PodError:
    refused = "" if with_claims else unsupported(pod)
    if refused:
        return PodError(kind="unsupported", message=refused)
    unlisted = unlisted_claim(pod)
    if unlisted:
        return PodError(kind="invalid", message=unlisted)
    try:
        requests = pod_requests(pod)
    except InvalidQuantityError as error:
        cause = error.__cause__  # without the pod's name, since others share the part
        return PodError(
            kind="invalid", message=cause.message if isinstance(cause, InvalidQuantityError) else error.message
        )
    absurd = absurd_amount(requests)
    if absurd:
        return PodError(kind="invalid", message=absurd)
    ports = host_ports(pod)
    return (tuple(sorted(requests.items())), ports), Demand(requests=requests, ports=ports)


def _label_keys(spec: PodSpec) -> set[str]:
    """The pod labels that the rules of a spec look at, preferences included."""
    keys: set[str] = set()
    for constraint in spec.topology_spread_constraints:
        keys |= selector_keys(constraint.label_selector).union(constraint.match_label_keys)
    for rule in (spec.affinity.pod_affinity, spec.affinity.pod_anti_affinity) if spec.affinity is not None else ():
        for term in (*rule.required, *(w.pod_affinity_term for w in rule.preferred)) if rule is not None else ():
            keys |= selector_keys(term.label_selector).union(term.match_label_keys, term.mismatch_label_keys)
    return keys


def _rules(spec: PodSpec, namespace: str, own: Mapping[str, str], namespaces: Mapping[str, Object]) -> Rules:
    affinity = spec.affinity or Affinity()

    def required(rule: PodAffinity | None) -> tuple[Group, ...]:
        groups = (group_of(t, namespace, own, namespaces) for t in (rule.required if rule is not None else ()))
        return tuple({group.id: group for group in groups}.values())

    def preferred(rule: PodAffinity | None) -> tuple[Group, ...]:
        terms = sorted(rule.preferred if rule is not None else (), key=lambda t: -t.weight)
        return tuple(group_of(t.pod_affinity_term, namespace, own, namespaces).preferred for t in terms)

    hard = [c for c in spec.topology_spread_constraints if c.when_unsatisfiable == "DoNotSchedule"]
    soft = [spread_of(c, namespace, own) for c in _anyway(spec.topology_spread_constraints)]
    return Rules(
        spreads=tuple(spread_of(c, namespace, own) for c in hard),
        affinities=required(affinity.pod_affinity),
        anti_affinities=required(affinity.pod_anti_affinity),
        preferences=Preferences(
            affinities=preferred(affinity.pod_affinity),
            anti_affinities=preferred(affinity.pod_anti_affinity),
            spreads=tuple(replace(s, group=s.group.preferred) for s in soft),
        ),
    )


def _anyway(constraints: Iterable[TopologySpreadConstraint]) -> Iterable[TopologySpreadConstraint]:
    """The ScheduleAnyway constraints in the order in which they are given up.

    The first one goes, and the last of all constraints takes its place.

    Restates: karpenter pkg/controllers/provisioning/scheduling/preferences.go `removeTopologySpreadScheduleAnyway`.
    """
    left = list(constraints)
    index = 0
    while index < len(left):
        if left[index].when_unsatisfiable == "DoNotSchedule":
            index += 1
            continue
        yield left[index]
        left[index] = left[-1]
        left.pop()
