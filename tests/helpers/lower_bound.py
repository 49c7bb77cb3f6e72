"""The linear-programming lower bound on the hourly price of a scenario, computed by HiGHS.

The bound is exact for pods that differ in requests only; topology constraints can only raise the optimum.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import linprog

from journeyman.core.api.resources import to_resources

RESOURCES = ("cpu", "memory", "pods")


def lower_bound(scenario: dict[str, Any]) -> float:
    """Return an hourly price below which no nodes can run the scenario's pods."""
    pool = next(o for o in scenario["objects"] if o["kind"] == "NodePool")
    requirements = pool["spec"]["template"]["spec"]["requirements"]
    need = np.zeros(len(RESOURCES))
    for pod in (o for o in scenario["objects"] if o["kind"] == "Pod"):
        requests = to_resources(pod["spec"]["containers"][0]["resources"]["requests"], round_up=True) | {"pods": 1}
        need += [requests[name] for name in RESOURCES]
    prices, sizes = [], []
    for instance_type in scenario["instanceTypes"]:
        price = cheapest_offering(instance_type, requirements)
        if price is not None:
            capacity = to_resources(instance_type["capacity"], round_up=False)
            overhead = to_resources(instance_type["overhead"], round_up=True)
            prices.append(price)
            sizes.append([capacity[name] - overhead.get(name, 0) for name in RESOURCES])
    answer = linprog(prices, A_ub=-(np.array(sizes).T / need[:, None]), b_ub=-np.ones(len(RESOURCES)), method="highs")
    return float(answer.fun)


def cheapest_offering(instance_type: dict[str, Any], requirements: list[dict[str, Any]]) -> float | None:
    """Return the lowest price of the type's offerings that these requirements allow; None if there is none."""
    values = {r["key"]: set(r["values"]) for r in instance_type["requirements"]}
    if not all(_admits(r, values[r["key"]]) for r in requirements):
        return None
    prices = [o["price"] for o in instance_type["offerings"] if all(_offered(r, o) for r in requirements)]
    return min(prices, default=None)


def _admits(requirement: dict[str, Any], values: set[str]) -> bool:
    if requirement["operator"] == "Gt":
        return any(value.isdigit() and int(value) > int(requirement["values"][0]) for value in values)
    return bool(values & set(requirement["values"]))


def _offered(requirement: dict[str, Any], offering: dict[str, Any]) -> bool:
    own = {r["key"]: set(r["values"]) for r in offering["requirements"]}
    return requirement["key"] not in own or bool(own[requirement["key"]] & set(requirement["values"]))
