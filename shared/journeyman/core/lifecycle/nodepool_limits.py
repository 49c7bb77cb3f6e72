"""NodePool limits: whether the claims that are about to be launched stay within them, all claims counted.

Steps plan side by side, each within the limits as far as it knew when it began, and a run that was frozen may open what
fitted long ago. So each claim is an intent that all can see, and once it is written, before anything is launched, the
claims are read again:

======================================  ==============================================================================
all claims together are within limits   all are launched
they are not                            none of the pool's is: the younger ones that do not fit are withdrawn, which lets
                                        their pods be planned anew; the others wait until what is in their way is gone
======================================  ==============================================================================

That no launch goes beyond a limit follows: of all claims that were launched, take the one whose look was the last. The
others had been written before their own looks, so that look saw them all, each with the size of the largest instance type
that it may become. It takes one more list in runs that launch for a limited pool, and nothing in any other; a reservation
on the NodePool would take no list, but would stop an opening whenever anything else of the pool is written.

Nodes on their way out, or that a command takes, do not count, as everywhere: what takes their place stands beside them.

Restates: karpenter pkg/controllers/provisioning/provisioner.go `Create`, which looks at the limits once more.
Differs: Karpenter is one process, whose cluster state counts each claim as soon as it is created.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct

from journeyman.core.api.conditions import DISRUPTION_REASON
from journeyman.core.api.nodepool import NodePool
from journeyman.core.api.objects import NodeClaim, is_true
from journeyman.core.api.resources import Resources, add
from journeyman.core.catalogue import Catalogue
from journeyman.core.lifecycle.launch import is_pending, withdraw_nodeclaim
from journeyman.core.plan import Plan, Requeue, Step, chain_of, merge_plans
from journeyman.core.scheduling.limits import size_of
from journeyman.core.state import Snapshot, StateNode

RECHECK_INTERVAL: Final = timedelta(seconds=2)
"""Whose claims are in the way withdraws them as soon as it looks."""


class LimitsCheck(Struct, frozen=True, kw_only=True):
    """Claims that are not to be launched now, by name, and what becomes of them."""

    held: frozenset[str] = frozenset()
    plan: Plan = Plan()


def check_limits(names: Iterable[str], snapshot: Snapshot, catalogue: Catalogue) -> LimitsCheck:
    """Which of these claims may not be launched now.

    Args:
        names: Claims that are to be launched; those that do not exist are left out.
        snapshot: Nodes and pools, and all claims as they were read after the last of these was created.
        catalogue: How large instance types are.
    """
    asked: dict[str, set[str]] = {}
    for name in names:
        claim = snapshot.claims_by_name.get(name)
        pool = snapshot.state_nodes_by_claim[name].node_pool if claim is not None else ""
        if pool in snapshot.node_pools_by_name:
            asked.setdefault(pool, set()).add(name)
    held = {
        pool: waiting
        for pool in sorted(asked)
        if (waiting := _fit_of_claims(snapshot.node_pools_by_name[pool], asked[pool], snapshot, catalogue))
    }
    return LimitsCheck(
        held=frozenset(name for pool in held for name in asked[pool]),
        plan=merge_plans(_withdraw(pool, waiting, snapshot.now) for pool, waiting in held.items()),
    )


def _fit_of_claims(
    pool: NodePool, asked: set[str], snapshot: Snapshot, catalogue: Catalogue
) -> tuple[tuple[NodeClaim, bool], ...]:
    """The pool's claims that are asked for, each with whether it fits if the younger ones go; none if all fit together."""
    limits = pool.spec.limit_amounts
    if not limits:
        return ()
    name = pool.metadata.name
    types = catalogue.instance_types(name)
    counted = [(n, size_of(n, types)) for n in snapshot.state_nodes if n.node_pool == name and _counts(n)]
    if _within(add(*(size for _, size in counted)), limits):
        return ()
    found: list[tuple[NodeClaim, bool]] = []
    taken: Resources = {}
    for node, size in sorted(counted, key=lambda entry: _age(entry[0])):
        fits = _within(add(taken, size), limits)
        if fits or not _is_undecided(node):
            taken = add(taken, size)
        if node.claim is not None and node.claim.metadata.name in asked:
            found.append((node.claim, fits))
    return tuple(found)


def _counts(node: StateNode) -> bool:
    return not node.is_being_disrupted and not is_true(node.conditions, DISRUPTION_REASON)


def _is_undecided(node: StateNode) -> bool:
    return node.claim is not None and node.node is None and is_pending(node.claim)


def _age(node: StateNode) -> tuple[bool, str, str]:
    """Those that stand, then those that are to be launched, the oldest first; all runs see them in the same order."""
    claim = node.claim
    if claim is None or not _is_undecided(node):
        return False, "", node.name
    return True, str(claim.metadata.creation_timestamp), claim.metadata.uid


def _within(amounts: Mapping[str, int], limits: Resources) -> bool:
    return all(amounts.get(resource, 0) <= limit for resource, limit in limits.items())


def _withdraw(pool: str, waiting: tuple[tuple[NodeClaim, bool], ...], now: datetime) -> Plan:
    why = f"the NodeClaims created meanwhile would exceed the limits of NodePool {pool}"
    chains = [withdraw_nodeclaim(claim, "LimitsExceeded", why, now) for claim, fits in waiting if not fits]
    if any(fits for _, fits in waiting):
        look = Requeue(
            step=Step.PROVISION, at=now + RECHECK_INTERVAL, reason=f"NodePool {pool} waits for claims to be withdrawn"
        )
        chains.append(chain_of(f"NodePool {pool}", look))
    notes = tuple(
        f"NodeClaim {claim.metadata.name} {'waits' if fits else 'is withdrawn'}: {why}" for claim, fits in waiting
    )
    return Plan(chains=tuple(chains), notes=notes)
