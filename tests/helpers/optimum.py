"""The optimum of a small scenario by integer programming, for pods that differ in requests only.

A pattern is a number of pods of each size that fit one node, and the cheapest type for it. Only maximal patterns, to which no
pod can be added, are needed. HiGHS then chooses how many nodes of each pattern to launch so that all pods fit at the lowest
price.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from journeyman.core.api.resources import to_resources
from tests.helpers.lower_bound import cheapest_offering

JSONDict = dict[str, Any]
Sizes = tuple[int, ...]
RESOURCES = ("cpu", "memory", "pods")


def optimum(scenario: JSONDict) -> float:
    """Return the lowest hourly price of nodes that fit all pods."""
    pods = [o for o in scenario["objects"] if o["kind"] == "Pod"]
    classes = _classes(pods)
    patterns = _patterns(scenario, list(classes), list(classes.values()))
    fillings = np.array(list(patterns)).T
    prices = np.array(list(patterns.values()))
    answer = milp(
        prices,
        constraints=LinearConstraint(fillings, lb=np.array(list(classes.values()))),
        integrality=np.ones(len(prices)),
        bounds=Bounds(lb=0),
        options={"mip_rel_gap": 0},
    )
    if not answer.success:
        raise ValueError(f"{scenario['name']} has no optimum: {answer.message}")
    return float(answer.fun)


def _classes(pods: Sequence[JSONDict]) -> dict[Sizes, int]:
    """Return how many pods there are of each size, largest first."""
    counts: dict[Sizes, int] = {}
    for pod in pods:
        requests = to_resources(pod["spec"]["containers"][0]["resources"]["requests"], round_up=True) | {"pods": 1}
        size = tuple(int(requests.get(name, 0)) for name in RESOURCES)
        counts[size] = counts.get(size, 0) + 1
    return dict(sorted(counts.items(), reverse=True))


def _patterns(scenario: JSONDict, sizes: list[Sizes], counts: list[int]) -> dict[Sizes, float]:
    """Return the lowest price of each maximal pattern, given as the number of pods of each size."""
    requirements = next(o for o in scenario["objects"] if o["kind"] == "NodePool")
    rules = requirements["spec"]["template"]["spec"]["requirements"]
    found: dict[Sizes, float] = {}
    for instance_type in scenario["instanceTypes"]:
        price = cheapest_offering(instance_type, rules)
        if price is None:
            continue
        capacity = to_resources(instance_type["capacity"], round_up=False)
        overhead = to_resources(instance_type["overhead"], round_up=True)
        free = tuple(int(capacity.get(name, 0) - overhead.get(name, 0)) for name in RESOURCES)
        for filling in _fillings(free, sizes, counts):
            found[filling] = min(price, found.get(filling, price))
    found.pop((0,) * len(sizes), None)
    return found


def _fillings(free: Sizes, sizes: list[Sizes], counts: list[int]) -> Iterator[Sizes]:
    """Yield all numbers of pods of each size that fit the free resources, with as many of the last size as fit."""
    if not sizes:
        yield ()
        return
    most = min([counts[0], *(have // size for have, size in zip(free, sizes[0], strict=True) if size)])
    for number in range(most, -1, -1) if len(sizes) > 1 else (max(0, most),):
        rest = tuple(have - number * size for have, size in zip(free, sizes[0], strict=True))
        for others in _fillings(rest, sizes[1:], counts[1:]):
            yield (number, *others)
