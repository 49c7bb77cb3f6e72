"""Gauges of pending pods: how many are ignored, and the zones that the others allow.

Restates: karpenter pkg/controllers/provisioning/provisioner.go `GetPendingPods`,
pkg/controllers/provisioning/scheduling/scheduler.go `computeEffectiveZoneFromPod`, `volumeZoneReq`.
Differs: every term of a node affinity counts, not the first only. Topology spread and pod affinity are left to the
scheduler.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import product
from typing import Final

from journeyman.core.api import labels
from journeyman.core.api.objects import Pod
from journeyman.core.plan import Observation
from journeyman.core.scheduling.pod_classes import encode, requirement_terms
from journeyman.core.scheduling.pod_validation import opted_out
from journeyman.core.scheduling.requirements import InvalidRequirementError, Requirements
from journeyman.core.scheduling.results import Results
from journeyman.core.scheduling.volumes import StorageObjects, resolve_volumes
from journeyman.core.state import Snapshot
from journeyman.core.state.pod_predicates import is_provisionable, is_virtual_pod
from journeyman.core.state.skipped_objects import SkippedObject, evaluate

FLEXIBLE: Final = "flexible"
NONE: Final = "none"
_CONTROLLER: Final = "provisioner"
_IGNORED: Final = frozenset({"invalid"})


def pending_gauges(snapshot: Snapshot, results: Results) -> Iterator[Observation]:
    """Yield the number of ignored pods (no NodePool can run them), and of the others by zone."""
    waiting = [pod for pod in snapshot.pods if is_provisionable(pod) and not is_virtual_pod(pod)]
    ignored = {pod.key for pod in waiting if opted_out(pod)}
    ignored |= {key for key, error in results.pod_errors.items() if error.kind in _IGNORED}
    number = float(sum(pod.key in ignored for pod in waiting))
    yield Observation(name="karpenter_scheduler_ignored_pods_count", value=number, kind="gauge")
    unreached = {key for key, error in results.pod_errors.items() if error.kind == "unreached"}
    zones = effective_zones((pod for pod in waiting if pod.key not in ignored | unreached), snapshot)
    for zone, count in sorted(zones.items()):
        yield Observation(
            name="karpenter_scheduler_pending_pods_by_effective_zone_count",
            value=float(count),
            labels={"controller": _CONTROLLER, "zone": zone},
            kind="gauge",
        )


def effective_zones(pods: Iterable[Pod], snapshot: Snapshot) -> Counter[str]:
    """Return the number of pods by the only zone that they allow; `flexible` for several zones, `none` for none."""
    storage = StorageObjects.of(snapshot)
    cache: dict[bytes, str] = {}

    def zone_of(pod: Pod) -> str:
        affinity = pod.spec.affinity
        if not pod.spec.node_selector and not pod.spec.volumes and affinity is None:
            return FLEXIBLE  # most pods
        if pod.spec.volumes:
            return _zone(pod, storage)
        key = encode((pod.spec.node_selector, affinity.node_affinity if affinity is not None else None))
        if key not in cache:
            cache[key] = _zone(pod, storage)
        return cache[key]

    found = (evaluate(pod, zone_of, pod) for pod in pods)
    return Counter(NONE if isinstance(zone, SkippedObject) else zone for zone in found)


def _zone(pod: Pod, storage: StorageObjects) -> str:
    volumes = resolve_volumes(pod, storage)
    if isinstance(volumes, str):
        return NONE
    try:
        requirements = requirement_terms(pod)
    except InvalidRequirementError:
        return NONE
    return _zone_label([requirement & volume for requirement, volume in product(requirements, volumes.terms)])


def _zone_label(alternatives_: Iterable[Requirements]) -> str:
    """Return the zones of all alternatives as one label value."""
    zones: set[str] = set()
    for requirements in alternatives_:
        zone = requirements.get(labels.ZONE)
        if any(requirement.impossible for requirement in requirements.values()):
            continue
        if zone is None or zone.complement:
            return FLEXIBLE
        zones |= zone.values
    return next(iter(zones), NONE) if len(zones) < 2 else FLEXIBLE
