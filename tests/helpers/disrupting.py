"""The disruption controller on a snapshot, for tests: what its methods find, as Karpenter's suites ask for it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.model import parse
from journeyman.core.api.node_disruption import Method, NodeDisruption
from journeyman.core.api.nodepool import NodePool
from journeyman.core.api.objects import PodDisruptionBudget
from journeyman.core.catalogue import Catalogue
from journeyman.core.disruption.candidates import Candidate, find_candidates
from journeyman.core.disruption.churn_limits import ChurnSettings
from journeyman.core.disruption.commands import Command, to_node_disruption
from journeyman.core.disruption.consolidatable import Consolidatability
from journeyman.core.disruption.controller import DisruptionController
from journeyman.core.plan import Plan
from journeyman.core.state import Snapshot
from journeyman_simulator.judge import verify_strictly
from tests.helpers import builders
from tests.helpers.builders import NOW, budget_body, merge, stamp
from tests.helpers.fleets import TYPES, Member, a_catalogue, a_member

NONE: frozenset[str] = frozenset()
PROTECTED: dict[str, Any] = {"metadata": {"annotations": {labels.DO_NOT_DISRUPT: "true"}}}
"""Changes of a pod or node: it must not be disrupted."""
GRACE: dict[str, Any] = {"spec": {"terminationGracePeriod": "5m"}}
"""Changes of a NodeClaim: its drain ends."""
SOLD_OUT = tuple(replace(t, offerings=tuple(replace(o, available=False) for o in t.offerings)) for t in TYPES)
"""The usual instance types, of which no offering is available."""
UNLIMITED_CHURN = ChurnSettings(payback=timedelta(0), reversal_window=timedelta(0))
"""Karpenter's rules: any saving suffices, at any time."""


def a_roomy_member(**changes: Any) -> Member:
    """Return a large empty node that must not be disrupted."""
    return a_member("roomy", **{"size": "xl", "node": PROTECTED, **changes})


def a_pdb(name: str = "web", *, allowed: int = 0, **spec: Any) -> PodDisruptionBudget:
    """Return a PodDisruptionBudget of the pods with `app: web`, which allows no disruption now."""
    body = budget_body(name, **{"maxUnavailable": None, **spec})
    return msgspec.convert({**body, "status": {"disruptionsAllowed": allowed}}, PodDisruptionBudget)


def with_min_values(least: int, *, kind: str = labels.ON_DEMAND, **disruption: Any) -> NodePool:
    """Return a NodePool of this capacity type that needs so many instance types."""
    any_type = {"key": labels.INSTANCE_TYPE, "operator": "Exists", "minValues": least}
    of_kind = {"key": labels.CAPACITY_TYPE, "operator": "In", "values": [kind]}
    template = {"spec": {"requirements": [any_type, of_kind]}}
    return builders.a_pool(spec={"template": template, "disruption": disruption})


def a_controller(
    snapshot: Snapshot, *, catalogue: Catalogue | None = None, fresh: frozenset[str] = NONE, **options: Any
) -> DisruptionController:
    """Return a controller for which all NodeClaims are consolidatable, but those within their consolidateAfter (`fresh`)."""
    names = frozenset(c.metadata.name for c in snapshot.claims) - fresh
    consolidatability = Consolidatability(claims=names, within_window=fresh, next_at=None, plan=Plan())
    types = catalogue or a_catalogue(*(p.metadata.name for p in snapshot.node_pools))
    return DisruptionController(
        snapshot, types, consolidatability, **{"churn": UNLIMITED_CHURN, "verify": verify_strictly, **options}
    )


def controller_of(
    snapshot: Snapshot,
    *consolidatable: str,
    catalogue: Catalogue | None = None,
    fresh: frozenset[str] = NONE,
    **options: Any,
) -> DisruptionController:
    """Return a controller as the step makes it; only these NodeClaims are consolidatable."""
    types = catalogue or a_catalogue(*(p.metadata.name for p in snapshot.node_pools))
    names = frozenset(consolidatable)
    found = Consolidatability(claims=names, within_window=fresh, next_at=None, plan=Plan())
    return DisruptionController(snapshot, types, found, **options)


def candidates_of(snapshot: Snapshot, catalogue: Catalogue | None = None) -> dict[str, Candidate]:
    """Return the nodes that may be disrupted, by NodeClaim name, if all are consolidatable."""
    types = catalogue or a_catalogue(*(p.metadata.name for p in snapshot.node_pools))
    names = frozenset(c.metadata.name for c in snapshot.claims)
    found = find_candidates(snapshot, types, consolidatable=names, in_commands=NONE).candidates
    return {each.nodeclaim: each for each in found}


class Proposal(NamedTuple):
    """A command, and the method that found it."""

    method: Method
    command: Command


def first_evaluation(snapshot: Snapshot, **options: Any) -> Proposal | None:
    """Return the first command that a method finds; verification must accept it."""
    controller = a_controller(snapshot, **options)
    found = next((Proposal(e.method, e.commands[0]) for e in controller.evaluate_methods() if e.commands), None)
    assert found is None or controller.simulation.verify(found.command) == ()
    return found


def proposed(snapshot: Snapshot, **options: Any) -> tuple[str, list[str], list[tuple[str, ...]]] | None:
    """Return what is proposed: method, NodeClaims by name, and the instance types of each replacement."""
    found = first_evaluation(snapshot, **options)
    if found is None:
        return None
    command = found.command
    claims = sorted(c.nodeclaim for c in command.candidates)
    return found.method, claims, [r.instance_types for r in command.replacements]


def disruption_of(proposal: Proposal, **status: Any) -> NodeDisruption:
    """Return the NodeDisruption of a command, as the API server stores it."""
    created = to_node_disruption(proposal.command, proposal.method, NOW)
    meta = {"metadata": {"uid": "uid-d", "resourceVersion": "5", "creationTimestamp": stamp(NOW)}}
    return parse(NodeDisruption, merge(created.to_wire(), {**meta, "status": status}))
