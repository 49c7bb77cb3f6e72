"""Commands that have not ended: which nodes they name, which they took, which are as good as deleted.

All of it is read from the NodeDisruptions and from the DisruptionReason condition on the claims they took.
"""

from __future__ import annotations

from typing import Final

from journeyman.core.api.conditions import DISRUPTION_REASON
from journeyman.core.api.node_disruption import NodeDisruption
from journeyman.core.api.objects import NodeClaim, is_true
from journeyman.core.state import Snapshot, StateNode

PROPOSED: Final = "Proposed"
EXECUTING: Final = "Executing"


def active(snapshot: Snapshot) -> tuple[NodeDisruption, ...]:
    """Commands that have not ended, by name."""
    return tuple(d for d in snapshot.node_disruptions if not d.finished)


def under_way(snapshot: Snapshot) -> frozenset[str]:
    """Claims that some active command names: they are no candidates of another."""
    return frozenset(name for d in active(snapshot) for name in d.claims)


def marked_for_deletion(snapshot: Snapshot) -> frozenset[str]:
    """Claims that are as good as deleted: taken by an Executing command whose replacements all exist.

    Not before: pods of marked nodes are planned for, and without the replacements they would get nodes twice.
    """
    ready = (d for d in active(snapshot) if d.status.phase == EXECUTING and not missing(d, snapshot))
    return frozenset(n.claim.metadata.name for d in ready for n in taken(d, snapshot) if n.claim is not None)


def spared(snapshot: Snapshot) -> frozenset[str]:
    """Claims that a command took and will let go of, as a replacement is lost: their pods stay where they are.

    Until that command is rolled back the nodes carry its taint, which says otherwise.
    """
    lost = (d for d in active(snapshot) if d.status.phase == EXECUTING and missing(d, snapshot))
    nodes = (n for d in lost for n in taken(d, snapshot) if not n.deleting)
    return frozenset(n.claim.metadata.name for n in nodes if n.claim is not None)


def taken(disruption: NodeDisruption, snapshot: Snapshot) -> tuple[StateNode, ...]:
    """The candidates that the command has marked as its own and that still exist."""
    return tuple(n for n in still_there(disruption, snapshot) if is_true(n.conditions, DISRUPTION_REASON))


def still_there(disruption: NodeDisruption, snapshot: Snapshot) -> tuple[StateNode, ...]:
    """The candidates that exist, whether the command took them or not."""
    nodes = (snapshot.state_nodes_by_claim.get(c.node_claim) for c in disruption.spec.candidates)
    uids = {c.node_claim: c.node_claim_uid for c in disruption.spec.candidates}
    return tuple(n for n in nodes if n is not None and n.claim and n.claim.metadata.uid == uids[n.claim.metadata.name])


def missing(disruption: NodeDisruption, snapshot: Snapshot) -> tuple[str, ...]:
    """Replacements that do not exist, or are on their way out."""
    claims = snapshot.claims_by_name
    names = (r.name for r in disruption.spec.replacements)
    return tuple(n for n in names if n not in claims or claims[n].metadata.deletion_timestamp is not None)


def replacements(disruption: NodeDisruption, snapshot: Snapshot) -> tuple[NodeClaim, ...]:
    """The replacements' claims; call it when none is missing."""
    return tuple(snapshot.claims_by_name[r.name] for r in disruption.spec.replacements)
