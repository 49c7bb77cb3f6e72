"""Clusters as scenarios, drawn by hypothesis: every kind of rule, mixed, on a small catalogue of instance types.

A scenario is what `journeyman solve` and the oracle read. Karpenter knows a few labels of its own test provider; they
are not used here (`special`, `size`, `integer`).
"""

from __future__ import annotations

from hypothesis import strategies as st

from tests.differential.draw.extras import buffers, daemon_sets, disruption_budgets, node_overlays
from tests.differential.draw.nodes import nodes
from tests.differential.draw.pods import CALM, workloads
from tests.differential.draw.pools import node_pools
from tests.differential.draw.storage import volumes
from tests.differential.draw.types import catalogues
from tests.differential.draw.words import Draw, JSONDict, an_object, mixes, pick


@st.composite
def clusters(draw: Draw, pods: int = 100) -> JSONDict:
    """A scenario with at most so many pods that wait."""
    mix = draw(mixes())
    types = draw(catalogues(mix))
    pools = draw(node_pools(mix))
    groups = draw(workloads(mix, types, pick(draw, (pods // 8, pods // 3, pods))))
    daemons = [draw(daemon_sets(f"d{i}", types)) for i in range(pick(draw, (1, 2)))] if mix.daemons else []
    objects = [*pools, *(group.pod(f"{group.name}-{i}") for group in groups for i in range(group.replicas)), *daemons]
    if mix.namespaces:
        objects += [
            an_object("Namespace", "default"),
            an_object("Namespace", "batch", metadata={"labels": CALM["matchLabels"]}),
        ]
    if mix.nodes:
        objects += draw(nodes(mix, pools, types, groups, daemons))
    if mix.overlays:
        objects += draw(node_overlays(types))
    if mix.buffers:
        objects += draw(buffers(groups))
    if mix.budgets:
        objects += draw(disruption_budgets(groups))
    if mix.volumes:
        objects += draw(volumes(groups, [o for o in objects if o["kind"] == "Pod"]))
    return {"name": "drawn", "instanceTypes": types, "objects": objects, "options": draw(_options(mix.min_values))}


@st.composite
def _options(draw: Draw, min_values: bool) -> JSONDict:
    found = {"preferencePolicy": pick(draw, ("Respect", "Respect", "Respect", "Ignore"))}
    return found | ({"minValuesPolicy": pick(draw, ("Strict", "BestEffort"))} if min_values else {})
