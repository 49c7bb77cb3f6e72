"""NodePool limits: checks before a launch that all NodeClaims of the NodePool together are within its limits.

Runs of several steps overlap, each within the limits as it read them, and a frozen run may create NodeClaims that fitted when
it decided. So a run first creates its NodeClaims, then lists all NodeClaims again, and only then launches:

=====================================  ================================================================================
all NodeClaims are within the limits   all are launched
they are not                           none of the NodePool's is: the youngest that do not fit are deleted, and their
                                       pods are scheduled again; the others wait for a run to delete those in their way
=====================================  ================================================================================

So no launch exceeds a limit: when the last of all launched NodeClaims was checked, the others existed, and each counted with
the largest instance type that it may get. This costs one more list in a run that launches for
a NodePool with limits. A reservation on the NodePool would cost none, but would conflict with every other write to it.

Nodes that are being disrupted or terminated do not count, as in scheduling: their replacements run beside them.

Restates: karpenter pkg/controllers/provisioning/provisioner.go `Create`, which checks the limits before it creates a NodeClaim.
Differs: Karpenter is one process, whose cluster state counts each NodeClaim as soon as it is created.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from msgspec import Struct

from journeyman.core.api.nodepool import NodePool
from journeyman.core.api.objects import NodeClaim
from journeyman.core.api.resources import Resources, add
from journeyman.core.catalogue import Catalogue
from journeyman.core.lifecycle.launch import is_pending, withdraw_nodeclaim
from journeyman.core.plan import Plan, Requeue, Step, chain_of, merge_plans
from journeyman.core.scheduling.limits import size_of
from journeyman.core.state import Snapshot, StateNode
from journeyman.core.state.state_node import one_per_instance

RECHECK_INTERVAL: Final = timedelta(seconds=2)
"""How soon to check again: by then the run that created NodeClaims beyond the limits has deleted them."""


class _CheckedClaim(NamedTuple):
    """A NodeClaim to launch, and whether it is within the limits without the younger ones."""

    claim: NodeClaim
    fits: bool


class LimitsCheck(Struct, frozen=True, kw_only=True):
    """The names of NodeClaims that may not be launched now, and the plan that deletes them or checks them again."""

    blocked: frozenset[str] = frozenset()
    plan: Plan = Plan()


def check_limits(names: Iterable[str], snapshot: Snapshot, catalogue: Catalogue) -> LimitsCheck:
    """Return which of these NodeClaims may not be launched now.

    Args:
        names: NodeClaims to launch; those that do not exist are ignored.
        snapshot: Nodes, NodePools, and all NodeClaims, listed after the last of `names` was created.
        catalogue: The sizes of instance types.
    """
    to_launch: dict[str, set[str]] = {}
    for name in names:
        claim = snapshot.claims_by_name.get(name)
        pool = snapshot.state_nodes_by_claim[name].node_pool if claim is not None else ""
        if pool in snapshot.node_pools_by_name:
            to_launch.setdefault(pool, set()).add(name)
    exceeded = {
        pool: checked
        for pool in sorted(to_launch)
        if (checked := _check_node_pool(snapshot.node_pools_by_name[pool], to_launch[pool], snapshot, catalogue))
    }
    return LimitsCheck(
        blocked=frozenset(name for pool in exceeded for name in to_launch[pool]),
        plan=merge_plans(_withdraw(pool, checked, snapshot.now) for pool, checked in exceeded.items()),
    )


def _check_node_pool(
    pool: NodePool, to_launch: set[str], snapshot: Snapshot, catalogue: Catalogue
) -> tuple[_CheckedClaim, ...]:
    """Return the NodeClaims to launch, checked one after the other; nothing if all nodes together are within the limits."""
    limits = pool.spec.limit_amounts
    if not limits:
        return ()
    name = pool.metadata.name
    types = catalogue.instance_types(name)
    staying = one_per_instance(n for n in snapshot.state_nodes if n.node_pool == name and not n.is_leaving)
    sizes = [(n, size_of(n, types)) for n in staying]
    if _within(add(*(size for _, size in sizes)), limits):
        return ()
    checked: list[_CheckedClaim] = []
    used: Resources = {}
    for node, size in sorted(sizes, key=lambda entry: _age(entry[0])):
        fits = _within(add(used, size), limits)
        if fits or not _is_unlaunched(node):
            used = add(used, size)
        if node.claim is not None and node.claim.metadata.name in to_launch:
            checked.append(_CheckedClaim(node.claim, fits))
    return tuple(checked)


def _is_unlaunched(node: StateNode) -> bool:
    return node.claim is not None and node.node is None and is_pending(node.claim)


def _age(node: StateNode) -> tuple[bool, str, str]:
    """Return the sort key: launched nodes first, then NodeClaims by age; the same order in all runs."""
    claim = node.claim
    if claim is None or not _is_unlaunched(node):
        return False, "", node.name
    return True, str(claim.metadata.creation_timestamp), claim.metadata.uid


def _within(amounts: Mapping[str, int], limits: Resources) -> bool:
    return all(amounts.get(resource, 0) <= limit for resource, limit in limits.items())


def _withdraw(pool: str, checked: tuple[_CheckedClaim, ...], now: datetime) -> Plan:
    """Delete the NodeClaims that do not fit; requeue for the others."""
    why = f"the NodeClaims created meanwhile would exceed the limits of NodePool {pool}"
    chains = [withdraw_nodeclaim(claim, "LimitsExceeded", why, now) for claim, fits in checked if not fits]
    if any(fits for _, fits in checked):
        requeue = Requeue(
            step=Step.PROVISION,
            at=now + RECHECK_INTERVAL,
            reason=f"NodePool {pool} waits for the deletion of NodeClaims",
        )
        chains.append(chain_of(f"NodePool {pool}", requeue))
    notes = tuple(
        f"NodeClaim {claim.metadata.name} {'waits' if fits else 'is deleted'}: {why}" for claim, fits in checked
    )
    return Plan(chains=tuple(chains), notes=notes)
