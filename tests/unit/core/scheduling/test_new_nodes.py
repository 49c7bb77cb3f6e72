"""New nodes for pods: limits, reservations, minValues, node surcharges, pins, overlays and the planned NodeClaims."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import NodeSelectorRequirement
from journeyman.core.catalogue import Catalogue, Offering
from journeyman.core.lifecycle.node_overlays import apply_overlays
from journeyman.core.scheduling.instance_type_choice import planned_nodeclaims
from journeyman.core.scheduling.new_nodes import plan_new_nodes
from journeyman.core.scheduling.nodeclaim_templates import to_node_claim
from journeyman.core.scheduling.offerings import Reservations
from journeyman.core.scheduling.problem import ClusterInputs, PodBatch, prepare_task
from journeyman.core.scheduling.results import MinValuesPolicy, Options
from tests.helpers.builders import (
    LARGE,
    MEDIUM,
    SMALL,
    TYPES,
    a_claim,
    a_daemon_set,
    a_pod,
    a_pool,
    a_snapshot,
    an_instance_type,
    an_overlay,
)

FAMILY = "karpenter.k8s.aws/instance-family"
ZONAL = an_instance_type("z.medium", cpu=4, memory_gib=16, price=0.2, zones=("a", "b"))


class Outcome:
    """The planned NodeClaims for some pods, and the number of pods that stay unschedulable."""

    def __init__(self, *pods, types=TYPES, pools=None, options=None, pins=(), **cluster):
        snapshot = a_snapshot(pods=pods, node_pools=pools or (a_pool(),), **cluster)
        catalogue = Catalogue({pool.metadata.name: types for pool in snapshot.node_pools})
        inputs = ClusterInputs.of(snapshot, catalogue, options or Options())
        task = prepare_task(inputs, pods, frozenset())
        problem = task.problem
        levels = zip(problem.levels, problem.counts, strict=True)
        batches = [PodBatch(row=rows[0], count=count, pins=pins) for rows, count in levels]
        reservations = Reservations.of((t.table for t in inputs.templates), snapshot.claims)
        new_nodes = plan_new_nodes(batches, problem, task.initial_solution().headroom, reservations)
        queues = {row: iter(cls.keys) for row, cls in enumerate(problem.rows)}
        self.claims = planned_nodeclaims(new_nodes.nodes, problem, lambda row, n: [next(queues[row]) for _ in range(n)])
        assert reservations.left == Reservations.of((t.table for t in inputs.templates), snapshot.claims).left
        self.left = sum(batch.count for batch in new_nodes.left)

    @property
    def types(self):
        """The cheapest instance type of each NodeClaim, sorted."""
        return sorted(claim.offering[0] for claim in self.claims)


def pods(count, prefix="p", **kwargs):
    """Return this many equal pods."""
    return [a_pod(f"{prefix}{i}", **kwargs) for i in range(count)]


def a_pool_with_min_values(key, count, **extra):
    """Return a NodePool whose minValues requires this many values of a label."""
    entry = {"key": key, "operator": "Exists", "minValues": count}
    return a_pool(spec={"template": {"spec": {"requirements": [entry]}}}, **extra)


def with_family(instance_type, family):
    """Return the instance type with an instance family."""
    own = NodeSelectorRequirement(key=FAMILY, operator="In", values=(family,))
    return replace(instance_type, requirements=(*instance_type.requirements, own))


def with_reservation(instance_type, *, name="cr-1", capacity=1):
    """Return the instance type with an additional reserved offering in zone a."""
    values = {labels.ZONE: "a", labels.CAPACITY_TYPE: labels.RESERVED, labels.RESERVATION_ID: name}
    offering = Offering(
        zone="a",
        capacity_type=labels.RESERVED,
        price=1e-8,
        available=capacity > 0,
        requirements=tuple(NodeSelectorRequirement(key=k, operator="In", values=(v,)) for k, v in values.items()),
        reservation_id=name,
        reservation_capacity=capacity,
    )
    wider = {labels.CAPACITY_TYPE: (labels.ON_DEMAND, labels.RESERVED)}
    own = tuple(
        NodeSelectorRequirement(key=r.key, operator="In", values=wider.get(r.key, r.values))
        for r in instance_type.requirements
    )
    return replace(instance_type, requirements=own, offerings=(*instance_type.offerings, offering))


def values_of(claim, key):
    """Return the values that the NodeClaim requires for a label."""
    return next((r.values for r in claim.requirements if r.key == key), None)


# --- minValues


def test_node_gets_only_pods_that_fit_as_many_types_as_min_values_requires():
    """Seven pods fit one large node, but minValues requires three types, and the smallest type fits one pod."""
    results = Outcome(*pods(7), pools=(a_pool_with_min_values(labels.INSTANCE_TYPE, 3),))

    assert results.left == 0
    assert {len(claim.instance_types) for claim in results.claims} == {3}
    assert [len(claim.pods) for claim in results.claims] == [1] * 7


def test_min_values_apply_to_any_label_and_are_set_on_the_nodeclaim():
    """minValues requires two families: types of both families fit three CPUs, only one type fits five CPUs."""
    types = tuple(with_family(t, f) for t, f in ((SMALL, "m"), (MEDIUM, "n"), (LARGE, "m")))
    pool = a_pool_with_min_values(FAMILY, 2)

    three, five = (
        Outcome(*pods(1, cpu="3"), types=types, pools=(pool,)),
        Outcome(*pods(1, cpu="5"), types=types, pools=(pool,)),
    )

    (claim,) = three.claims
    assert claim.instance_types == ("m.medium", "m.large")
    assert next(r.min_values for r in claim.requirements if r.key == FAMILY) == 2
    assert (five.claims, five.left) == ([], 1)


def test_min_values_add_more_expensive_instance_types_to_the_nodeclaim():
    """Without minValues the NodeClaim lists only the two cheapest instance types."""
    options = Options(near_price=1.0, min_types=2)

    (plain,) = Outcome(*pods(1), options=options).claims
    (varied,) = Outcome(*pods(1), options=options, pools=(a_pool_with_min_values(labels.INSTANCE_TYPE, 3),)).claims

    assert plain.instance_types == ("m.small", "m.medium")
    assert varied.instance_types == ("m.small", "m.medium", "m.large")
    assert not varied.min_values_relaxed


def test_best_effort_policy_lowers_min_values_when_too_few_types_fit():
    """The pod's node selector allows one instance type, but minValues requires three."""
    pod = a_pod("p", spec={"nodeSelector": {labels.INSTANCE_TYPE: "m.large"}})
    pool = a_pool_with_min_values(labels.INSTANCE_TYPE, 3)

    strict = Outcome(pod, pools=(pool,))
    (claim,) = Outcome(pod, pools=(pool,), options=Options(min_values=MinValuesPolicy.BEST_EFFORT)).claims

    assert (strict.claims, strict.left) == ([], 1)
    assert claim.min_values_relaxed
    assert [r.min_values for r in claim.requirements if r.key == labels.INSTANCE_TYPE] == [1]


def test_pod_that_cannot_satisfy_min_values_does_not_block_other_pods():
    """One pod allows only the large type, but minValues requires two types; the other two pods are scheduled."""
    picky = a_pod("picky", spec={"nodeSelector": {labels.INSTANCE_TYPE: "m.large"}})

    results = Outcome(picky, *pods(2), pools=(a_pool_with_min_values(labels.INSTANCE_TYPE, 2),))

    assert results.left == 1
    assert sorted(key for claim in results.claims for key in claim.pods) == ["default/p0", "default/p1"]


# --- limits


def test_under_a_tight_limit_the_plan_that_places_most_pods_wins():
    """Three pods fit either type by memory; the CPU limit allows one wide node or three lean nodes."""
    wasteful = an_instance_type("w.wide", cpu=12, memory_gib=16, price=0.10)
    lean = an_instance_type("w.lean", cpu=4, memory_gib=16, price=0.20)
    pool = a_pool(spec={"limits": {"cpu": "12"}})

    results = Outcome(*pods(9, cpu="1", memory="5Gi"), types=(wasteful, lean), pools=(pool,))

    assert results.types == ["w.lean"] * 3
    assert results.left == 0


def test_nodeclaim_lists_only_instance_types_within_the_nodepool_limit():
    """The limit of two CPUs allows the small type only, although larger types fit the pod too."""
    (claim,) = Outcome(*pods(1), pools=(a_pool(spec={"limits": {"cpu": "2"}}),)).claims

    assert claim.instance_types == ("m.small",)


def test_nodes_limit_of_a_nodepool_caps_the_number_of_new_nodes():
    """The limit is two nodes, so the third pod stays unschedulable."""
    results = Outcome(*pods(3, cpu="7"), pools=(a_pool(spec={"limits": {"nodes": "2"}}),))

    assert (len(results.claims), results.left) == (2, 1)


# --- reserved capacity


def test_reserved_offering_is_used_first_and_nodeclaim_names_the_reservation():
    """Two pods need two nodes; the reservation has capacity for one, the other node is on-demand."""
    results = Outcome(*pods(2, cpu="3"), types=(with_reservation(MEDIUM),))

    free, bought = sorted(results.claims, key=lambda claim: claim.price)
    assert values_of(free, labels.CAPACITY_TYPE) == (labels.RESERVED,)
    assert (values_of(free, labels.RESERVATION_ID), free.reservations) == (("cr-1",), ("cr-1",))
    assert values_of(bought, labels.CAPACITY_TYPE) == (labels.ON_DEMAND,)
    assert (bought.price, bought.reservations) == (0.19, ())


def test_nodeclaim_that_has_not_launched_uses_its_reservation():
    """The cloud provider does not count this NodeClaim against the reservation yet."""
    entry = {"key": labels.RESERVATION_ID, "operator": "In", "values": ["cr-1"]}
    waiting = a_claim(spec={"requirements": [entry]})

    (claim,) = Outcome(*pods(1, cpu="3"), types=(with_reservation(MEDIUM),), claims=(waiting,)).claims

    assert values_of(claim, labels.CAPACITY_TYPE) == (labels.ON_DEMAND,)


def test_reservation_capacity_is_the_lowest_that_any_offering_reports():
    """Two instance types report capacities of three and one for the same reservation."""
    types = (with_reservation(MEDIUM, capacity=3), with_reservation(replace(LARGE, name="m.large"), capacity=1))

    results = Outcome(*pods(3, cpu="3"), types=types)

    assert sum(1 for claim in results.claims if claim.reservations) == 1


# --- node surcharge


@pytest.mark.parametrize(("annotation", "nodes"), [(None, 4), ("0.10", 1), ("a lot", 4), ("-1", 4)])
def test_node_surcharge_leads_to_fewer_nodes(annotation, nodes):
    """Four tiny nodes cost 0.28 and one large node costs 0.37; an invalid surcharge is ignored."""
    tiny = an_instance_type("m.tiny", cpu=2, memory_gib=4, price=0.07)
    annotations = {labels.NODE_SURCHARGE: annotation} if annotation else {}
    pool = a_pool(metadata={"annotations": annotations})

    results = Outcome(*pods(4, cpu="1500m"), types=(tiny, LARGE), pools=(pool,))

    assert len(results.claims) == nodes
    assert sum(claim.price for claim in results.claims) == pytest.approx(0.28 if nodes == 4 else 0.37)


def test_an_invalid_node_surcharge_gets_a_warning():
    """The warning of the NodePool quotes the invalid annotation value."""
    pool = a_pool(metadata={"annotations": {labels.NODE_SURCHARGE: "a lot"}})
    inputs = ClusterInputs.of(a_snapshot(node_pools=(pool,)), Catalogue({"default": TYPES}), Options())

    assert "'a lot' is not a price per hour" in inputs.warnings["default"]


def test_an_invalid_packing_annotation_gets_a_warning():
    """The pool is packed by price; a pool with a valid value gets no warning."""
    pools = [a_pool(name, metadata={"annotations": {labels.PACKING: name}}) for name in ("fewest-nodes", "fewest")]
    inputs = ClusterInputs.of(
        a_snapshot(node_pools=pools), Catalogue(dict.fromkeys(("fewest-nodes", "fewest"), TYPES)), Options()
    )

    assert list(inputs.warnings) == ["fewest"]
    assert "'fewest' is neither price nor fewest-nodes" in inputs.warnings["fewest"]


def test_an_invalid_rebalance_annotation_gets_a_warning():
    """With the value "true" no node would be replaced."""
    pools = [a_pool(name, metadata={"annotations": {labels.REBALANCE: name}}) for name in ("replace", "true")]
    inputs = ClusterInputs.of(
        a_snapshot(node_pools=pools), Catalogue(dict.fromkeys(("replace", "true"), TYPES)), Options()
    )

    assert list(inputs.warnings) == ["true"]
    assert "'true' is not replace" in inputs.warnings["true"]


# --- pins


def test_pods_pinned_to_a_zone_get_a_node_in_that_zone():
    """The instance type has offerings in zones a and b; the NodeClaim requires zone b only."""
    (claim,) = Outcome(*pods(2), types=(ZONAL,), pins=((labels.ZONE, "b"),)).claims

    assert values_of(claim, labels.ZONE) == ("b",)
    assert claim.offering[1] == "b"


def test_pin_to_one_of_the_nodepool_values_narrows_the_nodeclaim():
    """The NodePool allows racks one and two; the NodeClaim requires rack two."""
    entry = {"key": "rack", "operator": "In", "values": ["one", "two"]}
    pool = a_pool(spec={"template": {"spec": {"requirements": [entry]}}})

    (claim,) = Outcome(*pods(2), pools=(pool,), pins=(("rack", "two"),)).claims

    assert values_of(claim, "rack") == ("two",)


# --- NodeOverlays


def test_nodeclaim_names_only_node_overlays_on_its_instance_types():
    """The overlay's price makes the medium type the cheapest; the annotations are Karpenter's."""
    on_medium = [{"key": labels.INSTANCE_TYPE, "operator": "In", "values": [MEDIUM.name]}]
    catalogue = Catalogue({"default": TYPES})
    overlay = an_overlay("o", requirements=on_medium, price="0.01", capacity={"smarter-devices/fuse": 1})
    types = apply_overlays([a_pool()], catalogue, [overlay]).catalogue.instance_types("default")

    (cheap,) = Outcome(a_pod("small", cpu="1"), types=types).claims
    assert cheap.offering[0] == MEDIUM.name
    body = to_node_claim(cheap, a_pool(), name="n", hash="1", hash_version="v3")
    assert body["metadata"]["annotations"][labels.PRICE_OVERLAY_APPLIED] == "true"
    assert body["metadata"]["annotations"][labels.CAPACITY_OVERLAY_APPLIED] == "true"

    (large,) = Outcome(a_pod("large", cpu="7"), types=types).claims
    assert (large.instance_types, large.overlays) == ((LARGE.name,), ())


def test_daemon_host_ports_are_in_use_only_on_types_that_run_the_daemon():
    """A DaemonSet uses a host port on large nodes: pods with that port get small nodes, others share a large node."""
    ports = [{"containerPort": 80, "hostPort": 80}]
    container = {"name": "c", "image": "i", "ports": ports, "resources": {"requests": {"cpu": "100m"}}}
    exporter = a_daemon_set("exporter", nodeSelector={labels.INSTANCE_TYPE: "m.large"}, containers=[container])
    listening = [a_pod(f"l{n}", spec={"containers": [container]}) for n in range(2)]

    outcome = Outcome(*listening, *pods(6), types=(LARGE, SMALL), daemon_sets=(exporter,))

    assert (outcome.left, outcome.types) == (0, ["m.large", "m.small", "m.small"])


def test_nodepool_limit_holds_beside_a_nodepool_without_limits():
    """The NodePool with the higher weight has a limit of four CPUs; other pods get nodes of the other NodePool."""
    pools = (a_pool("heavy", spec={"weight": 10, "limits": {"cpu": "4"}}), a_pool("light"))

    outcome = Outcome(*pods(9, cpu="1"), pools=pools)

    by_pool = {name: [c for c in outcome.claims if c.node_pool == name] for name in ("heavy", "light")}
    sizes = {t.name: t.capacity["cpu"] for t in TYPES}
    assert outcome.left == 0
    assert 0 < sum(sizes[claim.offering[0]] for claim in by_pool["heavy"]) <= 4000
    assert sum(len(claim.pods) for claim in by_pool["light"]) >= 5


def test_pods_beyond_the_limit_of_the_cheapest_nodepool_use_another_with_the_same_weight():
    """Twelve pods need four nodes; the limit of the cheaper NodePool allows two of them."""
    cheap, dear = (an_instance_type(name, cpu=4, memory_gib=16, price=p) for name, p in (("cheap", 0.1), ("dear", 0.2)))
    pools = tuple(
        a_pool(t.name, spec={"template": {"spec": {"requirements": [only(t.name)]}}, **limits})
        for t, limits in ((cheap, {"limits": {"cpu": "8"}}), (dear, {}))
    )

    outcome = Outcome(*pods(12), types=(cheap, dear), pools=pools)

    assert (outcome.left, outcome.types) == (0, ["cheap", "cheap", "dear", "dear"])


def only(instance_type):
    """Return a NodePool's requirement for one instance type."""
    return {"key": labels.INSTANCE_TYPE, "operator": "In", "values": [instance_type]}


def test_nodes_satisfy_different_node_affinity_terms_of_equal_pods():
    """The pods require the large or the small type; seven pods share a large node, one gets a small node."""
    terms = [
        {"matchExpressions": [{"key": labels.INSTANCE_TYPE, "operator": "In", "values": [name]}]}
        for name in ("m.large", "m.small")
    ]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}

    outcome = Outcome(*pods(8, cpu="1", spec={"affinity": affinity}))

    assert (outcome.left, outcome.types) == (0, ["m.large", "m.small"])
