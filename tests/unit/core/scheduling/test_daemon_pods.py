"""Pods that must, or must not, be with the pods of a DaemonSet; `verify` accepts every plan."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import OwnerReference
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.daemon_pods import opposites
from journeyman.core.scheduling.requirements import requirement
from journeyman.core.scheduling.results import Options, PreferencePolicy
from journeyman.core.scheduling.scheduler import pods_to_schedule, solve
from journeyman_simulator.judge import verify_strictly
from tests.helpers.builders import (
    MEDIUM,
    a_claim,
    a_daemon_set,
    a_launched_claim,
    a_node,
    a_pod,
    a_pool,
    a_running_claim,
    a_snapshot,
    an_instance_type,
)

HOST = labels.HOSTNAME
ZONAL = an_instance_type("z.medium", cpu=4, memory_gib=16, price=0.2, zones=("a", "b", "c"))
CHEAP = an_instance_type("g.medium", cpu=4, memory_gib=16, price=0.1)
SYSTEM = {"namespaces": ["kube-system"]}


def the_agent(*, cpu="100m", **template):
    """A DaemonSet `agent` whose pods have the label `app=agent`."""
    agent = a_daemon_set("agent", cpu=cpu)
    own = agent.spec.template
    spec = replace(own.spec, **template)
    metadata = replace(own.metadata, labels={"app": "agent"})
    return replace(agent, spec=replace(agent.spec, template=replace(own, metadata=metadata, spec=spec)))


def about(kind, key=HOST, app="agent", **term):
    """The required pod affinity or anti-affinity (`kind`) to pods with the label `app`."""
    rule = {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}, **term}
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [rule]}}


def a_follower(name="relay", key=HOST, **changes):
    """A pod that must be with the agent's pods."""
    return a_pod(name, spec={"affinity": about("podAffinity", key, **SYSTEM)}, **changes)


def a_loner(name="loner", key=HOST, **changes):
    """A pod that must not be with the agent's pods."""
    return a_pod(name, spec={"affinity": about("podAntiAffinity", key, **SYSTEM)}, **changes)


def running_on(node, agent):
    """The agent's pod on a node."""
    owner = OwnerReference(
        api_version="apps/v1", kind="DaemonSet", name="agent", uid=agent.metadata.uid, controller=True
    )
    pod = a_pod(f"agent-{node}", cpu="100m", memory="128Mi", node=node)
    metadata = replace(pod.metadata, namespace="kube-system", labels={"app": "agent"}, owner_references=(owner,))
    return replace(pod, metadata=metadata)


def schedule(*pods, types=(MEDIUM,), options=Options(), without=frozenset(), moving=None, **cluster):  # noqa: B008
    """The verified plan for these pods."""
    snapshot = a_snapshot(pods=tuple(sorted(pods, key=lambda p: p.key)), **cluster)
    catalogue = Catalogue({pool.metadata.name: types for pool in snapshot.node_pools})
    results = solve(snapshot, catalogue, pods=moving, options=options, without_nodes=without)
    considered = pods_to_schedule(snapshot) if moving is None else moving
    assert verify_strictly(snapshot, catalogue, results, pods=considered, without_nodes=without) == ()
    return results


def placed(results):
    """The pods of each new node."""
    return [claim.pods for claim in results.new_claims]


@pytest.mark.parametrize("key", [HOST, labels.ZONE])
def test_a_new_node_counts_the_daemon_sets_pod_for_affinity(key):
    """No agent runs anywhere; the new node will run one, and the pod is bound after it."""
    results = schedule(a_follower(key=key), daemon_sets=(the_agent(),), types=(ZONAL,))

    assert placed(results) == [("default/relay",)]
    assert results.pod_errors == {}


def test_pods_with_affinity_to_a_daemon_set_share_its_nodes():
    """They and other pods fill one node, although only the DaemonSet's pod is what they join."""
    followers = [a_follower(f"relay-{n}", cpu="500m") for n in range(4)]

    results = schedule(*followers, a_pod("other", cpu="500m"), daemon_sets=(the_agent(),))

    assert len(results.new_claims) == 1
    assert len(results.new_claims[0].pods) == 5


@pytest.mark.parametrize(
    ("claim", "node"),
    [
        (a_running_claim(), a_node("default-1")),
        (a_launched_claim(), None),
        (a_claim(spec={"resources": {"requests": {"cpu": "3", "memory": "8Gi", "pods": "10"}}}), None),
    ],
    ids=["a node without its agent", "a node in flight", "a NodeClaim that is not launched"],
)
def test_a_node_counts_the_daemon_sets_pod_that_is_still_to_come(claim, node):
    """The pod that waits for its node, or for the agent on it, needs no other node."""
    nodes = (node,) if node is not None else ()

    results = schedule(a_follower(cpu="500m"), daemon_sets=(the_agent(),), claims=(claim,), nodes=nodes)

    assert results.new_claims == ()
    assert len(results.existing) == 1


def test_a_full_node_whose_agent_runs_leaves_the_pod_to_a_new_node():
    """The running agent is joined only where there is capacity."""
    agent = the_agent()
    node = a_node("default-1", status={"allocatable": {"cpu": "1"}})
    full = a_pod("full", cpu="900m", node="node-default-1")

    results = schedule(
        full,
        running_on("node-default-1", agent),
        a_follower(),
        daemon_sets=(agent,),
        claims=(a_running_claim(),),
        nodes=(node,),
    )

    assert placed(results) == [("default/relay",)]


def test_the_pods_of_a_removed_node_follow_the_daemon_set_to_its_replacement():
    """Drift and consolidation simulate the node's removal: its agent goes with it, a new node has another."""
    agent, relay = the_agent(), a_follower(node="node-default-1")

    results = schedule(
        running_on("node-default-1", agent),
        relay,
        moving=(relay,),
        without=frozenset({"node-default-1"}),
        daemon_sets=(agent,),
        claims=(a_running_claim(),),
        nodes=(a_node("default-1"),),
    )

    assert placed(results) == [("default/relay",)]


def test_affinity_narrows_a_new_node_to_those_that_run_the_daemon_set():
    """The agent does not run on the cheaper type."""
    agent = the_agent(node_selector={labels.INSTANCE_TYPE: "m.medium"})

    results = schedule(a_follower(), daemon_sets=(agent,), types=(CHEAP, MEDIUM))

    assert [claim.instance_types for claim in results.new_claims] == [("m.medium",)]


def test_affinity_to_pods_of_no_daemon_set_on_the_node_pool_keeps_a_pod_pending():
    """The agent does not tolerate the NodePool's taint, so no new node runs one."""
    taint = {"key": "dedicated", "value": "x", "effect": "NoSchedule"}
    pool = a_pool(spec={"template": {"spec": {"taints": [taint]}}})
    follower = a_follower()
    follower = replace(follower, spec=replace(follower.spec, tolerations=a_pod_that_tolerates_all().spec.tolerations))

    results = schedule(follower, node_pools=(pool,), daemon_sets=(the_agent(tolerations=()),))

    assert results.new_claims == ()
    assert (
        "pod affinity over kubernetes.io/hostname to pods with app=agent" in results.pod_errors["default/relay"].message
    )


def a_pod_that_tolerates_all():
    """A pod for nodes with any taints."""
    return a_pod("any", spec={"tolerations": [{"operator": "Exists"}]})


def test_anti_affinity_to_a_daemon_set_keeps_a_pod_off_each_node_that_will_run_it():
    """No node does, as the agent runs on all; the message names it."""
    results = schedule(a_loner(), daemon_sets=(the_agent(),), claims=(a_launched_claim(),))

    assert results.new_claims == ()
    assert not results.existing
    message = results.pod_errors["default/loner"].message
    assert "DaemonSet kube-system/agent" in message
    assert "pod anti-affinity over kubernetes.io/hostname to pods with app=agent" in message


@pytest.mark.parametrize("key", [HOST, labels.ZONE])
def test_anti_affinity_to_a_daemon_set_leaves_the_nodes_that_do_not_run_it(key):
    """The agent runs on the cheaper type alone."""
    agent = the_agent(node_selector={labels.INSTANCE_TYPE: "g.medium"})

    results = schedule(a_loner(key=key), daemon_sets=(agent,), types=(CHEAP, MEDIUM))

    assert [claim.instance_types for claim in results.new_claims] == [("m.medium",)]


def test_the_daemon_sets_own_anti_affinity_keeps_pods_off_its_nodes():
    """Whichever of both comes first, the other is never bound there."""
    template = a_pod("shy", spec={"affinity": about("podAntiAffinity", app="loud", namespaces=["default"])})
    agent = the_agent(affinity=template.spec.affinity, node_selector={labels.INSTANCE_TYPE: "g.medium"})
    loud = a_pod("loud", metadata={"labels": {"app": "loud"}})
    calm = a_pod("calm", spec={"nodeSelector": {labels.INSTANCE_TYPE: "g.medium"}})

    results = schedule(loud, calm, daemon_sets=(agent,), types=(CHEAP, MEDIUM))

    by_pod = {key: claim.instance_types for claim in results.new_claims for key in claim.pods}
    assert by_pod["default/loud"] == ("m.medium",)
    assert by_pod["default/calm"] == ("g.medium",)


@pytest.mark.parametrize("policy", list(PreferencePolicy))
def test_a_preference_for_a_daemon_set_decides_between_nodes_but_costs_no_pod(policy):
    """A pod that prefers to be apart from an agent that is everywhere is scheduled all the same."""
    rule = {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": "agent"}}, **SYSTEM}
    preference = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": rule}]}

    results = schedule(
        a_pod("apart", spec={"affinity": {"podAntiAffinity": preference}}),
        a_pod("near", spec={"affinity": {"podAffinity": preference}}),
        a_follower(),
        daemon_sets=(the_agent(),),
        options=Options(preferences=policy),
    )

    assert results.pod_errors == {}


@pytest.mark.parametrize("written", ["In 3", "NotIn 3", "Exists", "DoesNotExist", "Gt 3", "Lt 3"])
def test_opposites_of_a_requirement_are_met_where_it_is_not(written):
    """Each number, and a missing label, meets either the requirement or one of its opposites."""
    operator, *values = written.split()
    wanted = requirement("k", operator, values)
    others = opposites(wanted)

    for value in ("1", "3", "9"):
        assert wanted.has(value) != any(other.has(value) for other in others)
    assert wanted.allows_absence != any(other.allows_absence for other in others)
