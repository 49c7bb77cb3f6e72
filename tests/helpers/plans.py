"""Builders for valid plans, of which a test breaks one constraint."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from journeyman.core.api import labels
from journeyman.core.api.objects import NodeSelectorRequirement, OfferingKey, Pod
from journeyman.core.api.resources import total_requests
from journeyman.core.catalogue import Catalogue, InstanceType
from journeyman.core.scheduling.results import PlannedClaim, PodError, Results
from journeyman.core.scheduling.verify import verify
from journeyman.core.state import Snapshot
from journeyman_simulator.judge import judge
from tests.helpers.builders import POOL

ERROR = PodError(kind="unschedulable", message="no place")


def a_planned_claim(*pods: Pod, types: Sequence[InstanceType], pool: str = POOL, **pins: str) -> PlannedClaim:
    """Return a new node for these pods, of any of the types, with labels (`zone="a"`, `team="red"`) and a valid price."""
    wanted = {_KEYS.get(name, name): value for name, value in pins.items()}
    offers = sorted(
        ((o.price, t.name, o.zone, o.capacity_type) for t in types for o in t.offerings if _suits(o, wanted)),
    )
    named = tuple(dict.fromkeys(name for _, name, _, _ in offers))
    requirements = [NodeSelectorRequirement(key=k, operator="In", values=(v,)) for k, v in sorted(wanted.items())]
    requirements.append(NodeSelectorRequirement(key=labels.INSTANCE_TYPE, operator="In", values=named))
    return PlannedClaim(
        node_pool=pool,
        pods=tuple(sorted(pod.key for pod in pods)),
        instance_types=named,
        requirements=tuple(requirements),
        requests=total_requests(pods),
        offering=OfferingKey(*offers[0][1:]),
        price=offers[0][0],
    )


_KEYS = {"zone": labels.ZONE, "capacity_type": labels.CAPACITY_TYPE}


def _suits(offering: Any, wanted: dict[str, str]) -> bool:
    said = {labels.ZONE: offering.zone, labels.CAPACITY_TYPE: offering.capacity_type}
    return bool(offering.available) and all(wanted.get(key, value) == value for key, value in said.items())


def a_plan(*claims: PlannedClaim, without: Iterable[Pod] = (), **existing: Sequence[Pod]) -> Results:
    """Return a plan of new nodes and pods on existing nodes (`node_a=[pod]` is node `node-a`); pods `without` a node have errors."""
    return Results(
        new_claims=claims,
        existing={name.replace("_", "-"): tuple(pod.key for pod in pods) for name, pods in existing.items()},
        pod_errors={pod.key: ERROR for pod in without},
        price=sum(claim.price for claim in claims),
    )


def objections(
    snapshot: Snapshot, catalogue: Catalogue, results: Results, *, is_certain: bool = True, **options: Any
) -> str:
    """Return the judge's defects of a plan as one text.

    The production check finds some as well if the plan is certainly wrong, and none otherwise.
    """
    found = judge(snapshot, catalogue, results, **options)
    reported = verify(snapshot, catalogue, results, **options)
    assert bool(reported) is (bool(found) and is_certain), f"the judge finds {found}, the check {reported}"
    return "\n".join(map(str, found))
