"""Karpenter's scheduling suite, on its fake cloud's instance types."""

from __future__ import annotations

import pytest

from journeyman.core.api import labels
from journeyman.core.scheduling.results import Options
from tests.helpers.builders import a_claim, a_daemon_set, a_node, a_pod, merge, provider_id_of
from tests.helpers.karpenter_suite import (
    FAKE_TYPES,
    INTEGER,
    OPTIONAL,
    SIZE,
    ZONES,
    both,
    fake_type,
    pool,
    preferred,
    requesting,
    required,
    requirement,
    schedule,
    selecting,
    tiny,
)

TYPE, ZONE, ARCH, OS, HOST = labels.INSTANCE_TYPE, labels.ZONE, labels.ARCH, labels.OS, labels.HOSTNAME
SMALL, DEFAULT, ARM = "small-instance-type", "default-instance-type", "arm-instance-type"
KEY = "test-key"
LABELLED = {"labels": {KEY: "test-value"}}
REQUIRING = {"requirements": [requirement(KEY, "In", "test-value")]}
IN_ZONE_1 = {"requirements": [requirement(ZONE, "In", ZONES[0])]}


def needing(key, operator, *values):
    """A spec with one required expression."""
    return required([requirement(key, operator, *values)])


@pytest.mark.parametrize(
    ("template", "spec", "expected"),
    [
        (LABELLED, {}, {KEY: "test-value"}),
        (LABELLED, selecting(**{KEY: "different-value"}), None),
        ({}, selecting(**{KEY: "test-value"}), None),
        (LABELLED, needing(KEY, "In", "test-value", "another-value"), {KEY: "test-value"}),
        (LABELLED, needing(KEY, "In", "another-value"), None),
        ({"requirements": [requirement(ZONE, "In", ZONES[1])]}, {}, {ZONE: ZONES[1]}),
        ({}, selecting(**{HOST: "red-node"}), None),
        (IN_ZONE_1, selecting(**{ZONE: "unknown"}), None),
        (IN_ZONE_1, selecting(**{ZONE: ZONES[1]}), None),
        ({}, needing(ZONE, "In", ZONES[2]), {ZONE: ZONES[2]}),
        ({"requirements": [requirement(INTEGER, "Gt", "8")]}, {}, {TYPE: ARM}),
        ({"requirements": [requirement(INTEGER, "Lt", "4")]}, {}, {TYPE: SMALL}),
        ({"requirements": [requirement(INTEGER, "Gte", "16")]}, {}, {TYPE: ARM}),
        ({"requirements": [requirement(INTEGER, "Lte", "2")]}, {}, {TYPE: SMALL}),
        ({}, needing(ZONE, "In", "unknown"), None),
        ({}, needing(ZONE, "NotIn", ZONES[0], ZONES[1], "unknown"), {ZONE: ZONES[2]}),
        ({}, needing(ZONE, "NotIn", *ZONES, "unknown"), None),
        (
            {},
            both(
                needing(ZONE, "In", *ZONES, "unknown"), preferred((1, [requirement(ZONE, "In", ZONES[1], "unknown")]))
            ),
            {ZONE: ZONES[1]},
        ),
        ({}, both(needing(ZONE, "In", *ZONES, "unknown"), preferred((1, [requirement(ZONE, "In", "unknown")]))), {}),
        (
            {},
            both(
                needing(ZONE, "In", *ZONES, "unknown"), preferred((1, [requirement(ZONE, "NotIn", ZONES[0], ZONES[2])]))
            ),
            {ZONE: ZONES[1]},
        ),
        ({}, both(needing(ZONE, "In", *ZONES, "unknown"), preferred((1, [requirement(ZONE, "NotIn", *ZONES)]))), {}),
        (
            {},
            both(
                selecting(**{ZONE: ZONES[2]}),
                needing(ZONE, "In", *ZONES),
                preferred((1, [requirement(ZONE, "In", *ZONES)])),
            ),
            {ZONE: ZONES[2]},
        ),
        (
            {},
            both(
                selecting(**{ZONE: ZONES[2], TYPE: ARM}),
                required([requirement(ZONE, "In", ZONES[0], ZONES[2]), requirement(TYPE, "In", DEFAULT, ARM)]),
                preferred((1, [requirement(ZONE, "NotIn", "unknown"), requirement(TYPE, "NotIn", "unknown")])),
            ),
            {ZONE: ZONES[2], TYPE: ARM},
        ),
        *(
            ({}, selecting(**{key: value}), {key: value})
            for key, value in ((ZONE, ZONES[0]), (TYPE, DEFAULT), (labels.CAPACITY_TYPE, labels.SPOT))
        ),
        ({}, needing(KEY, "In", "test-value"), None),
        ({}, needing(KEY, "NotIn", "test-value"), {}),
        ({}, needing(KEY, "Exists"), None),
        ({}, needing(KEY, "DoesNotExist"), {}),
        (REQUIRING, needing(KEY, "In", "test-value"), {KEY: "test-value"}),
        (REQUIRING, needing(KEY, "NotIn", "test-value"), None),
        (REQUIRING, needing(KEY, "Exists"), {KEY: "test-value"}),
        (REQUIRING, needing(KEY, "DoesNotExist"), None),
        (REQUIRING, needing(KEY, "In", "another-value"), None),
        (REQUIRING, needing(KEY, "NotIn", "another-value"), {KEY: "test-value"}),
        (
            {"requirements": [requirement(ZONE, "In", ZONES[0]), requirement(TYPE, "In", DEFAULT)]},
            needing(ZONE, "In", "invalid"),
            None,
        ),
        ({}, preferred((1, [requirement(ZONE, "In", "invalid")]), (1, [requirement(TYPE, "In", "invalid")])), {}),
        (
            {"requirements": [requirement(ZONE, "In", *ZONES[:2])]},
            preferred(
                (100, [requirement(TYPE, "In", ZONES[2])]),
                (50, [requirement(ZONE, "In", ZONES[1])]),
                (1, [requirement(ZONE, "In", ZONES[0])]),
            ),
            {ZONE: ZONES[1]},
        ),
        (
            {},
            both(needing(ZONE, "In", ZONES[2]), preferred((1, [requirement(ZONE, "NotIn", ZONES[2])]))),
            {ZONE: ZONES[2]},
        ),
        ({}, preferred((1, [requirement(ZONE, "In", "invalid"), requirement(ZONE, "NotIn", "invalid")])), {}),
    ],
)
def test_labels_that_a_pod_requires_decide_where_it_is_scheduled(template, spec, expected):
    """The new node has the expected labels. None: the pod has no place."""
    plan = schedule(tiny("p", spec=spec), node_pools=(pool(**template),))

    if expected is None:
        assert set(plan.results.pod_errors) == {"default/p"}
    else:
        found = plan.manifest_of("p")["metadata"]["labels"]
        assert expected == {key: found[key] if key == KEY else plan.label_of("p", key) for key in expected}


@pytest.mark.parametrize("key", [HOST, "karpenter.sh/test", "karpenter.k8s.aws/test"])
def test_restricted_label_is_no_selector(key):
    """A NodePool cannot define it, either."""
    assert set(schedule(tiny("p", spec=needing(key, "In", "test"))).results.pod_errors) == {"default/p"}


@pytest.mark.parametrize("prefix", ["", "subdomain."])
def test_requirement_on_a_kubernetes_domain_gives_the_label(prefix):
    """Both domains at once."""
    wanted = [requirement(f"{prefix}{domain}/test", "In", "test-value") for domain in ("kubernetes.io", "k8s.io")]

    plan = schedule(tiny("p"), node_pools=(pool(requirements=wanted),))

    assert {r["key"]: "test-value" for r in wanted}.items() <= plan.manifest_of("p")["metadata"]["labels"].items()


# -- instance types

AMD = {"requirements": [requirement(ARCH, "In", "amd64")]}


@pytest.mark.parametrize(
    ("template", "spec"),
    [
        ({}, requesting({"cpu": "512"})),
        ({}, requesting({"memory": "2Ti"})),
        ({}, requesting({"cpu": "1", "memory": "1Gi"}, init=({"cpu": "2", "memory": "1Ti"},))),
        (AMD, needing(TYPE, "In", ARM)),
        (AMD, needing(OS, "In", "ios")),
        (AMD, requesting({"cpu": "14"})),
        ({}, requesting({"fake.com/vendor-a": "1", "fake.com/vendor-b": "1"})),
        ({}, selecting(**{SIZE: "large", TYPE: SMALL})),
    ],
)
def test_pod_that_no_instance_type_can_run_has_no_place(template, spec):
    """Another pod is scheduled beside it."""
    plan = schedule(tiny("p", spec=spec), tiny("q"), node_pools=(pool(**template),))

    assert set(plan.results.pod_errors) == {"default/p"}


@pytest.mark.parametrize(
    "specs",
    [
        [selecting(**{ARCH: "amd64"}), selecting(**{ARCH: "arm64"})],
        [selecting(**{OS: "linux"}), selecting(**{OS: "windows"})],
        [selecting(**{"beta.kubernetes.io/instance-type": SMALL}), selecting(**{TYPE: DEFAULT})],
        [selecting(**{ZONE: ZONES[0]}), selecting(**{ZONE: ZONES[1]})],
        [requesting({"fake.com/vendor-a": "1"}), requesting({"fake.com/vendor-b": "1"})],
    ],
)
def test_pods_that_need_different_nodes_get_two(specs):
    """A third pod joins one of them."""
    plan = schedule(*(tiny(f"p{n}", spec=spec) for n, spec in enumerate(specs)), tiny("q"))

    assert not plan.results.pod_errors
    assert len(plan.results.new_claims) == 2


@pytest.mark.parametrize(
    ("spec", "chosen"),
    [
        (selecting(**{SIZE: "large"}), ARM),
        pytest.param(selecting(**{SIZE: "small"}), SMALL),
        (needing(OPTIONAL, "Exists"), ARM),
        (needing(OPTIONAL, "DoesNotExist"), SMALL),
        (requesting({"memory": "100M"}), SMALL),
        (requesting({"memory": "2000M"}), SMALL),
        ({**requesting({"cpu": "1"}), "overhead": {"cpu": "2"}}, DEFAULT),
        (requesting({"foo.com/weird-resources": "0"}), SMALL),
        (requesting({"cpu": "1", "memory": "1Gi"}, init=({"cpu": "2", "memory": "1Gi"},)), DEFAULT),
    ],
)
def test_cheapest_type_that_can_run_a_pod_is_chosen(spec, chosen):
    """On Karpenter's fake cloud the smallest one is the cheapest."""
    assert schedule(tiny("p", spec=spec)).label_of("p", TYPE) == chosen


AMD64 = selecting(**{ARCH: "amd64"})


@pytest.mark.parametrize(
    ("groups", "chosen", "nodes"),
    [([(5, {"memory": "10M"})], SMALL, 1), ([(25, {"cpu": "1m", "memory": "1"})], SMALL, 5)],
)
def test_pods_fill_as_few_nodes_as_possible(groups, chosen, nodes):
    """Nodes run five pods."""
    pods = [
        tiny(f"p{g}-{n}", spec=both(AMD64, requesting(requests)))
        for g, (count, requests) in enumerate(groups)
        for n in range(count)
    ]

    plan = schedule(*pods)

    assert [claim.offering.instance_type for claim in plan.results.new_claims] == [chosen] * nodes


@pytest.mark.parametrize("small", [0, 20])
def test_packing_costs_no_more_than_two_large_pods_per_default_type(small):
    """Karpenter uses 20 nodes of the default type for the 40 large pods, and the small ones fill them up."""
    large = [tiny(f"large{n}", spec=both(AMD64, requesting({"memory": "1.8G"}))) for n in range(40)]
    others = [tiny(f"small{n}", spec=both(AMD64, requesting({"memory": "400M"}))) for n in range(small)]

    plan = schedule(*large, *others)

    default = next(t for t in FAKE_TYPES if t.name == DEFAULT).offerings[0].price
    assert not plan.results.pod_errors
    assert plan.results.price <= 20 * default + 1e-9


def test_small_pod_beside_a_full_node_gets_a_small_node():
    """The first pod takes nearly all of the largest type."""
    types = tuple(fake_type(f"fake-it-{n}", cpu=n + 1, memory=f"{2 * (n + 1)}Gi", pods=10 * (n + 1)) for n in range(5))

    plan = schedule(tiny("a", spec=requesting({"cpu": "4.5"})), tiny("b", spec=requesting({"cpu": "1"})), types=types)

    assert plan.label_of("a", TYPE) == "fake-it-4"
    assert plan.label_of("b", TYPE) == "fake-it-1"


def test_cheapest_type_wins_whatever_its_size():
    """Its NodeClaim lists the others, too, up to the limit of price that the options set."""
    here = ((ZONES[0], labels.ON_DEMAND),)
    types = (
        fake_type("large", offerings=here, price=1.0),
        fake_type("medium", cpu=2, memory="2Gi", offerings=here, price=3.0),
        fake_type("small", cpu=1, memory="1Gi", offerings=here, price=2.0),
    )

    claim = schedule(tiny("p", spec=requesting({"cpu": "1m"})), types=types, options=Options()).node_of("p")

    assert claim.offering.instance_type == "large"
    assert claim.instance_types == ("large", "small", "medium")


# -- nodes that exist

CAPACITY = {"cpu": "16", "memory": "128Gi", "pods": "10"}


def a_node_in(zone=ZONES[1], name="default-1", *, initialized=True, taints=(), available=None, claim=None, **labelled):
    """A node with its NodeClaim."""
    amounts = {**CAPACITY, **(available or {})}
    own = {ZONE: zone, TYPE: ARM, ARCH: "arm64", OS: "linux", labels.CAPACITY_TYPE: labels.ON_DEMAND, **labelled}
    found = {"labels": own | ({} if initialized else {labels.INITIALIZED: "false"})}
    node = a_node(
        name, metadata=found, spec={"taints": list(taints)}, status={"capacity": amounts, "allocatable": amounts}
    )
    conditions = ("Launched", "Registered", "Initialized") if initialized else ("Launched", "Registered")
    changes = merge(
        {
            "metadata": {"labels": own},
            "status": {"capacity": amounts, "allocatable": amounts, "nodeName": f"node-{name}"},
        },
        claim or {},
    )
    return node, a_claim(name, true=conditions, provider_id=provider_id_of(name), **changes)


def on(*pairs, pods=(), **cluster):
    """The plan for these pods with these pairs of node and claim."""
    nodes, claims = tuple(node for node, _ in pairs), tuple(claim for _, claim in pairs)
    return schedule(*pods, nodes=nodes, claims=claims, **cluster)


STARTUP = {"key": "foo.com/taint", "value": "tainted", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("taints", "initialized", "startup", "stays"),
    [
        ([], True, [], True),
        ([{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}], False, [], True),
        pytest.param([{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}], True, [], False),
        ([STARTUP], True, [], False),
        ([STARTUP], False, [STARTUP], True),
        ([STARTUP], True, [STARTUP], False),
    ],
)
def test_taints_that_vanish_do_not_keep_pods_from_a_node(taints, initialized, startup, stays):
    """Ephemeral taints vanish by themselves, startup taints until the node is initialized."""
    pair = a_node_in(initialized=initialized, taints=taints, claim={"spec": {"startupTaints": startup}})

    plan = on(pair, pods=[tiny("p")])

    assert (plan.node_of("p") == "node-default-1") is stays


SPREAD = {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "web"}}}


def daemon_pod(name, daemon_set, node, **requests):
    """A pod of a DaemonSet that runs on a node."""
    owner = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "name": daemon_set.metadata.name,
        "uid": daemon_set.metadata.uid,
        "controller": True,
    }
    return a_pod(
        name, node=node, spec=requesting(requests), metadata={"ownerReferences": [owner], "namespace": "kube-system"}
    )


@pytest.mark.parametrize(
    ("selector", "cpu", "stays"),
    [({}, "14.9", True), pytest.param({}, "15", False), ({"my-node-label": "value"}, "15.5", False)],
)
def test_running_daemon_pod_is_counted_once(selector, cpu, stays):
    """The node has 15.9 CPUs, of which the DaemonSet's pod uses one."""
    daemon_set = a_daemon_set("agent", **requesting({"cpu": "1", "memory": "1Gi"}), nodeSelector=selector)
    pair = a_node_in(available={"cpu": "15.9"}, **selector)
    running = daemon_pod("agent-1", daemon_set, "node-default-1", cpu="1", memory="2Gi")
    pod = tiny("p", spec=requesting({"cpu": cpu}))

    plan = on(pair, pods=[running, pod], daemon_sets=(daemon_set,))

    assert (plan.node_of("p") == "node-default-1") is stays


def test_daemon_sets_of_registered_and_initialized_nodes_count_on_new_ones():
    """The NodeClaim requires neither label."""
    daemon_sets = tuple(
        a_daemon_set(name, **requesting({"cpu": "1"}), **needing(key, "In", "true"))
        for name, key in (("a", labels.INITIALIZED), ("b", labels.REGISTERED))
    )

    plan = schedule(tiny("p", spec=requesting({"cpu": "2"})), daemon_sets=daemon_sets)

    assert plan.label_of("p", TYPE) == ARM
    manifest = plan.manifest_of("p")
    keys = {r["key"] for r in manifest["spec"]["requirements"]} | set(manifest["metadata"]["labels"])
    assert not keys & {labels.INITIALIZED, labels.REGISTERED}


@pytest.mark.parametrize("count", [1, 100])
def test_node_of_nobody_takes_pods(count):
    """It has neither a NodePool nor a NodeClaim."""
    amounts = {"cpu": "10", "memory": "100Gi", "pods": "110"}
    node = a_node(registered=False, spec={"taints": []}, status={"capacity": amounts, "allocatable": amounts})

    plan = schedule(*(tiny(f"p{n}", spec=requesting({"cpu": "10m"})) for n in range(count)), nodes=(node,))

    assert len(plan.results.existing["node-default-1"]) == count
