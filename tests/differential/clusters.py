"""Clusters as scenarios, drawn by hypothesis: every kind of rule, mixed, on a small catalogue of instance types.

A scenario is what `journeyman solve` and the oracle read. Karpenter knows a few labels of its own test provider; they
are not used here (`special`, `size`, `integer`).
"""

from __future__ import annotations

from hypothesis import strategies as st

from tests.differential.draw.nodes import nodes
from tests.differential.draw.pods import TERM, expressions, workloads
from tests.differential.draw.pools import node_pools
from tests.differential.draw.storage import volumes
from tests.differential.draw.types import catalogues
from tests.differential.draw.words import ARCH, CAPACITY_TYPE, Draw, JSONDict, an_object, chance, mixes, pick


@st.composite
def clusters(draw: Draw, pods: int = 100) -> JSONDict:
    """A scenario with at most so many pods that wait."""
    mix = draw(mixes())
    types = draw(catalogues(mix))
    pools = draw(node_pools(mix))
    groups = draw(workloads(mix, types, pick(draw, (pods // 8, pods // 3, pods))))
    objects = [*pools, *(group.pod(f"{group.name}-{i}") for group in groups for i in range(group.replicas))]
    if mix.namespaces:
        objects += [an_object("Namespace", "default"), an_object("Namespace", "batch", metadata=CALM)]
    if mix.nodes:
        objects += draw(nodes(mix, pools, types, groups))
    if mix.daemons:
        objects += [draw(_daemon_sets(f"d{index}", types)) for index in range(pick(draw, (1, 2)))]
    if mix.volumes:
        objects += draw(volumes(groups, [o for o in objects if o["kind"] == "Pod"]))
    return {"name": "drawn", "instanceTypes": types, "objects": objects, "options": draw(_options(mix.min_values))}


CALM = {"labels": {"mood": "calm"}}


@st.composite
def _options(draw: Draw, min_values: bool) -> JSONDict:
    found = {"preferencePolicy": pick(draw, ("Respect", "Respect", "Respect", "Ignore"))}
    return found | ({"minValuesPolicy": pick(draw, ("Strict", "BestEffort"))} if min_values else {})


@st.composite
def _daemon_sets(draw: Draw, name: str, types: list[JSONDict]) -> JSONDict:
    requests = {"cpu": pick(draw, ("50m", "200m", "500m")), "memory": pick(draw, ("64Mi", "256Mi"))}
    container: JSONDict = {"name": "c", "image": "i", "resources": {"requests": requests}}
    if chance(draw, 10):
        container["ports"] = [{"containerPort": 80, "hostPort": 80, "protocol": "TCP"}]
    spec: JSONDict = {"containers": [container]}
    if chance(draw, 60):
        spec["tolerations"] = [{"operator": "Exists"}]
    if chance(draw, 30):
        spec["nodeSelector"] = pick(draw, ({CAPACITY_TYPE: "spot"}, {ARCH: "amd64"}))
    elif chance(draw, 20):
        terms = [{"matchExpressions": [draw(expressions(types))]}]
        spec["affinity"] = {"nodeAffinity": {TERM: {"nodeSelectorTerms": terms}}}
    labels = {"daemon": name}
    template = {"metadata": {"labels": labels}, "spec": spec}
    body = {"selector": {"matchLabels": labels}, "template": template}
    return an_object("DaemonSet", name, "apps/v1", namespace="kube-system", spec=body)
