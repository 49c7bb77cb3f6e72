"""Labels, taints and requirements: which nodes a pod accepts, and which pods can share a new node."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import NodeSelectorRequirement
from tests.helpers.builders import a_node_class, a_pool, an_instance_type
from tests.helpers.small_clusters import (
    CAPACITY,
    RACK,
    ZONE,
    both_ways,
    by_domain,
    by_node,
    either,
    errors,
    only,
    plan,
    pool,
    selects,
    some,
    spread,
    table,
    tolerates,
    zonal,
)

SPOTTY = zonal(spot=0.15)
TENANCY = "karpenter.k8s.aws/instance-tenancy"
TEAMS = pool("default", ("team", "In", "red", "blue"), ("rack", "Exists"), ("disk", "NotIn", "tape"))


@both_ways
@pytest.mark.parametrize(
    ("first", "second", "nodes"),
    [
        (("team", "In", "red"), ("team", "In", "blue"), 2),
        (("team", "In", "red"), ("team", "In", "red", "blue"), 1),
        (("team", "In", "red"), ("team", "NotIn", "red"), 2),
        (("team", "In", "red"), ("team", "NotIn", "blue"), 1),
        (("team", "In", "red"), ("rack", "In", "1"), 1),
        (("team", "In", "red"), ("team", "Exists"), 1),
        (("rack", "In", "1"), ("rack", "In", "2"), 2),
        (("disk", "DoesNotExist"), ("disk", "NotIn", "hdd"), 1),
        ((ZONE, "In", "a"), (labels.NODEPOOL, "In", "default"), 1),
    ],
)
def test_pods_share_a_node_if_one_value_of_its_labels_meets_both(first, second, nodes, options):
    """The NodePool allows two teams, any rack, and nodes without a disk; a third pod accepts any node."""
    pods = [some(1, name, either([term])) for name, term in (("p", first), ("q", second))]

    found = plan(*pods, some(1, "any"), types=(zonal(),), node_pools=(TEAMS,), options=options)

    assert not found.results.pod_errors
    assert len(found.results.new_claims) == nodes


@both_ways
@table(
    "pods",
    "cluster",
    "by",
    "expected",
    selector_and_affinity=(
        [some(1, "web", selects(capacity="on-demand"), only(ZONE, "a", "c", operator="NotIn"))],
        {},
        CAPACITY,
        "on-demand: 1 web",
    ),
    zone_that_the_selector_leaves=([some(1, "web", only(ZONE, "a", "c", operator="NotIn"))], {}, ZONE, "b: 1 web"),
    term_that_all_pods_of_the_node_meet=(
        [
            some(1, "p", either([(ZONE, "In", "a")], [(CAPACITY, "In", labels.ON_DEMAND)])),
            some(1, "q", selects(zone="b")),
        ],
        {"types": (zonal("a", "b"),)},
        ZONE,
        ("b: 1 q, 1 p"),
    ),
    zone_that_no_type_has=([some(1, "web", selects(zone="z"))], {}, ZONE, "pending: 1 web"),
    taint_of_the_nodepool=(
        [some(1, "shy"), some(1, "brave", tolerates("gpu"))],
        {"node_pools": (pool(taints=[{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]),)},
        labels.NODEPOOL,
        "default: 1 brave; pending: 1 shy",
    ),
    label_that_must_exist_gets_a_value=(
        [some(1, "web", only("team", "0", operator="NotIn"))],
        {"node_pools": (pool("default", ("team", "Exists")),)},
        "team",
        "1: 1 web",
    ),
    racks_of_nodepool_and_pod=(
        [some(2, "web", spread(RACK), only(RACK, "2", "3"))],
        {"node_pools": (pool("default", (RACK, "In", "1", "2")),)},
        RACK,
        "2: 2 web",
    ),
    racks_of_the_pod=(
        [some(2, "web", spread(RACK), only(RACK, "7"))],
        {"node_pools": (pool("default", (RACK, "Exists")),)},
        RACK,
        "7: 2 web",
    ),
    spread_without_listed_racks=(
        [some(2, "web", spread(RACK))],
        {"node_pools": (pool("default", (RACK, "Exists")),)},
        RACK,
        "pending: 2 web",
    ),
    dynamic_nodepool_beside_a_static_one=(
        [some(1, "web")],
        {"node_pools": (pool("dynamic"), pool("static", replicas=1))},
        labels.NODEPOOL,
        "dynamic: 1 web",
    ),
    zone_and_capacity_type_of_one_offering=(
        [
            some(
                1,
                "web",
                either([(ZONE, "In", "a")], [(CAPACITY, "In", labels.SPOT), (ZONE, "In", "b")]),
                spread(CAPACITY),
                cpu="4",
            )
        ],
        {
            "types": (
                an_instance_type("small", cpu=2, memory_gib=8, price=0.1, zones=("a", "b"), spot=0.04),
                zonal("a", "b"),
            )
        },
        ZONE,
        "a: 1 web",
    ),
)
def test_pods_get_nodes_whose_labels_they_require(pods, cluster, by, expected, options):
    """Three zones, two capacity types, one NodePool."""
    assert by_domain(plan(*pods, options=options, **{"types": (SPOTTY,), **cluster}), by) == expected


def test_nodepool_instance_type_and_pod_must_agree_on_a_label_value():
    """Any two of them share a tenancy, but no tenancy is common to all three."""
    both = NodeSelectorRequirement(key=TENANCY, operator="In", values=("default", "dedicated"))
    types = tuple(replace(t, requirements=(*t.requirements, both)) for t in (zonal(),))

    found = plan(
        some(1, "web", only(TENANCY, "host", "dedicated")),
        some(1, "fine", spread(TENANCY)),
        types=types,
        node_pools=(pool("default", (TENANCY, "In", "host", "default")),),
    )

    assert by_domain(found, TENANCY) == "default: 1 fine; pending: 1 web"


def test_cheapest_of_types_that_cost_the_same_or_less_is_the_larger_one():
    """The medium type costs as much as the small one."""
    small, medium = (an_instance_type(f"m.{n}", cpu=n, memory_gib=4 * n, price=0.1) for n in (2, 4))

    assert by_node(plan(some(3, "web"), types=(small, medium))) == "m.4: 3 web"


@pytest.mark.parametrize(
    "term",
    [
        [("nope", "Exists"), ("nope", "DoesNotExist")],
        [("nope", "Exists"), ("nope", "NotIn", "x")],
        [("nope", "In", "x"), ("nope", "In", "y")],
        [(labels.ARCH, "In", "amd64"), (labels.ARCH, "DoesNotExist")],
    ],
    ids=["there-and-not", "there-but-nowhere", "two-values", "well-known"],
)
def test_pod_with_contradictory_node_affinity_gets_no_node(term):
    """A node would not help it, and every pass would open another; the other pod is scheduled."""
    found = plan(some(1, "never", either(term)), some(1, "plain"))

    assert by_node(found) == "m.small: 1 plain; pending: 1 never"
    assert found.results.pod_errors["default/never0"].kind == "unschedulable"


@pytest.mark.parametrize(
    ("node_pool", "node_class", "why"),
    [
        (pool(replicas=2), a_node_class(), "static"),  # its nodes come from its replicas
        (pool(), a_node_class(ready=False, message="no subnets"), "no subnets"),
        (pool(), a_node_class("other"), "does not exist"),
        (pool("default", (labels.ARCH, "In", "arm64")), a_node_class(), "filtered out all available instance types"),
        (pool("default", ("a", "Lte", "0"), labels={"a": "m"}), a_node_class(), "ask of a"),
        (pool("default", ("a", "DoesNotExist"), labels={"a": "m"}), a_node_class(), "ask of a"),
        (pool("default", ("a", "In", "x"), ("a", "In", "y")), a_node_class(), "ask of a"),
        (pool("default", ("a", "Gt", "5"), ("a", "Lt", "3")), a_node_class(), "ask of a"),
    ],
)
def test_plan_has_unusable_nodepools_with_the_reason(node_pool, node_class, why):
    """The pod's error is that there is no usable NodePool."""
    found = plan(some(1, "web"), node_pools=(node_pool,), node_classes=(node_class,))

    assert why in found.results.unusable_node_pools["default"]
    assert found.results.pod_errors["default/web0"].kind == "no-nodepool"


def test_error_of_a_pod_names_the_taint_that_it_does_not_tolerate():
    """As Karpenter does."""
    found = plan(some(1, "shy"), node_pools=(pool(taints=[{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]),))

    assert "did not tolerate taint (taint=gpu=yes:NoSchedule)" in errors(found)


def test_startup_taint_keeps_no_pod_away_and_a_toleration_adds_none():
    """The NodeClaim has the startup taint, and no other."""
    startup = [{"key": "ignore-me", "value": "nothing-to-see-here", "effect": "NoSchedule"}]
    node_pool = a_pool(spec={"template": {"spec": {"startupTaints": startup}}})

    found = plan(some(1, "web"), some(1, "brave", tolerates("k")), node_pools=(node_pool,))

    assert not found.results.pod_errors
    spec = found.manifest_of("web0")["spec"]
    assert (spec["startupTaints"], spec.get("taints", [])) == (startup, [])
