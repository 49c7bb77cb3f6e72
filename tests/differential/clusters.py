"""A hypothesis strategy for scenarios: every kind of scheduling constraint, on up to 40 instance types.

`journeyman solve` and the oracle read scenarios. They contain no labels of Karpenter's own test provider (`special`,
`size`, `integer`).
"""

from __future__ import annotations

from hypothesis import strategies as st

from tests.differential.draw.extras import capacity_buffers, daemon_sets, disruption_budgets, node_overlays
from tests.differential.draw.nodes import nodes
from tests.differential.draw.pods import NAMESPACE_SELECTOR, workloads
from tests.differential.draw.pools import node_pools
from tests.differential.draw.storage import volumes
from tests.differential.draw.types import catalogues
from tests.differential.draw.words import Draw, JSONDict, an_object, feature_sets, pick


@st.composite
def clusters(draw: Draw, pods: int = 100) -> JSONDict:
    """Draw a scenario with at most `pods` pending pods."""
    features = draw(feature_sets())
    types = draw(catalogues(features))
    pools = draw(node_pools(features))
    groups = draw(workloads(features, types, pick(draw, (pods // 8, pods // 3, pods))))
    daemons = [draw(daemon_sets(f"d{i}", types)) for i in range(pick(draw, (1, 2)))] if features.daemon_sets else []
    objects = [*pools, *(group.pod(f"{group.name}-{i}") for group in groups for i in range(group.replicas)), *daemons]
    if features.namespaces:
        objects += [
            an_object("Namespace", "default"),
            an_object("Namespace", "batch", metadata={"labels": NAMESPACE_SELECTOR["matchLabels"]}),
        ]
    if features.existing_nodes:
        objects += draw(nodes(features, pools, types, groups, daemons))
    if features.node_overlays:
        objects += draw(node_overlays(types))
    if features.capacity_buffers:
        objects += draw(capacity_buffers(groups))
    if features.disruption_budgets:
        objects += draw(disruption_budgets(groups))
    if features.volumes:
        objects += draw(volumes(groups, [o for o in objects if o["kind"] == "Pod"]))
    return {"name": "drawn", "instanceTypes": types, "objects": objects, "options": draw(_options(features.min_values))}


@st.composite
def _options(draw: Draw, min_values: bool) -> JSONDict:
    found = {"preferencePolicy": pick(draw, ("Respect", "Respect", "Respect", "Ignore"))}
    return found | ({"minValuesPolicy": pick(draw, ("Strict", "BestEffort"))} if min_values else {})
