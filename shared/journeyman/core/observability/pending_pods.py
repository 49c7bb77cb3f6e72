"""Pods without a node as gauges: how many are left out, and which zones are open to the others.

Restates: karpenter pkg/controllers/provisioning/provisioner.go `GetPendingPods`,
pkg/controllers/provisioning/scheduling/scheduler.go `computeEffectiveZoneFromPod`, `volumeZoneReq`.
Differs: every alternative of a node affinity counts, not the first alone; what spreads and other pods leave is the plan's
to find, and not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import product
from typing import Final

from journeyman.core.api import labels
from journeyman.core.api.objects import Pod
from journeyman.core.plan import Observation
from journeyman.core.scheduling.capacity_buffers import is_virtual_pod
from journeyman.core.scheduling.pod_classes import alternatives
from journeyman.core.scheduling.pod_validation import opted_out, required_terms
from journeyman.core.scheduling.requirements import InvalidRequirementError, Requirements
from journeyman.core.scheduling.results import Results
from journeyman.core.scheduling.volumes import StorageObjects, resolve_volumes
from journeyman.core.state import Snapshot
from journeyman.core.state.pod_predicates import is_provisionable

FLEXIBLE: Final = "flexible"
NONE: Final = "none"
_CONTROLLER: Final = "provisioner"
_IGNORED: Final = frozenset({"invalid"})


def pending_gauges(snapshot: Snapshot, results: Results) -> Iterator[Observation]:
    """How many pods are left out (they want none of our nodes, or what cannot be), and the others by zone."""
    waiting = [pod for pod in snapshot.pods if is_provisionable(pod) and not is_virtual_pod(pod)]
    out = {pod.key for pod in waiting if opted_out(pod)}
    out |= {key for key, error in results.pod_errors.items() if error.kind in _IGNORED}
    ignored = float(sum(pod.key in out for pod in waiting))
    yield Observation(name="karpenter_scheduler_ignored_pods_count", value=ignored, kind="gauge")
    zones = effective_zones((pod for pod in waiting if pod.key not in out), snapshot)
    for zone, number in sorted(zones.items()):
        yield Observation(
            name="karpenter_scheduler_pending_pods_by_effective_zone_count",
            value=float(number),
            labels={"controller": _CONTROLLER, "zone": zone},
            kind="gauge",
        )


def effective_zones(pods: Iterable[Pod], snapshot: Snapshot) -> Counter[str]:
    """How many pods may run in one zone alone, by its name; in several (`flexible`); in none (`none`)."""
    storage = StorageObjects.of(snapshot)
    return Counter(_zone(pod, storage) for pod in pods)


def _zone(pod: Pod, storage: StorageObjects) -> str:
    affinity = pod.spec.affinity
    if not pod.spec.node_selector and not pod.spec.volumes and affinity is None:
        return FLEXIBLE  # most pods
    places = resolve_volumes(pod, storage)
    if isinstance(places, str):
        return NONE
    try:
        wishes = alternatives(pod.spec.node_selector, required_terms(affinity))
    except InvalidRequirementError:
        return NONE
    return _named([wish & place for wish, place in product(wishes, places.terms)])


def _named(ways: Iterable[Requirements]) -> str:
    """What the zones of all that would do come to."""
    zones: set[str] = set()
    for way in ways:
        wanted = way.get(labels.ZONE)
        if any(requirement.impossible for requirement in way.values()):
            continue
        if wanted is None or wanted.complement:
            return FLEXIBLE
        zones |= wanted.values
    return next(iter(zones), NONE) if len(zones) < 2 else FLEXIBLE
