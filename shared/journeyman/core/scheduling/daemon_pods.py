"""Says where DaemonSets' pods count for pod (anti-)affinity: on each node that is to run them, before they exist.

The DaemonSet controller creates such a pod once the Node exists; kube-scheduler then binds the pod that waits for it.
What a new node must be like for that is a requirement on its labels, an alternative for each term of the DaemonSet::

    affinity to the DaemonSet's pods      a node that runs one: it meets a term, in a NodePool whose taints they accept
    anti-affinity, theirs or about them   a node that runs none: it meets no term, is of another NodePool, or lacks the
                                          label over which the pods are apart

An affinity is tried in two rows: `with_daemon_rules` first lets the pods join running and planned pods, as ever; then
(`PodClass.launch_only`) a new node whose DaemonSet's pod is what they join. Existing nodes need no requirement: the
pods that are still to come to them are counted there (`NodeInventory.expected_counts`).

Differs: Karpenter counts only pods that run: a pod with affinity to a DaemonSet's pods gets no new node, and one with
anti-affinity gets a node on which it is never bound. Topology spread counts running pods alone, as there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import product
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.scheduling.daemon_overhead import Daemon, runs_on
from journeyman.core.scheduling.nodeclaim_templates import NodeClaimTemplate
from journeyman.core.scheduling.pod_classes import PodClass
from journeyman.core.scheduling.requirements import EMPTY, Requirement, Requirements, requirement
from journeyman.core.scheduling.topology import (
    InverseAntiAffinity,
    LabelIndex,
    NamespaceIndex,
    TopologyGroup,
    required_anti_affinities,
)

_NAMED: Final = 3
_MOST_ALTERNATIVES: Final = 32  # of a row; fewer only leave out nodes that would do, too


class DaemonPods(Struct, eq=False, dict=True):
    """The pods that DaemonSets run on nodes of these templates."""

    daemons: tuple[Daemon, ...]
    templates: tuple[NodeClaimTemplate, ...]
    namespaces: NamespaceIndex
    _joining_by_group: dict[bytes, tuple[Requirements, ...]] = field(default_factory=dict)
    _avoiding_by_case: dict[tuple[Daemon, str], tuple[Requirements, ...]] = field(default_factory=dict)

    @cached_property
    def _index(self) -> LabelIndex:
        return LabelIndex(daemon.pod.metadata for daemon in self.daemons)

    @cached_property
    def _own_rules(self) -> tuple[tuple[Daemon, TopologyGroup], ...]:
        """The required anti-affinity of the DaemonSets' pods."""
        return tuple((d, group) for d in self.daemons for group in required_anti_affinities(d.pod, self.namespaces))

    @property
    def inverse_anti_affinities(self) -> tuple[InverseAntiAffinity, ...]:
        """The groups that these pods' anti-affinity excludes, wherever they run."""
        return tuple(InverseAntiAffinity(group=group, domains=frozenset()) for _, group in self._own_rules)

    def counted_by(self, groups: Iterable[TopologyGroup]) -> tuple[Daemon, ...]:
        """Return the DaemonSets whose pods one of these groups counts, in order."""
        if not self.daemons:
            return ()
        positions = {position for group in groups for position in self._index.counted_by(group)}
        return tuple(self.daemons[position] for position in sorted(positions))

    def with_rules(self, levels: Sequence[PodClass]) -> tuple[PodClass, ...]:
        """Return a class's relaxation levels with the rules about these pods: one or two rows for each level."""
        return tuple(row for level in levels for row in self._rows(level)) if self.daemons else tuple(levels)

    def blocking(self, row: PodClass) -> str:
        """Return the rules about these pods that restrict a row on new nodes, as text; empty if there are none."""
        apart = (
            f"its pod anti-affinity over {group.key} to {group.in_words} keeps it off nodes of {daemons}"
            for group in row.anti_affinities
            if (daemons := _names(self.counted_by((group,))))
        )
        theirs = (
            f"the pod anti-affinity over {group.key} of {_names((daemon,))} keeps it off that DaemonSet's nodes"
            for daemon, group in self._own_rules
            if group.counts(row.namespace, row.labels)
        )
        joined = (
            f"its pod affinity over {group.key} to {group.in_words} is met on nodes of {daemons} only, and it accepts "
            "no new one of them"
            for group in row.affinities
            if (daemons := _names(self.counted_by((group,))))
        )
        return "; ".join((*apart, *theirs, *joined))

    def _rows(self, level: PodClass) -> Iterator[PodClass]:
        apart = self._apart(level)
        row = level if apart == (EMPTY,) else replace(level, launch_terms=apart)
        yield row
        joined = {group.id: with_it for group in level.affinities if (with_it := self._joining(group))}
        terms = _combined([apart, *joined.values()])
        if joined and terms:
            others = tuple(group for group in level.affinities if group.id not in joined)
            yield replace(row, affinities=others, launch_terms=terms, launch_only=True)

    def _joining(self, group: TopologyGroup) -> tuple[Requirements, ...]:
        """Return the requirements of a new node that runs a pod of the group, as alternatives; empty if none does."""
        found = self._joining_by_group.get(group.id)
        if found is None:
            labelled = self._with_label(group.key)
            terms = (term & labelled for daemon in self.counted_by((group,)) for term in self._running(daemon))
            found = self._joining_by_group[group.id] = _without_contradictions(terms)
        return found

    def _with_label(self, key: str) -> Requirements:
        """Return the requirement that a new node has this label; empty if each has it."""
        if key == labels.HOSTNAME or all(template.table.settles(key) for template in self.templates):
            return EMPTY
        return Requirements({key: requirement(key, "Exists")})

    def _apart(self, level: PodClass) -> tuple[Requirements, ...]:
        """Return the requirements of a new node on which no rule keeps the pods apart from a DaemonSet's pod."""
        own = ((d, group) for group in level.anti_affinities for d in self.counted_by((group,)))
        theirs = ((d, group) for d, group in self._own_rules if group.counts(level.namespace, level.labels))
        cases = {(d.name, d.namespace, group.key): self._avoiding(d, group.key) for d, group in (*own, *theirs)}
        return _combined([alternatives for _, alternatives in sorted(cases.items(), key=lambda case: case[0])])

    def _running(self, daemon: Daemon) -> tuple[Requirements, ...]:
        """Return the requirements of a new node that runs the DaemonSet's pod."""
        where = self._pools_running(daemon)
        if not where:
            return ()
        everywhere = len(where) == len(self.templates)
        pools = EMPTY if everywhere else Requirements({labels.NODEPOOL: requirement(labels.NODEPOOL, "In", where)})
        return tuple(
            Requirements({key: r for key, r in term.items() if not self._is_implied(r)}) & pools
            for term in daemon.terms
        )

    def _is_implied(self, wanted: Requirement) -> bool:
        """Whether every new node meets the requirement."""
        return all(
            _is_within(template.requirements.get(wanted.key), wanted)
            or all(_is_within(offered, wanted) for offered in template.table.row_requirements(wanted.key)[1])
            for template in self.templates
        )

    def _avoiding(self, daemon: Daemon, key: str) -> tuple[Requirements, ...]:
        """Return the requirements of a new node without the DaemonSet's pod, or without the label `key`."""
        if (daemon, key) in self._avoiding_by_case:
            return self._avoiding_by_case[daemon, key]
        where = self._pools_running(daemon)
        elsewhere = [t.name for t in self.templates if t.name not in where]
        others = [Requirements({labels.NODEPOOL: requirement(labels.NODEPOOL, "In", elsewhere)})] if elsewhere else []
        lacking = [] if key == labels.HOSTNAME else [Requirements({key: requirement(key, "DoesNotExist")})]
        possible = [term for term in daemon.terms if not any(r.impossible for r in term.values())]
        unmet = _combined(
            [[Requirements({r.key: r}) for w in term.values() for r in opposites(w)] for term in possible]
        )
        self._avoiding_by_case[daemon, key] = (*others, *unmet, *lacking) if where else (EMPTY,)
        return self._avoiding_by_case[daemon, key]

    def _pools_running(self, daemon: Daemon) -> tuple[str, ...]:
        return tuple(template.name for template in self.templates if runs_on(template, daemon))


def _names(daemons: Sequence[Daemon]) -> str:
    names = " and ".join(f"DaemonSet {d.namespace}/{d.name}" for d in daemons[:_NAMED])
    return f"{names} and {len(daemons) - _NAMED} others" if len(daemons) > _NAMED else names


def opposites(wanted: Requirement) -> tuple[Requirement, ...]:
    """Return the requirements, as alternatives, of the nodes that do not meet a requirement.

    Those whose label has to be a number, and is none, are left out.
    """
    if not wanted.complement:
        if not wanted.values:  # DoesNotExist, or a contradiction
            return (requirement(wanted.key, "Exists"),)
        return (requirement(wanted.key, "NotIn", wanted.values),)
    found = [requirement(wanted.key, "In", wanted.values)] if wanted.values else []
    if wanted.lower is not None:
        found.append(requirement(wanted.key, "Lt", (str(wanted.lower),)))
    if wanted.upper is not None:
        found.append(requirement(wanted.key, "Gt", (str(wanted.upper),)))
    return (*found, requirement(wanted.key, "DoesNotExist")) if wanted.present else tuple(found)


def _is_within(offered: Requirement | None, wanted: Requirement) -> bool:
    """Whether each value that a label may get meets a requirement."""
    return offered is not None and offered.present and not offered.complement and all(map(wanted.has, offered.values))


def _combined(cases: Sequence[Collection[Requirements]]) -> tuple[Requirements, ...]:
    """Return the alternatives that meet one of each case, without contradictions; without cases, `EMPTY`."""
    found: tuple[Requirements, ...] = (EMPTY,)
    for case in cases:
        found = _without_contradictions(term & more for term, more in product(found, case))[:_MOST_ALTERNATIVES]
    return found


def _without_contradictions(terms: Iterable[Requirements]) -> tuple[Requirements, ...]:
    """Return the distinct terms that a node can meet; only the empty one if it is among them."""
    distinct = dict.fromkeys(term for term in terms if not any(r.impossible for r in term.values()))
    return (EMPTY,) if EMPTY in distinct else tuple(distinct)
