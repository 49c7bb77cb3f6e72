"""Plans with a few random changes, the same for the same seed: what a verifier must object to."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import NodeSelectorRequirement
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.results import PlannedClaim, Results

ZONES = ("a", "b", "c")


def broken(results: Results, catalogue: Catalogue, seed: int) -> Results:
    """Return the plan with one to three changes; sometimes it stays valid."""
    rng = random.Random(seed)
    for _ in range(rng.randint(1, 3)):
        results = rng.choice(CHANGES)(results, catalogue, rng)
    return results


def _with_claim(results: Results, number: int, *claims: PlannedClaim) -> Results:
    """Replace one claim."""
    old = results.new_claims
    return replace(results, new_claims=(*old[:number], *claims, *old[number + 1 :]))


def _pod_moved(results: Results, _: Catalogue, rng: random.Random) -> Results:
    """Move a pod to another new node."""
    if len(results.new_claims) < 2:
        return results
    source, target = rng.sample(range(len(results.new_claims)), 2)
    pod = rng.choice(results.new_claims[source].pods)
    kept = tuple(key for key in results.new_claims[source].pods if key != pod)
    more = tuple(sorted((*results.new_claims[target].pods, pod)))
    results = _with_claim(results, target, replace(results.new_claims[target], pods=more))
    if kept:
        return _with_claim(results, source, replace(results.new_claims[source], pods=kept))
    return _with_claim(results, source)


def _moved_to_node(results: Results, _: Catalogue, rng: random.Random) -> Results:
    """Move the pods of a new node to an existing one."""
    if not results.existing or not results.new_claims:
        return results
    number, node = rng.randrange(len(results.new_claims)), rng.choice(sorted(results.existing))
    pods = tuple(sorted((*results.existing[node], *results.new_claims[number].pods)))
    return replace(_with_claim(results, number), existing={**results.existing, node: pods})


def _moved_between_nodes(results: Results, _: Catalogue, rng: random.Random) -> Results:
    """Exchange the pods of two existing nodes."""
    if len(results.existing) < 2:
        return results
    one, other = rng.sample(sorted(results.existing), 2)
    found = {**results.existing, one: results.existing[other], other: results.existing[one]}
    return replace(results, existing=found)


def _claims_joined(results: Results, _: Catalogue, rng: random.Random) -> Results:
    """Put the pods of two new nodes on one that is large enough by its own words."""
    if len(results.new_claims) < 2:
        return results
    one, other = sorted(rng.sample(range(len(results.new_claims)), 2))
    first, second = results.new_claims[one], results.new_claims[other]
    names = first.requests.keys() | second.requests.keys()
    requests = {name: first.requests.get(name, 0) + second.requests.get(name, 0) for name in names}
    joined = replace(first, pods=tuple(sorted((*first.pods, *second.pods))), requests=requests)
    return _with_claim(_with_claim(results, other), one, joined)


def _requirement_changed(results: Results, _: Catalogue, rng: random.Random) -> Results:
    """Let a new node have another value of a label, any value, or several."""
    if not results.new_claims:
        return results
    number = rng.randrange(len(results.new_claims))
    claim = results.new_claims[number]
    key = rng.choice((labels.ZONE, labels.ZONE, *(r.key for r in claim.requirements)))
    known = {labels.ZONE: ZONES, labels.CAPACITY_TYPE: (labels.ON_DEMAND, labels.SPOT, labels.RESERVED)}
    values = known.get(key, ("red", "r1", "m"))
    chosen = tuple(sorted(rng.sample(values, rng.randint(1, len(values)))))
    changed = (NodeSelectorRequirement(key=key, operator="In", values=chosen),) if rng.random() < 0.7 else ()
    kept = tuple(r for r in claim.requirements if r.key != key)
    return _with_claim(results, number, replace(claim, requirements=(*kept, *changed)))


def _types_changed(results: Results, catalogue: Catalogue, rng: random.Random) -> Results:
    """List other instance types: a few of them, or all that there are."""
    if not results.new_claims:
        return results
    number = rng.randrange(len(results.new_claims))
    claim = results.new_claims[number]
    every = [t.name for t in catalogue.instance_types(claim.node_pool)]
    types = rng.choice((tuple(every), claim.instance_types[:1], (rng.choice(every), *claim.instance_types)))
    kept = tuple(r for r in claim.requirements if r.key != labels.INSTANCE_TYPE)
    listed = NodeSelectorRequirement(key=labels.INSTANCE_TYPE, operator="In", values=types)
    return _with_claim(results, number, replace(claim, instance_types=types, requirements=(*kept, listed)))


def _words_changed(results: Results, _: Catalogue, rng: random.Random) -> Results:
    """Change what a new node is said to be: its price, offering, reservations, requests, drivers, or minValues."""
    if not results.new_claims:
        return results
    number = rng.randrange(len(results.new_claims))
    claim = results.new_claims[number]
    less = {name: amount // 2 for name, amount in claim.requests.items()}
    other = rng.choice(results.new_claims)
    changes: Sequence[dict[str, object]] = (
        {"price": claim.price + 0.001},
        {"offering": other.offering},
        {"reservations": ()},
        {"reservations": other.reservations},
        {"requests": less},
        {"dra_drivers": ()},
        {"min_values_relaxed": not claim.min_values_relaxed},
        {"node_pool": other.node_pool},
    )
    return _with_claim(results, number, replace(claim, **rng.choice(changes)))


def _claim_copied(results: Results, _: Catalogue, rng: random.Random) -> Results:
    """Give half of a new node's pods a node of their own."""
    several = [number for number, claim in enumerate(results.new_claims) if len(claim.pods) > 1]
    if not several:
        return results
    number = rng.choice(several)
    claim = results.new_claims[number]
    half = len(claim.pods) // 2
    return _with_claim(results, number, replace(claim, pods=claim.pods[:half]), replace(claim, pods=claim.pods[half:]))


def _devices_changed(results: Results, _: Catalogue, rng: random.Random) -> Results:
    """Change a device: another name, another pool, published or not, twice, or none."""
    planned = [(number, name) for number, claim in enumerate(results.new_claims) for name in sorted(claim.devices)]
    choices = [*planned, *((-1, node) for node in sorted(results.devices))]
    if not choices:
        return results
    number, name = rng.choice(choices)
    every = results.devices if number < 0 else results.new_claims[number].devices
    devices = list(every[name])
    if not devices:
        return results
    at = rng.randrange(len(devices))
    device = devices[at]
    devices[at : at + 1] = rng.choice(
        (
            [],
            [device, device],
            [replace(device, device=f"g{rng.randrange(4)}")],
            [replace(device, published=not device.published)],
            [replace(device, request=f"r{rng.randrange(2)}")],
            [replace(device, pool="n0")],
        )
    )
    changed = {**every, name: tuple(devices)}
    if number < 0:
        return replace(results, devices=changed)
    return _with_claim(results, number, replace(results.new_claims[number], devices=changed))


Change = Callable[[Results, Catalogue, random.Random], Results]
CHANGES: Sequence[Change] = (
    *(_pod_moved, _moved_to_node, _moved_between_nodes, _claims_joined, _requirement_changed, _types_changed),
    *(_words_changed, _claim_copied, _devices_changed, _devices_changed),
)
