"""Verification of single pods and nodes: the verifier accepts valid plans and reports the faults of invalid ones.

Each case builds a valid plan by hand, breaks one constraint, and expects the message about it. Constraints between pods
are in `test_topology`, volumes and host ports in `test_nodes`.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import NodeSelectorRequirement, OfferingKey
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.results import Results
from tests.helpers import plans
from tests.helpers.builders import (
    LARGE,
    MEDIUM,
    NOW,
    SMALL,
    a_backoff,
    a_claim,
    a_daemon_set,
    a_launched_claim,
    a_node,
    a_node_class,
    a_pod,
    a_pool,
    a_resize,
    a_running_claim,
    a_snapshot,
    ago,
    an_instance_type,
)
from tests.helpers.plans import ERROR, a_plan, a_planned_claim

NODE = "node-default-1"
TAINT = {"key": "gpu", "effect": "NoSchedule"}
BOTH = (SMALL, LARGE)


def objections(results, *pods, types=BOTH, without_nodes=frozenset(), is_certain=True, **cluster):
    """Return the findings about a plan for these pods as one text."""
    snapshot = a_snapshot(**{"pods": pods, **cluster})
    catalogue = Catalogue({pool.metadata.name: types for pool in snapshot.node_pools})
    return plans.objections(snapshot, catalogue, results, pods=pods, without_nodes=without_nodes, is_certain=is_certain)


def on_a_new_node(*pods, types=BOTH, **cluster):
    """Return the findings when these pods share one new node of any of these instance types."""
    return objections(a_plan(a_planned_claim(*pods, types=types)), *pods, types=types, **cluster)


def on_the_node(*pods, node=None, claim=None, **cluster):
    """Return the findings when these pods are scheduled to the one existing node."""
    cluster_objects = {"nodes": (a_node(**(node or {})),), "claims": (a_running_claim(**(claim or {})),)}
    running = cluster.pop("running", ())
    return objections(a_plan(node_default_1=pods), *pods, **{**cluster_objects, "pods": (*pods, *running), **cluster})


def required(*terms):
    """Return a spec whose required node affinity has these terms, each a list of expressions."""
    return {
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": term} for term in terms]
                }
            }
        }
    }


def expression(key, operator, *values):
    """Return a requirement as JSON."""
    return {"key": key, "operator": operator, "values": list(values)}


# -- completeness ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: replace(r, new_claims=r.new_claims * 2), "pod default/p0 is scheduled 2 times"),
        (lambda r: replace(r, pod_errors={"default/p0": ERROR}), "pod default/p0 is scheduled and has an error"),
        (
            lambda r: replace(r, existing={NODE: ("default/ghost",)}),
            "pod default/ghost is scheduled but does not exist",
        ),
        (lambda r: replace(r, new_claims=()), "pod default/p0 is missing from the plan"),
        (lambda r: replace(r, new_claims=(replace(r.new_claims[0], pods=()),)), "has no pods"),
    ],
    ids=["twice", "placed-and-error", "unknown", "forgotten", "empty"],
)
def test_every_pod_is_either_scheduled_once_or_has_an_error(change, words):
    """The verifier also reports unknown pods and NodeClaims without pods."""
    pod = a_pod("p0")
    right = a_plan(a_planned_claim(pod, types=BOTH))
    assert objections(right, pod) == ""
    assert words in objections(change(right), pod)


def test_pod_that_requires_nodes_without_a_node_pool_needs_no_error():
    """Karpenter's own pods have such a node affinity; the plan may omit them."""
    own = expression(labels.NODEPOOL, "DoesNotExist")
    assert objections(Results(), a_pod("operator", spec=required([own]))) == ""
    assert objections(Results(), a_pod("operator", spec=required([own], []))) == ""  # an empty term matches no node
    also_elsewhere = a_pod("p", spec=required([own], [expression("app", "Exists")]))
    assert "is missing" in objections(Results(), also_elsewhere)

    with_fields = required([own])
    (term,) = with_fields["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    term["matchFields"] = [expression("metadata.name", "In", "n")]
    assert objections(Results(), a_pod("operator", spec=with_fields)) == ""


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"containers": [{"name": "c", "resources": {"claims": [{"name": "gpu"}]}}]}, "it has resource claims"),
        ({"containers": [{"name": "c", "resources": {"requests": {"cpu": "-1"}}}]}, "is negative"),
    ],
    ids=["devices", "negative"],
)
def test_scheduled_pod_with_unsupported_or_invalid_requests_is_reported(spec, words):
    """The pod has a resource claim that the judge rejects, or a negative request."""
    plain, is_certain = a_pod("p"), words == "is negative"
    plan = a_plan(a_planned_claim(plain, types=BOTH))
    assert objections(plan, plain) == ""
    assert words in objections(plan, a_pod("p", spec=spec), is_certain=is_certain)


# -- planned NodeClaims ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"instance_types": ("m.small",)}, "m.large in a could be launched under its requirements, but is not"),
        ({"instance_types": ("m.small", "m.large", "m.huge")}, "m.huge cannot be launched"),
        ({"offering": OfferingKey("m.large", "b", labels.SPOT)}, "can never be m.large b spot"),
        ({"price": 0.01}, "says 0.01 per hour, its cheapest offering costs 0.1"),
        ({"price": float("nan")}, "says nan per hour"),
        ({"requests": {"cpu": 500}}, "requests cpu 500, its pods request 1000"),
        ({"node_pool": "gone"}, "NodePool gone does not exist"),
        ({"requirements": (NodeSelectorRequirement(key=labels.ZONE, operator="In", values=("z",)),)}, "nothing can be"),
    ],
    ids=["too-few-types", "invented-type", "offering", "price", "nan", "requests", "pool", "nowhere"],
)
def test_planned_nodeclaim_with_wrong_contents_is_reported(change, words):
    """Checks instance types, offering, price, requests, NodePool and requirements of the NodeClaim."""
    pod = a_pod("p")
    claim = a_planned_claim(pod, types=BOTH)
    assert objections(a_plan(claim), pod) == ""
    is_certain = "price" not in change and "offering" not in change and words[:7] != "m.large"
    assert words in objections(a_plan(replace(claim, **change)), pod, is_certain=is_certain)


@pytest.mark.parametrize(
    ("pool", "node_class", "words"),
    [
        ({"spec": {"replicas": 3}}, {}, "has a fixed number of nodes"),
        ({"metadata": {"deletionTimestamp": "2026-03-02T20:00:00Z"}}, {}, "is being deleted"),
        ({}, {"ready": False}, "has no NodeClass that is ready"),
        ({}, {"deleting": True}, "has no NodeClass that is ready"),
        ({}, {"name": "other"}, "has no NodeClass that is ready"),
    ],
    ids=["static", "deleting", "not-ready", "class-going", "no-class"],
)
def test_only_a_dynamic_ready_node_pool_can_launch_nodes(pool, node_class, words):
    """A static NodePool, one that is being deleted, or one without a ready NodeClass cannot launch nodes."""
    assert words in on_a_new_node(a_pod("p"), node_pools=(a_pool(**pool),), node_classes=(a_node_class(**node_class),))


def test_node_pool_launches_no_second_node_while_one_tries_again_after_a_failed_launch():
    """Before its back-off ends, it launches none; then one, and more once that one's node has registered."""
    pod, young = a_pod("p"), timedelta(minutes=1)

    def found(until, *claims):
        return on_a_new_node(pod, claims=claims, launch_backoffs=(a_backoff(until=until),), is_certain=False)

    assert "launches nothing for now, because of a failed launch" in found(NOW + young)
    assert found(NOW) == ""
    waits = "launches nothing until the node of NodeClaim try registers, after a failed launch"
    assert waits in found(ago(minutes=1), a_launched_claim("try", age=young))
    assert found(ago(minutes=1), a_running_claim("try", age=young)) == ""


@pytest.mark.parametrize(
    ("pod", "pool", "words"),
    [
        ({}, {"template": {"spec": {"taints": [TAINT]}}}, "pod default/p does not tolerate taint gpu="),
        ({"nodeSelector": {labels.ARCH: "arm64"}}, {}, "pod default/p does not accept its labels"),
        ({"nodeSelector": {"team": "red"}}, {}, "pod default/p does not accept its labels"),
        (required([expression(labels.ARCH, "NotIn", "amd64")]), {}, "pod default/p does not accept its labels"),
        (required([expression(labels.OS, "DoesNotExist")]), {}, "pod default/p does not accept its labels"),
        (required([expression("team", "Exists")]), {}, "pod default/p does not accept its labels"),
        (required(), {}, "pod default/p does not accept its labels"),
        ({}, {"limits": {"cpu": "1"}}, "with the NodeClaim for default/p, its limit is 1000"),
        ({}, {"limits": {"nodes": "0"}}, "nodes could reach 1"),
        (
            {},
            {"template": {"spec": {"requirements": [expression(labels.ARCH, "In", "arm64")]}}},
            f"breaks the NodePool's requirement {labels.ARCH} In",
        ),
        ({}, {"template": {"metadata": {"labels": {labels.ARCH: "arm64"}}}}, "breaks the NodePool's requirement"),
        (
            {},
            {"template": {"spec": {"requirements": [expression("team", "Exists")]}}},
            "breaks the NodePool's requirement team Exists",
        ),
    ],
    ids=[
        "taint",
        "selector",
        "custom-label",
        "not-in",
        "does-not-exist",
        "exists",
        "no-terms",
        "limit",
        "nodes",
        "pool-requirement",
        "pool-label",
        "undecided-label",
    ],
)
def test_new_node_must_meet_the_constraints_of_its_pods_and_its_node_pool(pod, pool, words):
    """The plan is valid for a plain pod and NodePool, but not with one additional constraint."""
    assert on_a_new_node(a_pod("p")) == ""
    assert words in on_a_new_node(a_pod("p", spec=pod), node_pools=(a_pool(spec=pool),))


GENERATION = "karpenter.k8s.aws/instance-generation"


@pytest.mark.parametrize(
    ("operator", "bound", "right"),
    [
        ("Gt", "4", True),
        ("Gt", "5", False),
        ("Gte", "5", True),
        ("Gte", "6", False),
        ("Lt", "6", True),
        ("Lt", "5", False),
        ("Lte", "5", True),
        ("Lte", "4", False),
        ("Gt", "many", False),
        ("Near", "5", False),
    ],
)
def test_gt_gte_lt_and_lte_compare_integers(operator, bound, right):
    """No label value meets a requirement with an invalid number or an unknown operator."""
    label = NodeSelectorRequirement(key=GENERATION, operator="In", values=("5",))
    fifth = replace(SMALL, requirements=(*SMALL.requirements, label))
    pod = a_pod("p", spec=required([expression(GENERATION, operator, bound)]))
    assert (on_a_new_node(pod, types=(fifth,)) == "") == right


@pytest.mark.parametrize("operators", [("NotIn", "Exists"), ("Exists", "NotIn")])
def test_label_that_no_requirement_decides_may_meet_all_of_them(operators):
    """No instance type states the well-known label, and the NodeClaim lists no value of it."""
    pod = a_pod("p")
    claim = a_planned_claim(pod, types=BOTH)
    values = {"NotIn": ("10.0",), "Exists": ()}
    more = [NodeSelectorRequirement(key=labels.WINDOWS_BUILD, operator=o, values=values[o]) for o in operators]
    assert objections(a_plan(replace(claim, requirements=(*claim.requirements, *more))), pod) == ""


def test_one_node_affinity_term_must_hold_for_every_launchable_node():
    """A NodeClaim for zones a and b suits a pod that accepts both zones, but not a pod that accepts only zone a."""
    zonal = an_instance_type("z", cpu=4, memory_gib=16, price=0.2, zones=("a", "b"))
    either = a_pod("p", spec=required([expression(labels.ZONE, "In", "a")], [expression(labels.ZONE, "In", "b")]))
    assert on_a_new_node(either, types=(zonal,)) == ""
    one = a_pod("p", spec=required([expression(labels.ZONE, "In", "a")]))
    assert "pod default/p does not accept its labels as z in b" in on_a_new_node(one, types=(zonal,))


def test_node_affinity_terms_with_match_fields_match_no_new_node():
    """As in Karpenter: matchFields select nodes by name."""
    spec = required([])
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    terms[0]["matchFields"] = [expression("metadata.name", "In", "x")]
    assert "does not accept its labels" in on_a_new_node(a_pod("p", spec=spec))


def test_all_pods_of_a_nodeclaim_fit_each_of_its_instance_types():
    """The smallest instance type must fit them too."""
    pods = (a_pod("p0", cpu="1"), a_pod("p1", cpu="900m"))
    assert on_a_new_node(*pods) == ""
    assert "cpu 2000 requested beside 0 of daemons, m.small in a has less" in on_a_new_node(*pods[:1], a_pod("p1"))


def test_pods_on_a_node_stay_within_its_pod_capacity():
    """The verifier checks the resource `pods` like any other resource."""
    tiny = replace(SMALL, capacity={**SMALL.capacity, "pods": 2})
    pods = tuple(a_pod(f"p{i}", cpu="10m", memory="1Mi") for i in range(3))
    assert on_a_new_node(*pods[:2], types=(tiny,)) == ""
    assert "pods 3 requested" in on_a_new_node(*pods, types=(tiny,))


@pytest.mark.parametrize(
    ("daemon", "fits"),
    [
        ({}, False),
        ({"nodeSelector": {labels.ARCH: "amd64"}}, False),
        ({"nodeSelector": {labels.ARCH: "arm64"}}, True),
        (required([expression(labels.ARCH, "In", "arm64")], [expression(labels.OS, "In", "linux")]), False),
        ({"tolerations": []}, True),
        ({"containers": [{"name": "c", "resources": {"requests": {"cpu": "much"}}}]}, True),
    ],
    ids=["everywhere", "suits", "elsewhere", "second-term", "untolerated", "unreadable"],
)
def test_daemon_overhead_counts_on_nodes_where_the_daemon_set_can_run(daemon, fits):
    """Node selectors, node affinity terms and taints decide; a PreferNoSchedule taint does not exclude a daemon."""
    pod = a_pod("p", cpu="1900m", spec={"tolerations": [{"operator": "Exists"}]})
    spec = {"template": {"spec": {"taints": [TAINT, {"key": "calm", "effect": "PreferNoSchedule"}]}}}
    found = a_daemon_set("agent", **daemon)
    assert (on_a_new_node(pod, node_pools=(a_pool(spec=spec),), daemon_sets=(found,), types=(SMALL,)) == "") == fits


def test_min_values_must_be_met_unless_the_nodeclaim_says_they_were_relaxed():
    """Two instance types meet minValues 2 of the instance type label, but not minValues 3."""
    pod = a_pod("p")
    claim = a_planned_claim(pod, types=BOTH)

    def pool_with_min_values(number):
        wanted = {"key": labels.INSTANCE_TYPE, "operator": "Exists", "minValues": number}
        return (a_pool(spec={"template": {"spec": {"requirements": [wanted]}}}),)

    assert objections(a_plan(claim), pod, node_pools=pool_with_min_values(2)) == ""
    found = objections(a_plan(claim), pod, node_pools=pool_with_min_values(3))
    assert f"for default/p: its types offer 2 value(s) of {labels.INSTANCE_TYPE}, NodePool default wants 3" in found
    relaxed = replace(claim, min_values_relaxed=True)
    assert objections(a_plan(relaxed), pod, node_pools=pool_with_min_values(3)) == ""


def test_node_pool_limits_cover_usage_and_the_largest_type_of_each_nodeclaim():
    """Nodes that are being deleted or left out do not count, nor those that lie about their instance; an unlaunched NodeClaim
    counts as its largest type."""
    pods = (a_pod("p0"), a_pod("p1"))
    plan = a_plan(*(a_planned_claim(pod, types=(SMALL,)) for pod in pods))
    pool = a_pool(spec={"limits": {"cpu": "4"}})
    assert objections(plan, *pods, node_pools=(pool,)) == ""
    running = {"nodes": (a_node(),), "claims": (a_running_claim(),)}
    assert "cpu could reach 8000" in objections(plan, *pods, node_pools=(pool,), **running)
    without = frozenset({NODE})
    assert objections(plan, *pods, node_pools=(pool,), without_nodes=without, **running) == ""
    leaving = {**running, "claims": (a_running_claim(deleting=ago(minutes=1)),)}
    assert objections(plan, *pods, node_pools=(pool,), **leaving) == ""
    lie = {"cpu": "1000"}
    twin = a_node(metadata={"name": "forged"}, status={"capacity": lie, "allocatable": lie})
    named = a_running_claim(deleting=ago(minutes=1), status={"nodeName": a_node().metadata.name})
    forged = {"nodes": (a_node(), twin), "claims": (named,)}
    assert objections(plan, *pods, node_pools=(pool,), **forged) == ""
    unlaunched = {"claims": (a_claim(),), "types": (SMALL, MEDIUM)}
    claims = (
        replace(
            c, requirements=(NodeSelectorRequirement(key=labels.INSTANCE_TYPE, operator="In", values=("m.small",)),)
        )
        for c in plan.new_claims
    )
    assert "cpu could reach 8000" in objections(a_plan(*claims), *pods, node_pools=(pool,), **unlaunched)


def test_nodeclaims_that_need_a_reservation_stay_within_its_capacity():
    """NodeClaims that can use another offering do not count, unless they hold the reservation."""
    reserved = replace(SMALL.offerings[0], capacity_type=labels.RESERVED, price=0.01, requirements=())
    reserved = replace(reserved, reservation_id="cr-1", reservation_capacity=1)
    both = (replace(SMALL, offerings=(*SMALL.offerings, reserved)),)
    pods = (a_pod("p0"), a_pod("p1"))
    bound = [a_planned_claim(pod, types=both, capacity_type=labels.RESERVED) for pod in pods]
    free = a_planned_claim(pods[1], types=both)
    assert objections(a_plan(bound[0], free), *pods, types=both) == ""
    assert "reservation cr-1: 2 NodeClaims need it" in objections(a_plan(*bound), *pods, types=both)
    holding = replace(free, reservations=("cr-1",))
    assert "reservation cr-1: 2 NodeClaims" in objections(a_plan(bound[0], holding), *pods, types=both)


# -- existing nodes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pod", "node", "words"),
    [
        ({}, {"spec": {"taints": [TAINT]}}, "pod default/p does not tolerate taint gpu:NoSchedule"),
        ({"nodeSelector": {labels.ZONE: "b"}}, {}, "pod default/p does not accept its labels"),
        (required([expression("rack", "Exists")]), {}, "pod default/p does not accept its labels"),
        ({"nodeSelector": {labels.ARCH: "amd64"}}, {}, "pod default/p does not accept its labels"),
        ({}, {"spec": {"unschedulable": True}}, "does not tolerate taint node.kubernetes.io/unschedulable"),
        ({}, {"status": {"allocatable": {"cpu": "500m"}}}, "cpu is exceeded by 500 with pods default/p"),
        ({}, {"status": {"allocatable": {"cpu": "lots"}}}, "its size cannot be read"),
        ({}, {"spec": {"taints": [{"key": labels.DISRUPTED_TAINT, "effect": "NoSchedule"}]}}, "it does not exist, is"),
        ({}, {"deleting": ago(minutes=1)}, f"node {NODE} gets pods (default/p) although it does not exist, is going"),
    ],
    ids=["taint", "label", "exists", "well-known", "cordoned", "overbooked", "unreadable", "tainted", "going"],
)
def test_existing_node_must_meet_the_constraints_of_its_pods(pod, node, words):
    """Checks taints, labels (also missing ones), allocatable, and whether the node is being deleted."""
    assert on_the_node(a_pod("p")) == ""
    assert words in on_the_node(a_pod("p", spec=pod), node=node)


def test_tolerated_cordon_and_prefer_no_schedule_taint_allow_a_pod():
    """The pod tolerates the unschedulable taint; a PreferNoSchedule taint never excludes a pod."""
    pod = a_pod("p", spec={"tolerations": [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]})
    quiet = {"unschedulable": True, "taints": [{"key": "quiet", "effect": "PreferNoSchedule"}]}
    assert on_the_node(pod, node={"spec": quiet}) == ""


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"operator": "Gt", "value": "4"}, True),
        ({"operator": "Gt", "value": "5"}, False),
        ({"operator": "Lt", "value": "6"}, True),
        ({"operator": "Lt", "value": "low"}, False),
        ({"operator": "Equal", "value": "5"}, True),
        ({"value": "5", "effect": "NoExecute"}, False),
        ({"operator": "Like", "value": "5"}, False),
        ({"key": "other", "operator": "Exists"}, False),
    ],
)
def test_tolerations_match_taints_as_in_kubernetes(toleration, tolerated):
    """Covers the operators Equal, Exists, Gt and Lt, keys and effects."""
    pod = a_pod("p", spec={"tolerations": [{"key": "risk", **toleration}]})
    taint = {"key": "risk", "value": "5", "effect": "NoSchedule"}
    assert (on_the_node(pod, node={"spec": {"taints": [taint]}}) == "") == tolerated


def test_pod_scheduled_to_an_excluded_node_is_reported():
    """Consolidation simulates scheduling without its candidate nodes."""
    assert "was to be left out" in on_the_node(a_pod("p"), without_nodes=frozenset({NODE}))


def test_running_and_nominated_pods_use_resources_of_a_node():
    """A running pod that the plan reschedules to another node does not count."""
    running = a_pod("r", cpu="3500m", node=NODE)
    assert "cpu is exceeded by 500" in on_the_node(a_pod("p"), running=(running,))
    nominated = a_pod("n", cpu="3500m", status={"nominatedNodeName": NODE})
    assert "cpu is exceeded by 500" in on_the_node(a_pod("p"), running=(nominated,))
    assert on_the_node(a_pod("p"), running=(a_pod("r", cpu="3", node=NODE),)) == ""
    moved = objections(
        a_plan(a_planned_claim(running, types=(LARGE,)), node_default_1=[a_pod("p")]),
        a_pod("p"),
        running,
        types=(LARGE,),
        nodes=(a_node(),),
        claims=(a_running_claim(),),
    )
    assert moved == ""


def test_daemon_overhead_counts_future_daemons_and_running_ones_once():
    """The overhead is the requests of all DaemonSets for the node, minus those of daemon pods that already run."""
    agent = a_daemon_set("agent", cpu="500m")
    pod = a_pod("p", cpu="3800m")
    assert on_the_node(pod) == ""
    assert "cpu is exceeded by 300" in on_the_node(pod, daemon_sets=(agent,))
    owner = {"kind": "DaemonSet", "apiVersion": "apps/v1", "name": "agent", "uid": "uid-agent"}
    there = a_pod("agent-1", cpu="500m", node=NODE, metadata={"ownerReferences": [owner]})
    assert on_the_node(a_pod("p", cpu="3500m"), daemon_sets=(agent,), running=(there,)) == ""


def test_uninitialized_node_uses_nodeclaim_resources_and_ignores_startup_taints():
    """A NodeClaim that has not launched has only the capacity that it requests."""
    starting = {
        "metadata": {"labels": {labels.INITIALIZED: "false"}},
        "spec": {"taints": [{"key": "boot", "effect": "NoSchedule"}]},
        "status": {"allocatable": {"cpu": "0"}},
    }
    claim = {"spec": {"startupTaints": [{"key": "boot", "effect": "NoSchedule"}]}}
    assert on_the_node(a_pod("p", cpu="3"), node=starting, claim=claim) == ""
    assert "does not tolerate taint boot" in on_the_node(a_pod("p", cpu="3"), node=starting)
    unlaunched = a_plan(default_1=[a_pod("p", cpu="4")])
    assert "cpu is exceeded by 1000" in objections(unlaunched, a_pod("p", cpu="4"), claims=(a_claim(),))


def test_resized_pod_counts_with_the_most_that_it_requests_and_has():
    """A pod of the same spec that is not resized comes first; after an infeasible growth only what the pod has counts."""
    equal = a_pod("equal", cpu="500m", node="node-other")
    shrinks = a_pod("shrinks", cpu="500m", node=NODE, status=a_resize("3500m"))
    refused = a_pod("refused", cpu="64", node=NODE, status=a_resize("3", pending="Infeasible"))

    assert "cpu is exceeded by 500" in on_the_node(a_pod("p"), running=(equal, shrinks))
    assert on_the_node(a_pod("p"), running=(refused,)) == ""
