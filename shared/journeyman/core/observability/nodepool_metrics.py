"""Gauges of NodePools: limits, usage and cost.

Restates: karpenter pkg/controllers/metrics/nodepool/controller.go, pkg/state/cost/cost.go.
"""

from __future__ import annotations

from collections.abc import Iterator

from journeyman.core.api import labels
from journeyman.core.api.nodepool import NodePool
from journeyman.core.api.resources import to_resources
from journeyman.core.catalogue import Catalogue, price_of
from journeyman.core.observability.amounts import by_resource, gauge, gauges_of_each
from journeyman.core.plan import Observation
from journeyman.core.state import Snapshot


def pool_gauges(snapshot: Snapshot, catalogue: Catalogue) -> Iterator[Observation]:
    """Yield gauges of each NodePool, by name: usage from its status, cost from the catalogue (overlays included)."""
    costs = _costs(snapshot, catalogue)

    def gauges(pool: NodePool) -> Iterator[Observation]:
        values = {"nodepool": pool.metadata.name}
        yield from by_resource("karpenter_nodepools_limit", pool.spec.limit_amounts, values)
        usage = to_resources(pool.status.resources, round_up=False)
        yield from by_resource("karpenter_nodepools_usage", usage, values)
        yield gauge("karpenter_nodepools_cost_total", costs[pool.metadata.name], values)

    yield from gauges_of_each(snapshot.node_pools, gauges)


def _costs(snapshot: Snapshot, catalogue: Catalogue) -> dict[str, float]:
    """Return the price per hour of each NodePool's nodes; a node whose price is unknown counts as 0, as in Karpenter."""
    costs = {pool.metadata.name: 0.0 for pool in snapshot.node_pools}
    for state in snapshot.state_nodes:
        if state.managed and state.node_pool in costs and state.provider_id:
            offering = (state.labels.get(key, "") for key in (labels.INSTANCE_TYPE, labels.ZONE, labels.CAPACITY_TYPE))
            costs[state.node_pool] += price_of(catalogue.instance_types(state.node_pool), *offering)
    return costs
