"""Hydration: what every claim of ours carries is put on where it is missing, and back on where somebody took it off.

Restates: karpenter pkg/controllers/nodeclaim/hydration/controller.go, pkg/controllers/nodeclaim/lifecycle/controller.go
`Reconcile` (the finalizer).
Differs: a provider id that was edited is put back, too, from the node that belongs to the claim.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import msgspec
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import NodeClaim
from journeyman.core.lifecycle.progress import Progress, claim_ref, with_metadata
from journeyman.core.plan import Event, Plan
from journeyman.core.state import StateNode


def hydrated(claim: NodeClaim) -> NodeClaim:
    """The claim with the termination finalizer and its NodeClass label, which must be there before a launch."""
    ref = claim.spec.node_class_ref
    class_label = {f"{ref.group}/{ref.kind.lower()}": ref.name}
    finalizers = claim.metadata.finalizers
    if labels.TERMINATION_FINALIZER not in finalizers:
        finalizers += (labels.TERMINATION_FINALIZER,)
    return with_metadata(claim, finalizers=finalizers, labels={**class_label, **claim.metadata.labels})


def hydrate(claim: NodeClaim, state: StateNode, now: datetime) -> Plan:
    """Make a claim that has become a node whole again; nothing if it is.

    Args:
        claim: The claim, initialized and not being deleted.
        state: The same with its node.
        now: The time.
    """
    whole = hydrated(claim)
    if state.node is not None:
        whole = msgspec.structs.replace(
            whole, status=msgspec.structs.replace(whole.status, provider_id=state.provider_id)
        )
    restored = tuple(_restored(claim, whole))
    progress = replace(Progress.of(claim, now), claim=whole)
    if restored:
        text = f"Put back what was taken off or changed: {', '.join(restored)}"
        progress = progress.told(Event(ref=claim_ref(claim), reason="Restored", message=text, type="Warning"))
    chain = progress.chain(why="it is not as we made it")
    return Plan(chains=(chain,)) if chain.actions else Plan()


def _restored(before: NodeClaim, after: NodeClaim) -> Iterator[str]:
    """What only a hand can have changed; the label may be missing as Karpenter did not set it once."""
    if before.metadata.finalizers != after.metadata.finalizers:
        yield f"finalizer {labels.TERMINATION_FINALIZER}"
    if before.status.provider_id != after.status.provider_id:
        yield f"provider id {after.status.provider_id}"
