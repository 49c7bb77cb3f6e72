"""Learned sizes: what nodes of an instance type really offer to pods, by NodeClass and image.

The catalogue can only estimate the memory that a hypervisor, a kernel and a kubelet keep. Each running node of ours shows it: the
least that was seen of CPU, memory, ephemeral storage and pods counts from then on, whether that is more or less than the
estimate. `OfferingState` stores it for 60 days, so that it outlives the last node.

A node is believed if it is the one that its NodeClaim names, is initialized, and reports no more than its machine can have
(`machine_size`); what it was launched with must be what its NodeClass has now. A NodeClaim keeps in its status what its type was
known to offer at its launch: that counts until its node has joined.

Restates: karpenter-provider-aws pkg/providers/instancetype/instancetype.go `UpdateInstanceTypeCapacityFromNode`,
pkg/controllers/providers/instancetype/capacity/controller.go.
Differs: Karpenter learns the memory that the operating system sees, in the memory of its process. Here it is what the node offers to
pods, of four resources, with the settings of the NodeClass that it depends on, in the cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final

from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.conditions import INITIALIZED, REGISTERED
from journeyman.core.api.duration import time_after
from journeyman.core.api.hashes import node_class_keys
from journeyman.core.api.objects import LearnedSize, Node, NodeClaim, is_true
from journeyman.core.api.resources import (
    CPU,
    EPHEMERAL_STORAGE,
    MEMORY,
    PODS,
    Resources,
    format_amount,
    to_resources,
)
from journeyman.core.api.wording import describe_amount
from journeyman.core.plan import Event, Observation, Plan, RecordLearnedSizes, chain_of, claim_ref, node_ref
from journeyman.core.state import NodeClassState, Snapshot
from journeyman.core.state.machine_size import excess
from journeyman.core.state.skipped_objects import SkippedObject, evaluate

KEPT_FOR: Final = timedelta(days=60)
"""How long a size is kept after it was last seen. Restates: karpenter-provider-aws pkg/cache/cache.go
`DiscoveredCapacityCacheTTL`."""
REFRESHED_AFTER: Final = timedelta(days=1)
"""How old the stored time of the last sight gets before it is written again."""
MAX_SIZES: Final = 500
"""Sizes of one NodeClass; those that were seen last are kept."""
_LEARNED: Final = (CPU, MEMORY, EPHEMERAL_STORAGE, PODS)


def known_sizes(snapshot: Snapshot) -> tuple[LearnedSize, ...]:
    """Return the stored sizes and those that the snapshot's nodes show, which hold for their NodeClass as it is now, by key."""
    settings = {c.name: c.hash for c in snapshot.node_classes}
    return with_seen_sizes(snapshot.learned_sizes, _seen_sizes(snapshot), settings, snapshot.now)


def with_seen_sizes(
    stored: Iterable[LearnedSize], seen: Iterable[LearnedSize], settings: Mapping[str, str], now: datetime
) -> tuple[LearnedSize, ...]:
    """Return the sizes after some were seen: of each key the least of each resource; without those that do not hold any more.

    Args:
        stored: Sizes so far.
        seen: Sizes of nodes that run now.
        settings: The hash of each NodeClass, by name.
        now: The time.

    Returns:
        By key; at most `MAX_SIZES` of each NodeClass.
    """
    found: dict[tuple[str, str, str], LearnedSize] = {}
    for size in (*stored, *seen):
        is_kept = time_after(min(size.last_seen, now), KEPT_FOR) > now
        if is_kept and size.settings and size.settings == settings.get(size.node_class):
            before = found.get(size.key)
            found[size.key] = size if before is None else _least(before, size)
    return tuple(size for name in sorted(settings) for size in _latest(found.values(), name))


def learn_sizes(snapshot: Snapshot) -> Plan:
    """Return a plan that stores what nodes have shown, and reports nodes that report more than their machine can have."""
    sizes, stored = known_sizes(snapshot), {size.key: size for size in snapshot.learned_sizes}
    chains, notes = [], []
    for node_class in snapshot.node_classes:
        own = tuple(size for size in sizes if size.node_class == node_class.name)
        notes += [_note(size, stored.get(size.key)) for size in own if _is_new(size, stored.get(size.key))]
        if any(_is_due(size, stored.get(size.key)) for size in own):
            record = RecordLearnedSizes(
                node_class=node_class.name, settings=node_class.hash, at=snapshot.now, sizes=own
            )
            chains.append(chain_of(f"sizes of {node_class.kind} {node_class.name}", record))
    return Plan(chains=tuple(chains), notes=tuple(notes)) + _report_excess(snapshot)


def _seen_sizes(snapshot: Snapshot) -> Iterator[LearnedSize]:
    classes = {(c.group, c.kind, c.name): c for c in snapshot.node_classes}
    for claim in snapshot.claims:
        ref = claim.spec.node_class_ref
        node_class = classes.get((ref.group, ref.kind, ref.name))
        node = own_node(claim, snapshot)
        if node_class is None or node is None or not is_true(claim.status.conditions, INITIALIZED):
            continue
        size = evaluate(node, _seen_size, claim, node, node_class, snapshot.now)
        if isinstance(size, LearnedSize):  # the scheduler reports a node that cannot be evaluated
            yield size


def own_node(claim: NodeClaim, snapshot: Snapshot) -> Node | None:
    """Return the node that a registered NodeClaim names in its status; None if another one has its instance's id, or it is leaving."""
    nodes = snapshot.nodes_by_provider_id.get(claim.status.provider_id, ())
    if len(nodes) != 1 or not is_true(claim.status.conditions, REGISTERED):
        return None
    [node] = nodes
    is_leaving = claim.metadata.deletion_timestamp is not None or node.metadata.deletion_timestamp is not None
    return None if is_leaving or node.metadata.name != claim.status.node_name else node


def _seen_size(claim: NodeClaim, node: Node, node_class: NodeClassState, now: datetime) -> LearnedSize | None:
    """Return what the node offers; None if it is not believed, or was launched with other settings."""
    keys = node_class_keys(node_class.group, node_class.kind)
    reported = to_resources(node.status.allocatable, round_up=False)
    allocatable = {name: reported[name] for name in _LEARNED if reported.get(name)}
    launched_with = claim.metadata.annotations.get(keys.hash, "")
    instance_type = claim.metadata.labels.get(labels.INSTANCE_TYPE, "")
    if not (allocatable and instance_type) or launched_with != node_class.hash or excess(reported, claim):
        return None
    return LearnedSize(
        node_class=node_class.name,
        instance_type=instance_type,
        image=claim.status.image_id,
        settings=launched_with,
        allocatable=allocatable,
        node=node.metadata.name,
        last_seen=now,
    )


def _least(before: LearnedSize, seen: LearnedSize) -> LearnedSize:
    """Return the lower amounts of two sizes of one key; it is seen again if no amount is larger than before."""
    known, shown = before.allocatable, seen.allocatable
    least = {name: min(known.get(name, amount), amount) for name, amount in {**known, **shown}.items() if name in shown}
    least = {**known, **least}
    is_less = any(least[name] < known.get(name, least[name] + 1) for name in least)
    is_seen = all(shown.get(name) == amount for name, amount in least.items())
    return replace(
        before,
        allocatable=least,
        node=seen.node if is_less else before.node,
        last_seen=max(seen.last_seen, before.last_seen) if is_less or is_seen else before.last_seen,
    )


def _latest(sizes: Iterable[LearnedSize], node_class: str) -> list[LearnedSize]:
    own = sorted((s for s in sizes if s.node_class == node_class), key=lambda s: (-s.last_seen.timestamp(), s.key))
    return sorted(own[:MAX_SIZES], key=lambda size: size.key)


def _is_new(size: LearnedSize, stored: LearnedSize | None) -> bool:
    return stored is None or (stored.settings, stored.allocatable) != (size.settings, size.allocatable)


def _is_due(size: LearnedSize, stored: LearnedSize | None) -> bool:
    """Whether the size is to be written: it is new, or was seen a day after the stored time."""
    return stored is None or _is_new(size, stored) or size.last_seen - stored.last_seen >= REFRESHED_AFTER


def _note(size: LearnedSize, stored: LearnedSize | None) -> str:
    image = f" with image {size.image}" if size.image else ""
    before = f", before {_amounts(stored.allocatable)}" if stored is not None else ""
    return f"{size.instance_type}{image} offers, as node {size.node} shows: {_amounts(size.allocatable)}{before}"


def _amounts(resources: Resources) -> str:
    return ", ".join(describe_amount(name, amount) for name, amount in sorted(resources.items()))


def _report_excess(snapshot: Snapshot) -> Plan:
    """Report nodes that report more than their machine can have; the metric is 0 while there are none."""
    events, number = [], 0
    for claim in snapshot.claims:
        for node in snapshot.nodes_by_provider_id.get(claim.status.provider_id, ()) if claim.status.provider_id else ():
            message = evaluate(node, _excess_message, claim, node)
            if isinstance(message, SkippedObject) or not message:
                continue
            number += 1
            refs = (node_ref(node), claim_ref(claim))
            events += [Event(ref=r, reason="AllocatableNotBelieved", message=message, type="Warning") for r in refs]
    gauge = Observation(name="journeyman_nodes_not_believed", value=float(number), kind="gauge")
    return Plan(events=tuple(events), observations=(gauge,))


def _excess_message(claim: NodeClaim, node: Node) -> str:
    reported = to_resources(node.status.allocatable, round_up=False)
    beyond = excess(reported, claim)
    if not beyond:
        return ""
    named = ", ".join(
        f"{format_amount(n, reported[n])} {n} where its instance type has {format_amount(n, beyond[n])}"
        for n in sorted(beyond)
    )
    return (
        f"Node {node.metadata.name} offers {named}; that is not used: it is planned with what NodeClaim "
        f"{claim.metadata.name} was launched with, and nothing is learned from it"
    )
