"""What DaemonSets will take of every node.

Restates: karpenter pkg/controllers/provisioning/scheduling/scheduler.go `getDaemonOverhead`, `isDaemonPodCompatible`.
Differs: a DaemonSet is represented by its template, not by its newest pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from journeyman.core.api import labels
from journeyman.core.api.objects import DaemonSet, Pod, Toleration
from journeyman.core.api.resources import add, pod_requests
from journeyman.core.scheduling.classes import requirement_terms
from journeyman.core.scheduling.offers import Bools, Ints
from journeyman.core.scheduling.pods import is_owned_by_daemon_set
from journeyman.core.scheduling.requirements import InvalidRequirementError, Requirements, from_labels
from journeyman.core.scheduling.taints import untolerated
from journeyman.core.scheduling.templates import Template
from journeyman.core.state.snapshot import StateNode
from journeyman.errors import InvalidQuantityError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Daemon:
    """One DaemonSet's pod: what it asks for and where it runs (one of `terms` must hold)."""

    name: str
    requests: Mapping[str, int]
    tolerations: tuple[Toleration, ...]
    terms: tuple[Requirements, ...]


def make_daemons(daemon_sets: Iterable[DaemonSet]) -> tuple[Daemon, ...]:
    """Daemons in the order given; one whose quantities or requirements do not parse could not run, and is left out."""
    daemons: list[Daemon] = []
    for daemon_set in daemon_sets:
        template = daemon_set.spec.template
        pod = Pod(metadata=template.metadata, spec=template.spec)
        try:
            requests, terms = pod_requests(pod), requirement_terms(pod)
        except (InvalidQuantityError, InvalidRequirementError):
            continue
        name, tolerations = daemon_set.metadata.name, template.spec.tolerations
        daemons.append(Daemon(name=name, requests=requests, tolerations=tolerations, terms=terms))
    return tuple(daemons)


def daemon_overhead(template: Template, daemons: Sequence[Daemon], axes: Sequence[str]) -> Ints:
    """What daemons take of each instance type: amounts by type (rows) and resource in `axes` (columns)."""
    overhead = np.zeros((len(template.table.types), len(axes)), dtype=np.int64)
    for daemon in daemons:
        if untolerated(template.pool.spec.template.spec.taints, daemon.tolerations) is None:
            amounts = np.array([daemon.requests.get(axis, 0) for axis in axes], dtype=np.int64)
            overhead += _types_running(template, daemon)[:, None] * amounts
    return overhead


def _types_running(template: Template, daemon: Daemon) -> Bools:
    """The types whose nodes would run this daemon; OR-terms are tried one by one."""
    running: Bools = np.zeros(len(template.table.types), dtype=bool)
    for term in daemon.terms:
        if template.requirements.compatible(term, allow_undefined=labels.WELL_KNOWN) is None:
            running |= template.table.types_meeting(term)
    return running


def missing_daemon_overhead(node: StateNode, daemons: Sequence[Daemon]) -> dict[str, int]:
    """What daemons that belong on this node but do not run there yet will still take, by resource."""
    offered = from_labels(node.labels)
    expected = add(
        *(
            daemon.requests
            for daemon in daemons
            if untolerated(node.taints, daemon.tolerations) is None
            and any(offered.compatible(term) is None for term in daemon.terms)
        )
    )
    running = add(*(pod_requests(pod) for pod in node.pods if is_owned_by_daemon_set(pod)))
    return {name: max(amount - running.get(name, 0), 0) for name, amount in expected.items()}
