"""Each intended difference from Karpenter, on the smallest cluster that shows it."""

import pytest
from msgspec.structs import replace

from tests.differential.accepted_differences import unaccepted
from tests.differential.compare import Finding, OurSolution, compare_plans, compare_with_answer, plan_of
from tests.differential.draw.words import (
    ARCH,
    CAPACITY_TYPE,
    HOSTNAME,
    INSTANCE_TYPE,
    NODE_CLASS,
    NODEPOOL,
    RESERVATION,
    ZONE,
    an_object,
    require,
)

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
WEB = {"matchLabels": {"app": "web"}}
APART = {"podAntiAffinity": {REQUIRED: [{"topologyKey": HOSTNAME, "labelSelector": WEB}]}}


def a_type(name, *, cpu, price, zones="ab", out_of_stock=""):
    """An on-demand type with 4 GiB per core."""
    labels = {INSTANCE_TYPE: [name], ARCH: ["amd64"], ZONE: list(zones), CAPACITY_TYPE: ["on-demand"]}
    return {
        "name": name,
        "requirements": [require(key, "In", *values) for key, values in labels.items()],
        "offerings": [
            {
                "requirements": [require(ZONE, "In", zone), require(CAPACITY_TYPE, "In", "on-demand")],
                "price": price,
                "available": zone not in out_of_stock,
            }
            for zone in zones
        ],
        "capacity": {"cpu": str(cpu), "memory": f"{4 * cpu}Gi", "pods": "110"},
        "overhead": {},
    }


def a_pool(name="default", *, requirements=(), **spec):
    template = {"spec": {"nodeClassRef": NODE_CLASS, "requirements": list(requirements)}}
    return an_object("NodePool", name, "karpenter.sh/v1", spec={"template": template, **spec})


def pods(count, *, cpu="1", **spec):
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}
    labels = {"labels": {"app": "web"}}
    spec = {"containers": [container], **spec}
    return [an_object("Pod", f"web-{i}", namespace="default", metadata=labels, spec=spec) for i in range(count)]


def a_daemon_set(*, cpu="100m", **container):
    """A DaemonSet `agent` whose pods have the label `app=agent`, for every node."""
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu, "memory": "64Mi"}}, **container}
    labels = {"app": "agent"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    return an_object("DaemonSet", "agent", "apps/v1", namespace="kube-system", spec=spec)


def apart_from(app):
    """Return the affinity of a pod that must not share a node with pods of an app, of any namespace."""
    term = {"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": {"app": app}}, "namespaceSelector": {}}
    return {"podAntiAffinity": {REQUIRED: [term]}}


def renamed(pod, name):
    pod["metadata"] = {**pod["metadata"], "name": name}
    return pod


def a_scenario(types, *objects):
    """Return a scenario whose pods have UIDs in the order of their names, so that Karpenter's queue is the same each time."""
    for raw in objects:
        if raw["kind"] == "Pod":
            raw["metadata"] = {**raw["metadata"], "uid": raw["metadata"]["name"]}
    return {"name": "difference", "instanceTypes": types, "objects": list(objects), "options": {}}


def spread_over(key):
    constraint = {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule"}
    return [{**constraint, "labelSelector": WEB}]


def test_zone_without_available_offerings_is_no_spread_domain(karpenter):
    """Zone b is unavailable. Karpenter leaves all pods but one at most pending; we schedule all of them in zone a."""
    scenario = a_scenario(
        [a_type("m", cpu=4, price=0.2, out_of_stock="b")],
        a_pool(),
        *pods(5, topologySpreadConstraints=spread_over(ZONE)),
    )

    assert len(karpenter.solve(scenario)["errors"]) >= 4
    assert len(OurSolution(scenario).scheduled) == 5
    assert not compare_plans(scenario, karpenter)


def test_node_affinity_terms_are_alternatives(karpenter):
    """Either type is allowed. Karpenter launches the first one; we the cheaper one."""
    terms = [{"matchExpressions": [require(INSTANCE_TYPE, "In", name)]} for name in ("dear", "cheap")]
    affinity = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}
    types = [a_type("dear", cpu=4, price=0.9), a_type("cheap", cpu=4, price=0.2)]
    scenario = a_scenario(types, a_pool(), *pods(1, affinity=affinity))

    assert karpenter.solve(scenario)["price"] == pytest.approx(0.9)
    assert OurSolution(scenario).results.price == pytest.approx(0.2)
    assert not compare_plans(scenario, karpenter)


def test_nodepools_of_equal_weight_compete_on_price(karpenter):
    """Two pools, two types. Karpenter uses the pool whose name is last; we the cheaper one."""
    pools = [
        a_pool("a", requirements=[require(INSTANCE_TYPE, "In", "cheap")]),
        a_pool("z", requirements=[require(INSTANCE_TYPE, "In", "dear")]),
    ]
    scenario = a_scenario([a_type("dear", cpu=4, price=0.9), a_type("cheap", cpu=4, price=0.2)], *pools, *pods(1))

    assert karpenter.solve(scenario)["price"] == pytest.approx(0.9)
    assert OurSolution(scenario).results.price == pytest.approx(0.2)
    assert not compare_plans(scenario, karpenter)


def test_limit_counts_the_planned_instance_type(karpenter):
    """A limit of 8 cores, pods with anti-affinity. Karpenter counts the largest type each time, and stops early."""
    types = [a_type("small", cpu=2, price=0.1), a_type("large", cpu=8, price=0.4)]
    scenario = a_scenario(types, a_pool(limits={"cpu": "8"}), *pods(4, affinity=APART))

    assert len(karpenter.solve(scenario)["errors"]) == 3
    assert len(OurSolution(scenario).scheduled) == 4
    assert not compare_plans(scenario, karpenter)


def test_nodepool_of_greater_weight_is_used_up_to_its_limit(karpenter):
    """Four small nodes are within the limit. Karpenter counts a large one, and uses the cheaper pool for three pods."""
    types = [a_type("small", cpu=2, price=0.3), a_type("large", cpu=8, price=0.9), a_type("cheap", cpu=2, price=0.1)]
    first = a_pool(
        "first", requirements=[require(INSTANCE_TYPE, "In", "small", "large")], weight=10, limits={"cpu": "8"}
    )
    second = a_pool("second", requirements=[require(INSTANCE_TYPE, "In", "cheap")])
    scenario = a_scenario(types, first, second, *pods(4, affinity=APART))

    found = compare_plans(scenario, karpenter)

    assert karpenter.solve(scenario)["price"] == pytest.approx(0.6)
    assert OurSolution(scenario).results.price == pytest.approx(1.2)
    assert {f.kind for f in found} == {"dearer"}
    assert unaccepted(scenario, found) == []


def test_limit_on_nodes_holds_within_a_pass(karpenter):
    """One node allowed, pods with anti-affinity. Karpenter plans three nodes; we one, with two pod errors."""
    scenario = a_scenario([a_type("m", cpu=4, price=0.2)], a_pool(limits={"nodes": "1"}), *pods(3, affinity=APART))

    found = compare_plans(scenario, karpenter)

    assert len(karpenter.solve(scenario)["nodeClaims"]) == 3
    assert len(OurSolution(scenario).results.new_claims) == 1
    assert {f.kind for f in found} == {"missing", "rejected"}
    assert unaccepted(scenario, found) == []


def test_other_pods_may_get_scarce_capacity(karpenter):
    """A node with capacity for two of three equal pods. Karpenter's queue and our classes break the tie differently."""
    labels = {HOSTNAME: "n0", ZONE: "a", INSTANCE_TYPE: "m", CAPACITY_TYPE: "on-demand"}
    capacity = {"cpu": "2", "memory": "8Gi", "pods": "10"}
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    node = an_object(
        "Node", "n0", metadata={"labels": labels}, status={"capacity": capacity, "allocatable": capacity, **ready}
    )
    first, second, third = pods(3)
    zone_a = {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [require(ZONE, "In", "a")]}]}}
    second["spec"] = {**second["spec"], "affinity": {"nodeAffinity": zone_a}}
    scenario = a_scenario([a_type("m", cpu=4, price=0.2)], a_pool(limits={"cpu": "0"}), node, first, second, third)

    found = compare_plans(scenario, karpenter)

    assert len(OurSolution(scenario).scheduled) == 2
    assert {f.kind for f in found} <= {"missing"}
    assert unaccepted(scenario, found) == []


def test_other_pods_may_get_a_zone_exclusively(karpenter):
    """One zone, a large pod with anti-affinity to two small ones. Karpenter schedules the large one; we the two."""
    alone = {"podAntiAffinity": {REQUIRED: [{"topologyKey": ZONE, "labelSelector": WEB}]}}
    first, second = pods(2)
    large = pods(1, cpu="3", affinity=alone)[0]
    renamed(large, "large")
    scenario = a_scenario([a_type("m", cpu=4, price=0.2, zones="a")], a_pool(), first, second, large)

    found = compare_plans(scenario, karpenter)

    assert sorted(karpenter.solve(scenario)["errors"]) == ["default/web-0", "default/web-1"]
    assert OurSolution(scenario).scheduled == {"default/web-0", "default/web-1"}
    assert {f.kind for f in found} == {"missing"}
    assert unaccepted(scenario, found) == []


def test_exists_with_not_in_requires_the_label(karpenter):
    """The pod requires the label tier, and excludes gold. Karpenter launches a node without the label."""
    preference = {"weight": 1, "preference": {"matchExpressions": [require("tier", "NotIn", "gold")]}}
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preference]}}
    scenario = a_scenario(
        [a_type("m", cpu=4, price=0.2)], a_pool(), *pods(1, nodeSelector={"tier": "gold"}, affinity=affinity)
    )

    found = compare_plans(scenario, karpenter)

    assert {f.kind for f in found} == {"missing", "rejected"}
    assert unaccepted(scenario, found) == []


def test_not_in_of_one_pod_does_not_define_the_label(karpenter):
    """No pool has the label team. One pod excludes a value, the other requires any; Karpenter adds both to one node."""

    def team(kind, *values):
        terms = [{"matchExpressions": [require("team", kind, *values)]}]
        return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}

    first, second = pods(1, cpu="2", affinity=team("NotIn", "blue"))[0], pods(1, affinity=team("Exists"))[0]
    renamed(first, "first")
    scenario = a_scenario([a_type("m", cpu=4, price=0.2)], a_pool(), first, second)

    found = compare_plans(scenario, karpenter)

    assert not karpenter.solve(scenario)["errors"]
    assert OurSolution(scenario).scheduled == {"default/first"}
    assert {f.kind for f in found} == {"missing", "rejected"}
    assert unaccepted(scenario, found) == []


def test_not_in_of_one_pod_does_not_define_the_label_of_an_existing_node(karpenter):
    """The node lacks the label tier, which the pool has. Karpenter schedules both pods there; we only one."""

    def tier(kind, *values):
        terms = [{"matchExpressions": [require("tier", kind, *values)]}]
        return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}

    first, second = pods(1, cpu="2", affinity=tier("NotIn", "gold"))[0], pods(1, affinity=tier("Exists"))[0]
    renamed(first, "first")
    capacity = {"cpu": "8", "memory": "32Gi", "pods": "10"}
    node = an_object("Node", "n0", status={"capacity": capacity, "allocatable": capacity})
    pool = a_pool(requirements=[require("tier", "In", "silver")])
    scenario = a_scenario([a_type("m", cpu=4, price=0.2)], pool, node, first, second)

    found = compare_plans(scenario, karpenter)

    assert karpenter.solve(scenario)["existing"] == {"n0": ["default/first", "default/web-0"]}
    assert OurSolution(scenario).results.existing == {"n0": ("default/first",)}
    assert {f.kind for f in found} == {"rejected", "dearer"}
    assert unaccepted(scenario, found) == []


def test_preference_is_kept_where_an_order_of_pods_allows_it(karpenter):
    """Two pods prefer a capacity type of their own; a Spot node holds one more pod. Karpenter gives it to the third."""
    avoiding = {"weight": 1, "podAffinityTerm": {"topologyKey": CAPACITY_TYPE, "labelSelector": WEB}}
    apart = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [avoiding]}}
    both = a_type("m", cpu=4, price=0.2, zones="a")
    both["requirements"][-1]["values"] = ["on-demand", "spot"]
    spot = {"requirements": [require(ZONE, "In", "a"), require(CAPACITY_TYPE, "In", "spot")], "price": 0.1}
    both["offerings"].append({**spot, "available": True})
    capacity = {"cpu": "1", "memory": "4Gi", "pods": "10"}
    node = an_object("Node", "n0", metadata={"labels": {CAPACITY_TYPE: "spot"}}, status={"allocatable": capacity})
    third = renamed(pods(1)[0], "third")
    third["metadata"]["labels"] = {}
    scenario = a_scenario([both], a_pool(), node, third, *pods(2, affinity=apart))

    found = compare_plans(scenario, karpenter)

    assert karpenter.solve(scenario)["existing"] == {"n0": ["default/third"]}
    assert [claim.offering[2] for claim in OurSolution(scenario).results.new_claims] == ["on-demand"]
    assert {f.kind for f in found} == {"dearer"}
    assert unaccepted(scenario, found) == []


def test_dearer_plan_is_a_finding_if_both_plans_keep_the_preference(karpenter):
    """No pod matches the term, so every plan satisfies it."""
    avoiding = {"weight": 1, "podAffinityTerm": {"topologyKey": ZONE, "labelSelector": {"matchLabels": {"app": "db"}}}}
    apart = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [avoiding]}}
    scenario = a_scenario([a_type("m", cpu=4, price=0.2)], a_pool(), *pods(1, affinity=apart))
    karpenter_plan = plan_of(karpenter.solve(scenario))
    found = [Finding(kind="dearer", text="", karpenter_plan=karpenter_plan)]

    assert unaccepted(scenario, found) == found


def test_domain_of_a_node_that_is_to_join_counts_for_spreads(karpenter):
    """It joins empty in zone b, for which there is no type, so the second pod in zone a would exceed maxSkew."""
    claim = an_object(
        "NodeClaim",
        "c0",
        "karpenter.sh/v1",
        metadata={"labels": {ZONE: "b", NODEPOOL: "default"}},
        spec={"nodeClassRef": NODE_CLASS, "requirements": []},
        status={"providerID": "aws:///b/i-0"},
    )
    spread = pods(2, topologySpreadConstraints=spread_over(ZONE))
    scenario = a_scenario([a_type("m", cpu=4, price=0.2, zones="a")], a_pool(), claim, *spread)

    found = compare_plans(scenario, karpenter)

    assert sum(len(claim["pods"]) for claim in karpenter.solve(scenario)["nodeClaims"]) == 2
    assert {f.kind for f in found} == {"rejected", "missing"}
    assert unaccepted(scenario, found) == []
    without = {**scenario, "objects": [o for o in scenario["objects"] if o is not claim]}
    assert compare_plans(without, karpenter) == []


def test_pods_on_a_starting_node_count_for_spreads(karpenter):
    """One such pod is on a node that is not ready yet, so the third pod would exceed maxSkew."""
    labels = {HOSTNAME: "n0", ZONE: "a", INSTANCE_TYPE: "m", CAPACITY_TYPE: "on-demand", NODEPOOL: "default"}
    labels |= {"karpenter.sh/registered": "true"}
    capacity = {"cpu": "8", "memory": "32Gi", "pods": "10"}
    taint = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
    node = an_object("Node", "n0", metadata={"labels": labels}, status={"capacity": capacity, "allocatable": capacity})
    node["spec"] = {"providerID": "aws:///a/i-0", "taints": [taint]}
    claim = an_object(
        "NodeClaim",
        "c0",
        "karpenter.sh/v1",
        metadata={"labels": {k: v for k, v in labels.items() if k != HOSTNAME}},
        spec={"nodeClassRef": NODE_CLASS, "requirements": []},
        status={"providerID": "aws:///a/i-0", "nodeName": "n0", "capacity": capacity, "allocatable": capacity},
    )
    claim["status"]["conditions"] = [{"type": kind, "status": "True"} for kind in ("Launched", "Registered")]
    spread = [{**spread_over(HOSTNAME)[0], "maxSkew": 2, "nodeTaintsPolicy": "Honor"}]
    running, *pending = pods(3, topologySpreadConstraints=spread)
    running["spec"] = {**running["spec"], "nodeName": "n0"}
    running["status"] = {"phase": "Running"}
    scenario = a_scenario([a_type("m", cpu=4, price=0.2)], a_pool(), node, claim, running, *pending)

    found = compare_plans(scenario, karpenter)

    assert len(karpenter.solve(scenario)["nodeClaims"]) == 0
    assert len(OurSolution(scenario).results.new_claims) == 1
    assert {f.kind for f in found} == {"rejected", "dearer"}
    assert unaccepted(scenario, found) == []


def test_pod_of_a_deleted_node_is_not_scheduled_without_its_volume_claim(karpenter):
    """Its PersistentVolumeClaim is gone. Karpenter schedules the pod to the other node; we do not."""
    capacity = {"cpu": "8", "memory": "32Gi", "pods": "10"}
    labels = {HOSTNAME: "n0", ZONE: "a", INSTANCE_TYPE: "m", CAPACITY_TYPE: "on-demand", NODEPOOL: "default"}
    claim = an_object(
        "NodeClaim",
        "c0",
        "karpenter.sh/v1",
        metadata={
            "labels": labels,
            "deletionTimestamp": "2026-01-05T11:59:00Z",
            "finalizers": ["karpenter.sh/termination"],
        },
        spec={"nodeClassRef": NODE_CLASS, "requirements": []},
        status={"providerID": "aws:///a/i-0", "capacity": capacity, "allocatable": capacity},
    )
    registered = labels | {"karpenter.sh/registered": "true", "karpenter.sh/initialized": "true"}
    status = {"capacity": capacity, "allocatable": capacity}
    leaving = an_object(
        "Node", "n0", metadata={"labels": registered}, spec={"providerID": "aws:///a/i-0"}, status=status
    )
    other = an_object("Node", "n1", status=status)
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "gone"}}
    scenario = a_scenario(
        [a_type("m", cpu=8, price=0.2)], a_pool(), claim, leaving, other, *pods(1, nodeName="n0", volumes=[volume])
    )

    found = compare_plans(scenario, karpenter)

    assert karpenter.solve(scenario)["existing"] == {"n1": ["default/web-0"]}
    assert OurSolution(scenario).scheduled == set()
    assert {f.kind for f in found} == {"missing", "rejected"}
    assert unaccepted(scenario, found) == []


def test_host_port_of_a_daemon_that_has_not_started_is_in_use(karpenter):
    """The pod needs the DaemonSet's host port. Karpenter schedules it to the node, where the daemon then cannot start."""
    capacity = {"cpu": "8", "memory": "32Gi", "pods": "10"}
    node = an_object("Node", "n0", status={"capacity": capacity, "allocatable": capacity})
    (pod,) = pods(1)
    port = {"containerPort": 80, "hostPort": 80, "protocol": "TCP"}
    pod["spec"]["containers"][0]["ports"] = [port]
    scenario = a_scenario([a_type("m", cpu=4, price=0.2)], a_pool(), node, a_daemon_set(ports=[port]), pod)

    found = compare_plans(scenario, karpenter)

    assert karpenter.solve(scenario)["existing"] == {"n0": ["default/web-0"]}
    assert OurSolution(scenario).scheduled == set()
    assert {f.kind for f in found} == {"missing", "rejected"}
    assert unaccepted(scenario, found) == []


def test_existing_node_with_a_soft_taint_keeps_capacity_for_daemons(karpenter):
    """The agent comes to this node, too: its controller ignores PreferNoSchedule. Karpenter plans a third pod in its place."""
    capacity = {"cpu": "3", "memory": "12Gi", "pods": "10"}
    taints = [{"key": "dedicated", "effect": "PreferNoSchedule"}]
    node = an_object("Node", "n0", spec={"taints": taints}, status={"capacity": capacity, "allocatable": capacity})
    agent = a_daemon_set(cpu="1")
    scenario = a_scenario([], a_tainted_pool(), node, agent, *pods(3))

    found = compare_plans(scenario, karpenter)

    assert len(karpenter.solve(scenario)["existing"]["n0"]) == 3
    assert len(OurSolution(scenario).scheduled) == 2
    assert {f.kind for f in found} == {"missing", "rejected"}
    assert unaccepted(scenario, found) == []


def test_pods_that_karpenter_schedules_in_vain_are_not_missing(karpenter):
    """The agent keeps one pod off each node by anti-affinity, the other by its host port on the node that exists."""
    capacity = {"cpu": "4", "memory": "16Gi", "pods": "10"}
    node = an_object("Node", "n0", status={"capacity": capacity, "allocatable": capacity})
    port = {"containerPort": 80, "hostPort": 80, "protocol": "TCP"}
    agent = a_daemon_set(ports=[port])
    (ported,), (shy,) = pods(1), pods(1, affinity=apart_from("agent"))
    ported["spec"]["containers"][0]["ports"] = [port]
    scenario = a_scenario([a_type("m", cpu=4, price=0.2)], a_pool(), node, agent, ported, renamed(shy, "shy"))

    found = compare_plans(scenario, karpenter)

    assert OurSolution(scenario).scheduled == set()
    assert {f.kind for f in found} == {"missing", "rejected"}
    assert unaccepted(scenario, found) == []


def test_relaxed_pod_counts_the_pods_scheduled_in_the_pass(karpenter):
    """Karpenter drops the second pod's first affinity term, and its spread no longer counts the first pod."""
    terms = [{"matchExpressions": [require(key, "In", value)]} for key, value in ((ARCH, "arm64"), (ZONE, "a"))]
    first, second = pods(2, topologySpreadConstraints=[{**spread_over(HOSTNAME)[0], "nodeAffinityPolicy": "Ignore"}])
    second["spec"] = {**second["spec"], "affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}}
    scenario = a_scenario([a_type("m", cpu=4, price=0.2)], a_pool(), first, second)

    found = compare_plans(scenario, karpenter)

    assert len(karpenter.solve(scenario)["nodeClaims"]) == 1
    assert len(OurSolution(scenario).results.new_claims) == 2
    assert {f.kind for f in found} == {"rejected", "dearer"}
    assert unaccepted(scenario, found) == []


def a_tainted_pool():
    pool = a_pool()
    pool["spec"]["template"]["spec"]["taints"] = [{"key": "dedicated", "effect": "PreferNoSchedule"}]
    return pool


def spread_over_all_pods():
    """Return two pods without topology spread, and a smaller one that counts them and has affinity to its own app."""
    web = {"podAffinity": {REQUIRED: [{"topologyKey": HOSTNAME, "labelSelector": WEB}]}}
    over_all = [{**spread_over(HOSTNAME)[0], "maxSkew": 2, "labelSelector": {}}]
    small = renamed(pods(1, cpu="100m", affinity=web, topologySpreadConstraints=over_all)[0], "small")
    counted = pods(2)
    for pod in counted:
        pod["metadata"]["labels"] = {}
    return [small, *counted]


def test_pod_with_an_added_toleration_counts_the_pods_scheduled_in_the_pass(karpenter):
    """A pod counts two others. Karpenter relaxes it because of the pool's taint, and does not count them."""
    scenario = a_scenario([a_type("m", cpu=4, price=0.2)], a_tainted_pool(), *spread_over_all_pods())

    found = compare_plans(scenario, karpenter)

    assert len(karpenter.solve(scenario)["nodeClaims"]) == 1
    assert len(karpenter.solve({**scenario, "objects": [a_pool(), *spread_over_all_pods()]})["nodeClaims"]) == 2
    assert len(OurSolution(scenario).results.new_claims) == 2
    assert {f.kind for f in found} == {"dearer"}
    assert unaccepted(scenario, found) == []


def test_dearer_plan_is_a_finding_if_karpenter_pays_less_without_relaxing(karpenter):
    """Karpenter's plan for a pod that tolerates the taint from the start is the reference."""
    scenario = a_scenario([a_type("m", cpu=4, price=0.2)], a_tainted_pool(), *spread_over_all_pods())
    cheaper = plan_of(karpenter.solve(scenario))
    as_dear = plan_of(karpenter.solve({**scenario, "objects": [a_pool(), *spread_over_all_pods()]}))
    dearer = Finding(kind="dearer", text="", karpenter_plan=cheaper)

    assert unaccepted(scenario, [dearer]) == [dearer]
    assert unaccepted(scenario, [replace(dearer, karpenter_plan_unrelaxed=cheaper)])
    assert not unaccepted(scenario, [replace(dearer, karpenter_plan_unrelaxed=as_dear)])


def test_each_pod_has_its_own_min_domains(karpenter):
    """One zone; two of three pods have minDomains 2. Karpenter uses the first pod's value for all."""
    first, *others = pods(3, topologySpreadConstraints=spread_over(ZONE))
    for other in others:
        other["spec"] = {**other["spec"], "topologySpreadConstraints": [{**spread_over(ZONE)[0], "minDomains": 2}]}
    scenario = a_scenario([a_type("m", cpu=4, price=0.2, zones="a")], a_pool(), first, *others)

    found = compare_plans(scenario, karpenter)

    assert not karpenter.solve(scenario)["errors"]
    assert len(OurSolution(scenario).scheduled) == 2
    assert {f.kind for f in found} <= {"missing", "rejected"}
    assert unaccepted(scenario, found) == []


def test_pod_affinity_is_satisfied_only_in_decided_zones(karpenter):
    """Two pods that must share a zone and need a node each. Karpenter sometimes leaves their zones to the launch."""
    together = {"podAffinity": {REQUIRED: [{"topologyKey": ZONE, "labelSelector": WEB}]}}
    scenario = a_scenario([a_type("m", cpu=4, price=0.2, zones="abc")], a_pool(), *pods(2, cpu="3", affinity=together))
    ours = OurSolution(scenario)

    found = [f for _ in range(60) for f in compare_with_answer(ours, karpenter.solve(scenario))]

    assert len(ours.scheduled) == 2
    assert {f.kind for f in found} == {"rejected"}
    assert unaccepted(scenario, found) == []


def test_pod_affinity_is_not_satisfied_by_an_undecided_capacity_type(karpenter):
    """The small pod has affinity to the large one, whose NodeClaim has an undecided capacity type."""
    capacity_types = {"matchExpressions": [require("app", "NotIn", "other")]}
    follow = {"podAffinity": {REQUIRED: [{"topologyKey": CAPACITY_TYPE, "labelSelector": capacity_types}]}}
    beside = {"podAffinity": {REQUIRED: [{"topologyKey": HOSTNAME, "labelSelector": WEB}]}}
    both = a_type("m", cpu=4, price=0.2, zones="a")
    both["requirements"][-1]["values"] = ["on-demand", "spot"]
    spot = {"requirements": [require(ZONE, "In", "a"), require(CAPACITY_TYPE, "In", "spot")], "price": 0.1}
    both["offerings"].append({**spot, "available": True})
    large, small = pods(1, cpu="3", affinity=beside)[0], pods(1, cpu="2", affinity=follow)[0]
    renamed(large, "large")
    scenario = a_scenario([both], a_pool(), large, small)
    ours = OurSolution(scenario)

    found = [f for _ in range(20) for f in compare_with_answer(ours, karpenter.solve(scenario))]

    assert len(ours.scheduled) == 2
    assert {f.kind for f in found} == {"rejected"}
    assert unaccepted(scenario, found) == []


def test_min_values_count_launchable_types(karpenter):
    """Two types required, one of them reserved. Karpenter's NodeClaim lists only the reserved one; ours both."""
    first, second = a_type("m", cpu=4, price=0.2, zones="a"), a_type("n", cpu=4, price=0.3, zones="a")
    first["requirements"][-1]["values"] = ["on-demand", "reserved"]
    requirements = [
        require(ZONE, "In", "a"),
        require(CAPACITY_TYPE, "In", "reserved"),
        require(RESERVATION, "In", "cr-1"),
    ]
    first["offerings"].append(
        {"requirements": requirements, "price": 2e-7, "available": True, "reservationCapacity": 1}
    )
    min_types = {**require(INSTANCE_TYPE, "Exists"), "minValues": 2}
    scenario = a_scenario([first, second], a_pool(requirements=[min_types]), *pods(1))

    found = compare_plans(scenario, karpenter)

    assert karpenter.solve(scenario)["nodeClaims"][0]["instanceTypes"] == ["m"]
    assert OurSolution(scenario).results.new_claims[0].instance_types == ("m", "n")
    assert {f.kind for f in found} == {"rejected", "dearer"}
    assert unaccepted(scenario, found) == []


def test_nodeclaim_holds_one_reservation(karpenter):
    """Two types required, one reserved in each zone. Karpenter's NodeClaim lists both reservations; ours one."""
    types = [a_type(name, cpu=4, price=price, zones=zone) for name, price, zone in (("m", 0.2, "a"), ("n", 0.3, "b"))]
    for instance_type, zone in zip(types, "ab", strict=True):
        instance_type["requirements"][-1]["values"] = ["on-demand", "reserved"]
        requirements = [
            require(ZONE, "In", zone),
            require(CAPACITY_TYPE, "In", "reserved"),
            require(RESERVATION, "In", f"cr-{zone}"),
        ]
        offering = {"requirements": requirements, "price": 2e-7, "available": True, "reservationCapacity": 1}
        instance_type["offerings"].append(offering)
    min_types = {**require(INSTANCE_TYPE, "Exists"), "minValues": 2}
    scenario = a_scenario(types, a_pool(requirements=[min_types]), *pods(1))

    found = compare_plans(scenario, karpenter)

    assert karpenter.solve(scenario)["price"] < 1e-6
    assert OurSolution(scenario).results.price == pytest.approx(0.2)
    assert {f.kind for f in found} == {"dearer"}
    assert unaccepted(scenario, found) == []


def test_other_pods_may_be_scheduled_when_affinity_cannot_be_met(karpenter):
    """One pod is bound to zone a and one to zone b, and they must share a zone. The first one excludes the other."""
    together = {"podAffinity": {REQUIRED: [{"topologyKey": ZONE, "labelSelector": WEB}]}}
    first, second = pods(2, affinity=together)
    for pod, zone in ((first, "a"), (second, "b")):
        pod["spec"] = {**pod["spec"], "nodeSelector": {ZONE: zone}}
    scenario = a_scenario([a_type("m", cpu=4, price=0.2)], a_pool(), first, second)

    found = compare_plans(scenario, karpenter)

    assert len(OurSolution(scenario).scheduled) >= 1
    assert unaccepted(scenario, found) == []


def test_spread_counts_nodes_that_will_match_its_filter(karpenter):
    """One of two pods requires the architecture that all types have. Karpenter counts them apart."""
    first, second = pods(2, topologySpreadConstraints=[{**spread_over(ZONE)[0], "minDomains": 2}])
    second["spec"] = {**second["spec"], "nodeSelector": {ARCH: "amd64"}}
    scenario = a_scenario([a_type("m", cpu=4, price=0.2)], a_pool(), first, second)

    found = compare_plans(scenario, karpenter)

    assert len(karpenter.solve(scenario)["nodeClaims"]) == 1
    assert len(OurSolution(scenario).results.new_claims) == 2
    assert {f.kind for f in found} == {"rejected", "dearer"}
    assert unaccepted(scenario, found) == []


def test_different_selectors_are_different_constraints(karpenter):
    """The second pod excludes apps 0 to 2, the first is app 1. By Karpenter's hash it excludes app 3."""

    def away_from(*apps):
        selector = {"matchExpressions": [require("app", "In", *apps)]}
        return {"podAntiAffinity": {REQUIRED: [{"topologyKey": HOSTNAME, "labelSelector": selector}]}}

    first = pods(1, cpu="2", affinity=away_from("app3"))[0]
    first["metadata"] = {**first["metadata"], "name": "first", "labels": {"app": "app1"}}
    second = pods(1, affinity=away_from("app0", "app1", "app2"))[0]
    scenario = a_scenario([a_type("m", cpu=4, price=0.2)], a_pool(), first, second)

    found = compare_plans(scenario, karpenter)

    assert len(karpenter.solve(scenario)["nodeClaims"]) == 1
    assert len(OurSolution(scenario).results.new_claims) == 2
    assert {f.kind for f in found} == {"rejected", "dearer"}
    assert unaccepted(scenario, found) == []


def test_preference_is_dropped_when_no_zone_satisfies_it(karpenter):
    """A type in each zone; the pod prefers not to have the cheaper one. Karpenter sometimes tries only its zone."""
    preference = {"weight": 1, "preference": {"matchExpressions": [require(INSTANCE_TYPE, "NotIn", "cheap")]}}
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preference]}}
    types = [a_type("cheap", cpu=4, price=0.2, zones="a"), a_type("dear", cpu=4, price=0.9, zones="b")]
    scenario = a_scenario(types, a_pool(), *pods(1, affinity=affinity, topologySpreadConstraints=spread_over(ZONE)))
    ours = OurSolution(scenario)

    found = [f for _ in range(30) for f in compare_with_answer(ours, karpenter.solve(scenario))]

    assert ours.results.price == pytest.approx(0.9)
    assert {f.kind for f in found} == {"dearer"}
    assert len(found) < 30
    assert unaccepted(scenario, found) == []


def test_other_pods_may_get_scarce_domains(karpenter):
    """minDomains allows one pod in each zone, and there are more kinds of pods than zones."""
    spread = [{**spread_over(ZONE)[0], "minDomains": 3}]
    large, small = pods(3, cpu="2", topologySpreadConstraints=spread), pods(3, topologySpreadConstraints=spread)
    for pod in large:
        renamed(pod, f"large-{pod['metadata']['name']}")
    scenario = a_scenario([a_type("m", cpu=4, price=0.2)], a_pool(), *large, *small)

    found = compare_plans(scenario, karpenter)

    assert len(OurSolution(scenario).scheduled) == 2
    assert unaccepted(scenario, found) == []


@pytest.mark.parametrize("whose", ["the pod's", "the DaemonSet's"])
def test_anti_affinity_keeps_pods_off_nodes_that_will_run_a_daemon_set(karpenter, whose):
    """The agent runs on every node; Karpenter launches one on which kube-scheduler never binds the pod."""
    (pod,) = pods(1)
    pod["metadata"]["labels"] = {"app": "shy"}
    agent = a_daemon_set()
    owner, selected = (pod, "agent") if whose == "the pod's" else (agent["spec"]["template"], "shy")
    owner["spec"]["affinity"] = apart_from(selected)
    scenario = a_scenario([a_type("m", cpu=4, price=0.2)], a_pool(), agent, pod)

    found = compare_plans(scenario, karpenter)

    assert {finding.kind for finding in found} == {"missing", "rejected"}
    assert unaccepted(scenario, found) == []


def test_preference_that_the_daemon_set_spoils_on_each_new_node_counts_for_nothing(karpenter):
    """Karpenter keeps it with a cheap new node, on which the agent comes as well, so that the node is left to the other pod."""
    port = {"containerPort": 80, "hostPort": 80, "protocol": "TCP"}
    labels = {INSTANCE_TYPE: "dear", ZONE: "a", CAPACITY_TYPE: "on-demand", ARCH: "amd64", HOSTNAME: "n0"}
    capacity = {"cpu": "4", "memory": "16Gi", "pods": "10"}
    node = an_object("Node", "n0", metadata={"labels": labels}, status={"capacity": capacity, "allocatable": capacity})
    agent = a_daemon_set()
    template = agent["spec"]["template"]
    running = an_object("Pod", "agent-0", namespace="kube-system", metadata={"labels": {"app": "agent"}})
    running |= {"spec": {**template["spec"], "nodeName": "n0"}, "status": {"phase": "Running"}}
    term = {"topologyKey": ZONE, "labelSelector": {"matchLabels": {"app": "agent"}}, "namespaces": ["kube-system"]}
    preferred = [{"weight": 1, "podAffinityTerm": term}]
    affinity = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    (shy,), (other,) = pods(1, cpu="2", affinity=affinity), pods(1, nodeSelector={INSTANCE_TYPE: "dear"})
    for pod in (shy, other):
        pod["spec"]["containers"][0]["ports"] = [port]
    types = [a_type("dear", cpu=4, price=0.9), a_type("cheap", cpu=4, price=0.2)]
    scenario = a_scenario(types, a_pool(), node, agent, running, renamed(shy, "shy"), other)

    found = compare_plans(scenario, karpenter)

    assert karpenter.solve(scenario)["price"] == pytest.approx(0.2)
    assert OurSolution(scenario).results.price == pytest.approx(0.9)
    assert {f.kind for f in found} == {"dearer"}
    assert unaccepted(scenario, found) == []


def test_resize_of_the_pod_level_counts(karpenter):
    """A pod that shrinks from 3 CPU to 1 at the pod level keeps 3; Karpenter plans another one of 2 beside it."""
    (running,) = pods(1, nodeName="n", resources={"requests": {"cpu": "1", "memory": "1Gi"}})
    running["spec"]["containers"][0]["resources"] = {}
    held = {"cpu": "3", "memory": "1Gi"}
    running["status"] = {"phase": "Running", "allocatedResources": held, "resources": {"requests": held}}
    (pending,) = pods(1, cpu="2")
    labels = {NODEPOOL: "default", INSTANCE_TYPE: "m4", ZONE: "a", CAPACITY_TYPE: "on-demand", ARCH: "amd64"}
    size = {"cpu": "4", "memory": "16Gi", "pods": "110"}
    node = an_object("Node", "n", metadata={"labels": {**labels, HOSTNAME: "n"}}, spec={"providerID": "aws:///a/i-n"})
    node["status"] = {"capacity": size, "allocatable": size, "conditions": [{"type": "Ready", "status": "True"}]}
    scenario = a_scenario([a_type("m4", cpu=4, price=0.2)], a_pool(), node, running, renamed(pending, "next"))

    found = compare_plans(scenario, karpenter)

    assert {finding.kind for finding in found} == {"dearer", "rejected"}
    assert not unaccepted(scenario, found)


def test_difference_applies_only_where_it_can_be_the_reason():
    """The same finding on a cluster whose pool limits cores, not nodes."""
    scenario = a_scenario([a_type("m", cpu=4, price=0.2)], a_pool(limits={"cpu": "4"}), *pods(2))
    found = [
        Finding(
            kind="missing",
            text="limits: NodePool default: all available instance types exceed limits for nodepool (left: nodes 0)",
        )
    ]

    assert unaccepted(scenario, found) == found
