"""Existing nodes: the order in which they are filled, what is free on them, which pods they accept, and their volumes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.scheduler import Scheduler, solve
from tests.helpers.builders import (
    EBS,
    NOW,
    TYPES,
    a_csi_node,
    a_daemon_set,
    a_launched_claim,
    a_node,
    a_pod,
    a_pool,
    a_resize,
    a_running_claim,
    a_snapshot,
    a_storage_class,
    a_volume_claim,
    ago,
    claims_as_volumes,
)
from tests.helpers.small_clusters import (
    HOST,
    ZONE,
    apart,
    at,
    both_ways,
    by_node,
    expected_of,
    listens,
    near,
    only,
    plan,
    prefers,
    selects,
    some,
    spread,
    table,
    tolerates,
    zonal,
)

CORDONED = ([a_node("n", spec={"unschedulable": True})], [])
TAINTED = at("n/a:4", taints=[{"key": "mine", "effect": "NoSchedule"}])
IN_FLIGHT = {labels.INITIALIZED: "false"}
JOINING = a_node("n0", metadata={"labels": {labels.INITIALIZED: "false"}})
GOING = a_node("n1", deleting=ago(minutes=1))


def nodes_of(*nodes):
    """Return these nodes without pods, as `at` does."""
    return [*nodes], []


@both_ways
@table(
    "pods",
    "cluster",
    "expected",
    initialized_nodes_first_and_then_by_name=(
        [some(11, "web")],
        {"nodes": nodes_of(JOINING, *at("n1/a:4", "n2/a:4")[0])},
        "node-n0: 3 web; node-n1: 4 web; node-n2: 4 web",
    ),
    running_pods_use_their_requests=(
        [some(1, "old", cpu="2", on="n"), some(9, "web")],
        {"nodes": at("n/a:4")},
        "node-n: 2 web; pending: 7 web",
    ),
    a_daemon_that_does_not_run_yet_uses_its_requests=(
        [some(9, "web")],
        {"nodes": at("n/a:4"), "daemon_sets": (a_daemon_set("agent", cpu="500m"),)},
        "node-n: 3 web; pending: 6 web",
    ),
    daemons_of_other_nodes_use_nothing=(
        [some(9, "web")],
        {
            "nodes": at("n/a:4"),
            "daemon_sets": (
                a_daemon_set("elsewhere", cpu="1", **only(ZONE, "b", "c")),
                a_daemon_set("other", cpu="1", **selects(disk="fast")),
            ),
        },
        "node-n: 4 web; pending: 5 web",
    ),
    daemons_that_do_not_tolerate_the_taint_use_nothing=(
        [some(9, "web", tolerates())],
        {"nodes": TAINTED, "daemon_sets": (a_daemon_set("delicate", cpu="1", tolerations=[]),)},
        "node-n: 4 web; pending: 5 web",
    ),
    overcommitted_on_one_resource=(
        [some(2, "old", cpu="3", on="n"), some(1, "web", cpu="0", memory="1Mi")],
        {"nodes": at("n/a:4")},
        "pending: 1 web",
    ),
    a_node_that_is_being_deleted_takes_no_pods=(
        [some(1, "web", cpu="1", on="n1", name="leaving"), some(5, "web")],
        {"nodes": nodes_of(*at("n0/a:4")[0], GOING), "claims": ()},
        "node-n0: 4 web; pending: 2 web",
    ),
    cordoned=([some(1, "web"), some(1, "brave", tolerates())], {"nodes": CORDONED}, "node-n: 1 brave; pending: 1 web"),
    tainted=([some(1, "web"), some(1, "brave", tolerates())], {"nodes": TAINTED}, "node-n: 1 brave; pending: 1 web"),
    zone=([some(9, "web", selects(zone="b"))], {"nodes": at("n0/a:4", "n1/b:4")}, "node-n1: 4 web; pending: 5 web"),
    missing_label_exists_not=(
        [some(1, "exists", only("disk", operator="Exists")), some(1, "not", only("disk", "slow", operator="NotIn"))],
        {"nodes": at("n/a:4")},
        "node-n: 1 not; pending: 1 exists",
    ),
    all_other_nodes_are_in_flight=(
        [some(1, "web")],
        {"nodes": nodes_of(*at(*(f"n{n}/a:4" for n in range(9)), **IN_FLIGHT)[0], *at("zz/a:4")[0])},
        "node-zz: 1 web",
    ),
    nodes_in_flight_before_new_nodes=(
        [some(9, "web")],
        {"nodes": at("n0/a:4", "n1/a:4", **IN_FLIGHT), "types": TYPES},
        "node-n0: 4 web; node-n1: 4 web; m.small: 1 web",
    ),
    pods_that_need_each_other_join_a_node_in_flight=(
        [some(2, "web", near())],
        {"nodes": at("n/a:4", **IN_FLIGHT), "types": TYPES},
        "node-n: 2 web",
    ),
    no_node_and_no_nodepool=(
        [some(1, "web", only(ZONE, "a"))],
        {"nodes": at("n/b:4"), "node_pools": ()},
        "pending: 1 web",
    ),
    no_node_but_a_nodepool=(
        [some(1, "web", only(ZONE, "a"))],
        {"nodes": at("n/b:4"), "types": TYPES},
        "m.small: 1 web",
    ),
    preferred_anti_affinity_is_relaxed=(
        [some(3, "web", prefers(apart(key=HOST)))],
        {"nodes": at("n/a:4")},
        "node-n: 3 web",
    ),
)
def test_existing_nodes_take_the_pods_that_they_have_space_for(pods, cluster, expected, options):
    """Each is filled before the next."""
    assert by_node(plan(*pods, options=options, **{"types": (), **cluster})) == expected_of(expected, options)


@pytest.mark.parametrize(
    ("rule", "stays"),
    [
        (only(ZONE, "a", "b"), True),
        (only(ZONE, "a", "c"), False),
        (selects(arch="amd64"), False),
        ({}, True),
    ],
)
@pytest.mark.parametrize("more", [{}, IN_FLIGHT], ids=["initialized", "in flight"])
def test_pending_pod_joins_a_node_that_meets_its_requirements(rule, stays, more):
    """Whether or not the node is initialized; otherwise it gets a node of its own."""
    found = plan(some(1, "web", rule), nodes=at("n/b:4", **{labels.ARCH: "arm64", **more}), types=(zonal(),))

    assert by_node(found) == ("node-n: 1 web" if stays else "z.large: 1 web")


def test_pods_that_no_existing_node_can_take_get_new_nodes():
    """Three of four pods fit on the existing node."""
    assert by_node(plan(some(4, "web", cpu="1300m"), nodes=at("n/a:4"))) == "node-n: 3 web; m.small: 1 web"


# -- what is free on a node


@pytest.mark.parametrize(
    ("of_claim", "of_node", "initialized", "placed"),
    [
        ({}, {}, False, 3),
        ({"cpu": "4"}, {}, False, 4),
        ({"cpu": "4"}, {"cpu": "2"}, False, 2),
        ({}, {"cpu": "2"}, False, 2),
        ({"cpu": "4"}, {"cpu": "2"}, True, 2),
        ({"cpu": "4"}, {}, True, 4),
    ],
)
@pytest.mark.parametrize("gpu", [False, True])
def test_nodeclaim_completes_allocatable_until_the_node_is_initialized(of_claim, of_node, initialized, placed, gpu):
    """Without a status the NodeClaim's request of three CPUs counts; the NodeClaim adds a GPU not yet reported."""
    rest = {"memory": "16Gi", "pods": "110"}
    marks = {} if initialized else {labels.INITIALIZED: "false"}
    node = a_node("n", metadata={"labels": marks})
    own = {**of_node, **(rest if of_node else {}), **({"gpu": "0"} if of_node and not initialized else {})}
    node = replace(node, status=replace(node.status, allocatable=own))
    claim = a_running_claim("n", spec={"resources": {"requests": {"cpu": "3", "memory": "16Gi", "pods": "9"}}})
    found = {**of_claim, **rest, "gpu": "1"} if of_claim else {}
    claim = replace(claim, status=replace(claim.status, allocatable=found))
    has_gpu = bool(of_claim) and not (initialized and of_node)
    container = {"name": "g", "image": "i", "resources": {"requests": {"cpu": "1", "gpu": "1"}}}
    pods = [a_pod("p", spec={"containers": [container]})] if gpu else some(9, "web")

    snapshot = a_snapshot(nodes=(node,), claims=(claim,), pods=tuple(pods))
    results = solve(snapshot, Catalogue({}))

    assert len(results.existing.get("node-n", ())) == (int(has_gpu) if gpu else placed)


@pytest.mark.parametrize(
    ("requested", "status", "is_reused"),
    [
        ("500m", a_resize("3"), False),
        ("3", a_resize("500m", pending="Deferred"), False),
        ("64", a_resize("500m", pending="Infeasible"), True),
    ],
    ids=["shrinks", "growth deferred", "growth infeasible"],
)
def test_node_has_the_space_that_its_resized_pods_leave(requested, status, is_reused):
    """The largest amount counts, and after an infeasible growth what the pod has; one of the same spec is not resized."""
    found = plan(
        a_pod("equal", cpu=requested, node="node-other"),
        a_pod("resized", cpu=requested, node="node-n", status=status),
        some(1, "next", cpu="2"),
        nodes=at("n/a:4"),
        types=(),
    )

    assert by_node(found) == ("node-n: 1 next" if is_reused else "pending: 1 next")


def test_pod_that_moves_counts_with_what_it_holds():
    """Two pods of one spec leave their nodes; no type has what the infeasible growth requests."""
    where = {"node": "node-n", "cpu": "64"}
    snapshot = a_snapshot(
        nodes=(a_node("n", deleting=NOW),),
        claims=(a_running_claim("n", deleting=NOW),),
        pods=(
            a_pod("deferred", status=a_resize("1", pending="Deferred"), **where),
            a_pod("refused", status=a_resize("1", pending="Infeasible"), **where),
        ),
    )

    found = solve(snapshot, Catalogue({"default": TYPES}))

    assert [(claim.offering.instance_type, claim.pods) for claim in found.new_claims] == [
        ("m.small", ("default/refused",))
    ]
    assert found.pod_errors.keys() == {"default/deferred"}


# -- volumes


def storage(*names):
    """Return PersistentVolumeClaims and their StorageClass, which binds at the first consumer."""
    return {
        "persistent_volume_claims": tuple(a_volume_claim(name) for name in names),
        "storage_classes": (a_storage_class(),),
    }


def using(app, *claims, on=""):
    """Return a pod of an app with these PersistentVolumeClaims."""
    return some(1, app, claims_as_volumes(*claims)["spec"], cpu="100m", on=on, name=f"{app}-{claims[0]}")


@both_ways
@table(
    "limit",
    "pods",
    "expected",
    one_of_three_is_in_use=(
        3,
        [using("old", "c0", on="n"), *(using("db", f"c{n}") for n in range(1, 5)), some(1, "web")],
        "node-n: 1 web, 2 db; pending: 2 db",
    ),
    a_volume_that_is_attached_already=(
        1,
        [using("old", "c0", on="n"), using("db", "c0"), using("other", "c1")],
        "node-n: 1 db; pending: 1 other",
    ),
    a_volume_of_two_pods_counts_once=(
        1,
        [using("a", "c1"), using("b", "c1"), using("c", "c2")],
        "node-n: 1 b, 1 a; pending: 1 c",
    ),
    own_and_shared_volumes_of_two=(2, [using("db", f"c{n}", "c9") for n in range(3)], "node-n: 1 db; pending: 2 db"),
    own_and_shared_volumes_of_three=(3, [using("db", f"c{n}", "c9") for n in range(3)], "node-n: 2 db; pending: 1 db"),
    own_and_shared_volumes_of_four=(4, [using("db", f"c{n}", "c9") for n in range(3)], "node-n: 3 db"),
)
def test_node_attaches_no_more_volumes_than_its_csi_driver_allows(limit, pods, expected, options):
    """A volume needs one attachment for all pods that use it; pods without volumes are not limited."""
    claims = storage(*(f"c{n}" for n in range(10)))

    found = plan(
        *pods, nodes=at("n/a:4"), types=(), csi_nodes=(a_csi_node("node-n", **{EBS: limit}),), options=options, **claims
    )

    assert by_node(found) == expected


# -- a scheduler that solves many problems about one cluster

NODES = ("one", "two", "three", "four", "five", "six")
RULES = (apart(key=HOST), near(), spread(), listens(80), claims_as_volumes("data")["spec"], {})


@pytest.fixture
def cluster():
    """A node for every kind of constraint, a launched NodeClaim with a planned pod, and a NodePool with a limit."""
    running = [pod for n, name in enumerate(NODES) for pod in some(1, "web", RULES[n], on=name, name=f"web-{name}")]
    pending = [
        *some(1, "web", name="planned"),
        *some(1, "web", name="nominated", status={"nominatedNodeName": "node-one"}),
    ]
    planned = {"metadata": {"annotations": {labels.PLANNED_PODS: "default/planned0"}}}
    nodes, _ = at(*(f"{name}/{'abc'[n % 3]}:4" for n, name in enumerate(NODES)))
    claims = (*map(a_running_claim, NODES), a_launched_claim("coming", **planned))
    return a_snapshot(
        node_pools=(a_pool(spec={"limits": {"cpu": "32"}}),),
        nodes=tuple(sorted(nodes, key=lambda n: n.metadata.name)),
        claims=tuple(sorted(claims, key=lambda c: c.metadata.name)),
        pods=tuple(sorted((*running, *pending), key=lambda p: p.key)),
        csi_nodes=(a_csi_node("node-five", ebs_csi_aws_com=1), a_csi_node("node-six", ebs_csi_aws_com=1)),
        **storage("data"),
    )


@pytest.mark.parametrize("with_pending", [False, True])
def test_reused_scheduler_returns_the_same_results_as_a_new_one(cluster, with_pending):
    """Each problem is solved twice: nodes are removed, or their pods are rescheduled while the nodes stay."""
    catalogue = Catalogue({pool.metadata.name: TYPES for pool in cluster.node_pools})
    scheduler = Scheduler(cluster, catalogue)
    pending = tuple(pod for pod in cluster.pods if not pod.spec.node_name) if with_pending else ()
    nodes = [node for node in cluster.state_nodes if node.pods]
    questions = [(node.pods, frozenset({node.name})) for node in nodes]
    questions += [(node.pods, frozenset()) for node in nodes]
    questions += [((*nodes[0].pods, *nodes[1].pods), frozenset({nodes[0].name})), ((), frozenset({"node-coming"}))]

    for pods, gone in (*questions, *questions):
        requested = (*pods, *pending)
        assert scheduler.solve(requested, gone) == solve(cluster, catalogue, pods=requested, without_nodes=gone)


@pytest.mark.parametrize(
    ("moved", "without", "is_excluded"), [("", "", True), ("", "a", False), ("a", "", False), ("b", "a", False)]
)
def test_anti_affinity_of_pods_to_reschedule_excludes_no_domain(moved, without, is_excluded):
    """Two zones run a pod that keeps others away; a zone is free if its node is removed, or its pod is rescheduled."""
    running = {zone: some(1, f"guard-{zone}", apart(), on=zone)[0] for zone in "ab"}
    new = some(1, "web")[0]
    nodes, _ = at("a/a:4", "b/b:4")
    cluster = a_snapshot(nodes=tuple(nodes), claims=tuple(map(a_running_claim, "ab")), pods=(*running.values(), new))

    found = solve(
        cluster,
        Catalogue({"default": (zonal("a", "b"),)}),
        pods=(new, *(running[zone] for zone in moved)),
        without_nodes=frozenset(f"node-{zone}" for zone in without),
    )

    assert set(found.pod_errors) == ({new.key} if is_excluded else set())
