"""DaemonSets: what their pods request of each node, and pods that must, or must not, be with them."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from journeyman.core.api.objects import DaemonSet
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.daemon_pods import opposites
from journeyman.core.scheduling.requirements import requirement
from journeyman.core.scheduling.results import Options, PreferencePolicy
from journeyman.core.scheduling.scheduler import pods_to_schedule, solve
from journeyman_simulator.judge import verify_strictly
from tests.helpers.builders import (
    LARGE,
    MEDIUM,
    NOW,
    a_claim,
    a_daemon_set,
    a_launched_claim,
    a_node,
    a_running_claim,
    a_snapshot,
    an_instance_type,
    merge,
    stamp,
)
from tests.helpers.karpenter_suite import schedule
from tests.helpers.small_clusters import (
    HOST,
    IN_BULK,
    TYPE,
    ZONE,
    apart,
    at,
    both_ways,
    by_node,
    either,
    errors,
    near,
    only,
    plan,
    pool,
    prefers,
    selects,
    some,
    table,
    tolerates,
    with_rules,
)

CHEAP = an_instance_type("g.medium", cpu=4, memory_gib=16, price=0.1)
SYSTEM = {"namespaces": ["kube-system"]}
AGENT = {"name": "agent", "uid": "uid-agent", "apiVersion": "apps/v1", "kind": "DaemonSet", "controller": True}
TAINTED = pool(taints=[{"key": "dedicated", "value": "x", "effect": "NoSchedule"}])


def the_agent(*rules, cpu="100m", **template):
    """Returns a DaemonSet whose pods have the label `app=agent`."""
    spec = with_rules(*rules, template)
    body = msgspec.to_builtins(a_daemon_set("agent", cpu=cpu, **spec))
    return msgspec.convert(merge(body, {"spec": {"template": {"metadata": {"labels": {"app": "agent"}}}}}), DaemonSet)


def pods_of_agent(node, *, cpu="100m", minutes=1, **owner):
    """Returns the agent's pod on a node, created so long ago."""
    created = stamp(NOW - timedelta(minutes=minutes))
    metadata = {"namespace": "kube-system", "ownerReferences": [{**AGENT, **owner}], "creationTimestamp": created}
    return some(1, "agent", tolerates(), cpu=cpu, memory="128Mi", on=node, name=f"agent-{node}-", metadata=metadata)


# -- what they request


@table(
    "sets",
    "running",
    "free",
    its_template=([the_agent(cpu="1")], [], 6),
    its_newest_pod=([the_agent(cpu="1")], [pods_of_agent("x", cpu="2", minutes=60), pods_of_agent("y", cpu="3")], 4),
    not_a_pod_that_it_does_not_control=([the_agent(cpu="1")], [pods_of_agent("x", cpu="3", controller=False)], 6),
    not_the_nodes_of_its_pod=([the_agent(cpu="1")], [some(1, "agent", only(ZONE, "no"), cpu="1", on="x")], 6),
    one_that_an_affinity_term_allows=(
        [the_agent(either([(TYPE, "In", "m.huge")], [(TYPE, "In", "m.large")]), cpu="1")],
        [],
        6,
    ),
    none_for_another_type=([the_agent(only(TYPE, "m.small"), cpu="1")], [], 7),
    none_that_no_node_can_run=([the_agent(cpu="lots")], [], 7),
    none_with_an_absurd_request=([the_agent(cpu="9E")], [], 7),
    none_that_is_too_large_for_all_types=([the_agent(cpu="1000")], [], 7),
)
def test_daemon_sets_leave_the_rest_of_a_node_to_pods(sets, running, free):
    """Of nearly eight CPUs."""
    flat = [pod for each in running for pod in each]

    (claim,) = schedule(*some(free, "web"), *flat, types=(LARGE,), daemon_sets=tuple(sets)).results.new_claims
    more = schedule(*some(free + 1, "web"), *flat, types=(LARGE,), daemon_sets=tuple(sets)).results.new_claims

    assert (len(claim.pods), len(more)) == (free, 2)


@pytest.mark.parametrize(
    ("cpu", "why"),
    [
        ("lots", "'lots' is not a quantity"),
        ("9E", "asks for more cpu"),
        ("1000", "fits on no instance type of NodePool default"),
    ],
)
def test_daemon_set_that_no_node_can_run_is_reported(cpu, why):
    """Nodes for all pods are launched without it."""
    (skipped,) = plan(some(1, "web"), daemon_sets=(the_agent(cpu=cpu),)).results.skipped

    assert [str(ref) for ref in skipped.refs] == ["DaemonSet kube-system/agent"]
    assert why in skipped.why


def test_missing_daemons_of_a_node_are_those_that_tolerate_and_select_it():
    """Of four one is missing: one selects other zones, one lacks the toleration, one runs already."""
    sets = (
        a_daemon_set("here", cpu="100m", **only(ZONE, "c", "a")),
        a_daemon_set("elsewhere", cpu="200m", **only(ZONE, "b", "c")),
        a_daemon_set("delicate", cpu="400m", tolerations=[]),
        the_agent(cpu="800m"),
    )
    nodes = at("n/a:4", taints=[{"key": "gpu", "effect": "NoSchedule"}])

    fits, too_large = (
        plan(
            pods_of_agent("n", cpu="800m"),
            some(1, "web", tolerates(), cpu=cpu),
            nodes=nodes,
            types=(),
            daemon_sets=sets,
        )
        for cpu in ("3100m", "3101m")
    )

    assert (by_node(fits), by_node(too_large)) == ("node-n: 1 web", "pending: 1 web")


# -- pods that must be with them


@both_ways
@pytest.mark.parametrize("key", [HOST, ZONE])
def test_a_new_node_counts_the_daemon_sets_pod_for_affinity(key, options):
    """No agent runs anywhere; the new node will run one, and the pods are bound after it."""
    followers = some(4, "relay", near("agent", key, **SYSTEM), cpu="500m")

    found = plan(followers, some(1, "web", cpu="500m"), daemon_sets=(the_agent(),), types=(MEDIUM,), options=options)

    separate, together = "m.medium: 4 relay; m.medium: 1 web", "m.medium: 1 web, 4 relay"
    assert by_node(found) == (separate if (key, options) == (HOST, IN_BULK) else together)


@pytest.mark.parametrize(
    ("claim", "nodes"),
    [
        (a_running_claim(), (a_node(),)),
        (a_launched_claim(), ()),
        (a_claim(spec={"resources": {"requests": {"cpu": "3", "memory": "8Gi", "pods": "10"}}}), ()),
    ],
    ids=["a node without its agent", "a node in flight", "a NodeClaim that is not launched"],
)
def test_a_node_counts_the_daemon_sets_pod_that_is_still_to_come(claim, nodes):
    """The pod that waits for its node, or for the agent on it, needs no other node."""
    pods = some(1, "relay", near("agent", HOST, **SYSTEM), cpu="500m")

    found = schedule(*pods, daemon_sets=(the_agent(),), claims=(claim,), nodes=nodes)

    assert (found.results.new_claims, len(found.results.existing)) == ((), 1)


def test_a_full_node_whose_agent_runs_leaves_the_pod_to_a_new_node():
    """The running agent is joined only where there is capacity."""
    follower = some(1, "relay", near("agent", HOST, **SYSTEM))

    found = plan(pods_of_agent("n"), follower, nodes=at("n/a:0.2"), daemon_sets=(the_agent(),), types=(MEDIUM,))

    assert by_node(found) == "m.medium: 1 relay"


def test_the_pods_of_a_removed_node_follow_the_daemon_set_to_its_replacement():
    """Drift and consolidation simulate the node's removal: its agent goes with it, a new node has another."""
    (relay,) = some(1, "relay", near("agent", HOST, **SYSTEM), on="n")
    snapshot = a_snapshot(
        pods=(*pods_of_agent("n"), relay),
        daemon_sets=(the_agent(),),
        claims=(a_running_claim("n"),),
        nodes=(a_node("n"),),
    )
    catalogue, without = Catalogue({"default": (MEDIUM,)}), frozenset({"node-n"})

    results = solve(snapshot, catalogue, pods=(relay,), without_nodes=without)

    assert verify_strictly(snapshot, catalogue, results, pods=(relay,), without_nodes=without) == ()
    assert [claim.pods for claim in results.new_claims] == [("default/relay0",)]
    assert relay not in pods_to_schedule(snapshot)


# -- pods that must, or must not, be with them


@both_ways
@table(
    "pods",
    "agent",
    "cluster",
    "expected",
    affinity_narrows_a_new_node_to_those_that_run_it=(
        [some(1, "relay", near("agent", HOST, **SYSTEM))],
        the_agent(selects(type="m.medium")),
        {},
        "m.medium: 1 relay",
    ),
    affinity_to_a_daemon_set_of_no_nodepool=(
        [some(1, "relay", near("agent", HOST, **SYSTEM), tolerates())],
        the_agent(tolerations=[]),
        {"node_pools": (TAINTED,)},
        "pending: 1 relay",
    ),
    anti_affinity_to_one_that_runs_everywhere=(
        [some(1, "loner", apart("agent", HOST, **SYSTEM))],
        the_agent(),
        {"claims": (a_launched_claim(),)},
        "pending: 1 loner",
    ),
    anti_affinity_leaves_the_nodes_that_do_not_run_it=(
        [some(1, "loner", apart("agent", HOST, **SYSTEM))],
        the_agent(selects(type="g.medium")),
        {},
        "m.medium: 1 loner",
    ),
    anti_affinity_over_zones=(
        [some(1, "loner", apart("agent", ZONE, **SYSTEM))],
        the_agent(selects(type="g.medium")),
        {},
        "m.medium: 1 loner",
    ),
    its_own_anti_affinity=(
        [some(1, "loud"), some(1, "calm", selects(type="g.medium"))],
        the_agent(apart("loud", HOST, namespaces=["default"]), selects(type="g.medium")),
        {},
        "g.medium: 1 calm; m.medium: 1 loud",
    ),
)
def test_rules_about_daemon_sets_decide_which_nodes_pods_get(pods, agent, cluster, expected, options):
    """The agent's own node selector says where it runs; the other type is cheaper."""
    found = plan(*pods, daemon_sets=(agent,), types=(CHEAP, MEDIUM), options=options, **cluster)

    assert by_node(found) == expected


@pytest.mark.parametrize(
    ("rule", "agent", "cluster", "words"),
    [
        (
            near("agent", HOST, **SYSTEM),
            the_agent(tolerations=[]),
            {"node_pools": (TAINTED,)},
            ["pod affinity over kubernetes.io/hostname to pods with app=agent"],
        ),
        (
            apart("agent", HOST, **SYSTEM),
            the_agent(),
            {},
            ["DaemonSet kube-system/agent", "pod anti-affinity over kubernetes.io/hostname to pods with app=agent"],
        ),
        (
            near("agent", HOST, **SYSTEM),
            the_agent(selects(type="g.medium")),
            {"types": (MEDIUM, CHEAP), "also": selects(type="m.medium")},
            ["is met on nodes of DaemonSet kube-system/agent only, and it accepts no new one of them"],
        ),
    ],
)
def test_error_of_a_pod_names_the_rule_about_a_daemon_set(rule, agent, cluster, words):
    """And the DaemonSet, if it runs on new nodes."""
    cluster = dict(cluster)

    found = plan(some(1, "web", rule, tolerates(), cluster.pop("also", {})), daemon_sets=(agent,), **cluster)

    assert all(word in errors(found) for word in words)


@pytest.mark.parametrize("policy", list(PreferencePolicy))
def test_a_preference_for_a_daemon_set_decides_between_nodes_but_costs_no_pod(policy):
    """A pod that prefers to be apart from an agent that is everywhere is scheduled all the same."""
    found = plan(
        some(1, "apart", prefers(apart("agent", HOST, **SYSTEM))),
        some(1, "near", prefers(near("agent", HOST, **SYSTEM))),
        some(1, "relay", near("agent", HOST, **SYSTEM)),
        daemon_sets=(the_agent(),),
        options=Options(preferences=policy),
    )

    assert found.results.pod_errors == {}


@pytest.mark.parametrize("written", ["In 3", "NotIn 3", "Exists", "DoesNotExist", "Gt 3", "Lt 3"])
def test_opposites_of_a_requirement_are_met_where_it_is_not(written):
    """Each number, and a missing label, meets either the requirement or one of its opposites."""
    operator, *values = written.split()
    wanted = requirement("k", operator, values)
    others = opposites(wanted)

    for value in ("1", "3", "9"):
        assert wanted.has(value) != any(other.has(value) for other in others)
    assert wanted.allows_absence != any(other.allows_absence for other in others)
