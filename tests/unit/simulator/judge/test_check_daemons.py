"""Verification of rules about the pods that DaemonSets are still to run: plans made by hand, valid and not."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.catalogue import Catalogue
from journeyman_simulator.judge import judge
from tests.helpers.builders import a_daemon_set, a_node, a_pod, a_pool, a_running_claim, a_snapshot, an_instance_type
from tests.helpers.plans import a_plan, a_planned_claim

TYPE = an_instance_type("z", cpu=8, memory_gib=32, price=0.2, zones=("a", "b"))
THERE = {"nodes": (a_node("n1"),), "claims": (a_running_claim("n1"),)}


def a_rule(kind, key, app="agent"):
    """The required affinity or anti-affinity (`kind`) to the pods of `app` in any namespace."""
    term = {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}, "namespaceSelector": {}}
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def an_agent(**template):
    """A DaemonSet whose pods have the label `app=agent`."""
    agent = a_daemon_set("agent")
    own = agent.spec.template
    metadata = replace(own.metadata, labels={"app": "agent"})
    changed = replace(own, metadata=metadata, spec=replace(own.spec, **template))
    return replace(agent, spec=replace(agent.spec, template=changed))


def objections(plan, pod, *agents, **cluster):
    """The findings about a plan for one pod, as one text."""
    snapshot = a_snapshot(pods=(pod,), daemon_sets=agents, **cluster)
    return "\n".join(map(str, judge(snapshot, Catalogue({"default": (TYPE,)}), plan, pods=(pod,))))


@pytest.mark.parametrize("key", [labels.HOSTNAME, labels.ZONE])
def test_affinity_is_met_by_the_daemon_that_every_such_node_runs(key):
    """Of a DaemonSet that runs in zone b alone, a node in zone a has no pod, and a node in either zone may have none."""
    pod = a_pod("p", spec={"affinity": a_rule("podAffinity", key)})
    in_zone_b = an_agent(node_selector={labels.ZONE: "b"})
    anywhere, in_a, in_b = (
        a_plan(a_planned_claim(pod, types=(TYPE,), **pins)) for pins in ({}, {"zone": "a"}, {"zone": "b"})
    )

    assert objections(anywhere, pod, an_agent()) == ""
    assert objections(in_b, pod, in_zone_b) == ""
    assert "finds none of the pods" in objections(in_a, pod, in_zone_b)
    assert "finds none of the pods" in objections(anywhere, pod, in_zone_b)
    assert "finds none of the pods" in objections(anywhere, pod)


@pytest.mark.parametrize(
    ("of_pool", "is_met"), [({"operator": "Exists"}, True), ({"operator": "NotIn", "values": ["red"]}, False)]
)
def test_affinity_is_met_by_a_daemon_for_a_label_whose_value_the_nodeclaim_decides(of_pool, is_met):
    """A NodePool that requires the label without values runs the daemon on the nodes that get the right one."""
    pod = a_pod("p", spec={"affinity": a_rule("podAffinity", labels.HOSTNAME)})
    pool = a_pool(spec={"template": {"spec": {"requirements": [{"key": "team", "values": [], **of_pool}]}}})
    plan = a_plan(a_planned_claim(pod, types=(TYPE,), team="red"))

    found = objections(plan, pod, an_agent(node_selector={"team": "red"}), node_pools=(pool,))

    assert ("finds none of the pods" not in found) is is_met


def test_affinity_is_met_by_the_daemon_that_an_existing_node_will_run():
    """The node lacks it so far; a node that is too small for it never runs it."""
    pod = a_pod("p", cpu="100m", spec={"affinity": a_rule("podAffinity", labels.ZONE)})
    elsewhere = an_agent(node_selector={labels.HOSTNAME: "node-n1"})
    beside = a_plan(a_planned_claim(pod, types=(TYPE,), zone="a"))
    small = a_node("n1", status={"allocatable": {"cpu": "50m"}})

    assert objections(a_plan(node_n1=[pod]), pod, an_agent(), **THERE) == ""
    assert objections(beside, pod, elsewhere, **THERE) == ""
    assert "finds none of the pods" in objections(beside, pod, elsewhere, **{**THERE, "nodes": (small,)})


@pytest.mark.parametrize("key", [labels.HOSTNAME, labels.ZONE])
def test_anti_affinity_is_broken_by_a_daemon_that_the_node_may_run(key):
    """The pod's own, whether the node exists or not; a label that the node lacks is in no domain."""
    pod = a_pod("p", spec={"affinity": a_rule("podAntiAffinity", key)})
    new, existing = a_plan(a_planned_claim(pod, types=(TYPE,))), a_plan(node_n1=[pod])
    elsewhere = an_agent(node_selector={labels.INSTANCE_TYPE: "other"})
    racks = a_pod("p", spec={"affinity": a_rule("podAntiAffinity", "example.com/rack")})

    assert "selects the awaited pod of DaemonSet kube-system/agent" in objections(new, pod, an_agent())
    assert "selects the awaited pod of DaemonSet kube-system/agent" in objections(existing, pod, an_agent(), **THERE)
    assert objections(new, pod, elsewhere) == ""
    assert objections(new, racks, an_agent()) == ""


def test_anti_affinity_of_a_daemon_is_broken_by_a_pod_on_its_node():
    """Whichever comes first, the other is not bound."""
    pod = a_pod("p", metadata={"labels": {"app": "loud"}})
    rule = a_pod("r", spec={"affinity": a_rule("podAntiAffinity", labels.HOSTNAME, "loud")}).spec.affinity
    shy = an_agent(affinity=rule)
    new, existing = a_plan(a_planned_claim(pod, types=(TYPE,))), a_plan(node_n1=[pod])

    assert "of the awaited pod of DaemonSet kube-system/agent selects pod default/p" in objections(new, pod, shy)
    assert "of the awaited pod of DaemonSet kube-system/agent selects pod default/p" in objections(
        existing, pod, shy, **THERE
    )
