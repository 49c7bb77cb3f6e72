"""Domain assignment: topology spread, pod affinity and anti-affinity over any label, and relaxed preferences."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.domain_assignment import assign_domains
from journeyman.core.scheduling.node_filling import NodeFilling
from journeyman.core.scheduling.problem import ClusterInputs, PartialSolution, SchedulingProblem, prepare_task
from journeyman.core.scheduling.results import Options
from journeyman.core.scheduling.scheduler import pods_to_schedule, solve
from journeyman_simulator.judge import verify_strictly
from tests.helpers.builders import a_node, a_pod, a_pool, a_running_claim, a_snapshot, an_instance_type

ZONES = ("a", "b", "c")
ZONAL = an_instance_type("z.large", cpu=8, memory_gib=32, price=0.4, zones=ZONES)
SPOTTY = an_instance_type("z.large", cpu=8, memory_gib=32, price=0.4, zones=("a", "b"), spot=0.1)
ZONAL_A = an_instance_type("z.large", cpu=8, memory_gib=32, price=0.4, zones=("a",))
RACK = "example.com/rack"


@dataclass(frozen=True)
class AssignmentResult:
    """The result of domain assignment, with counts by the `app` label of the pods."""

    problem: SchedulingProblem
    solution: PartialSolution
    batches: tuple
    left: dict

    def app(self, row):
        """Returns the app of a row."""
        return self.problem.rows[row].pods[0].metadata.labels["app"]

    def on_new_nodes(self, app="web"):
        """Counts the pods on new nodes, by the domains in which the nodes must be."""
        found = Counter()
        for batch in self.batches:
            if self.app(batch.row) == app:
                found["/".join(value for _, value in batch.pins)] += batch.count
        return dict(found)

    def of(self, some):
        """Counts those of the pods that are on new nodes, by the domains in which the nodes must be."""
        chosen = [row for row, pod_class in enumerate(self.problem.rows) if pod_class.pods[0] in some]
        found = Counter()
        for batch in self.batches:
            if batch.row in chosen:
                found["/".join(value for _, value in batch.pins)] += batch.count
        return dict(found)

    def on_existing_nodes(self, app="web"):
        """Counts the pods on existing nodes, by the name of the node."""
        nodes = self.problem.existing.nodes
        found = Counter()
        for node, entries in self.solution.on_existing.items():
            found[nodes[node].name] += sum(n for row, n in entries if self.app(row) == app)
        return {name: n for name, n in found.items() if n}

    def unassigned(self, app="web"):
        """Counts the pods that no domain can take."""
        return sum(n for c, n in self.left.items() if self.app(self.problem.levels[c][0]) == app)

    def reasons_text(self):
        """Returns the reasons why pods are unschedulable, as one text."""
        return " ".join(self.solution.reasons.values())


def assign(*pods, types=(ZONAL,), ceilings=None, **cluster):
    """Assigns domains to these pods in a cluster."""
    snapshot = a_snapshot(pods=tuple(sorted(pods, key=lambda p: p.key)), **cluster)
    catalogue = Catalogue({pool.metadata.name: types for pool in snapshot.node_pools})
    task = prepare_task(ClusterInputs.of(snapshot, catalogue, Options()), pods_to_schedule(snapshot), frozenset())
    solution, problem = task.initial_solution(), task.problem
    if ceilings is not None:
        solution = replace(solution, ceilings=ceilings(problem))
    filling = NodeFilling(
        problem.existing, problem.rows, problem.requests, problem.host_constraints, solution.on_existing
    )
    assigned = assign_domains(problem, solution, filling)
    solution = replace(solution, on_existing=filling.taken, reasons=assigned.reasons)
    return AssignmentResult(problem, solution, assigned.batches, assigned.left)


def pods(count, app="web", prefix="", **kwargs):
    """Returns `count` equal pods of an app."""
    return [a_pod(f"{prefix or app}{i}", metadata={"labels": {"app": app}}, **kwargs) for i in range(count)]


def spread(key=labels.ZONE, *, skew=1, app="web", **more):
    """Returns a spec with a topology spread constraint over the pods of an app."""
    selector = {"matchLabels": {"app": app}}
    base = {"maxSkew": skew, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}
    return {"topologySpreadConstraints": [{**base, **more}]}


def near(app="web", key=labels.ZONE):
    """Returns a spec with required pod affinity to the pods of an app."""
    return {"affinity": {"podAffinity": {_REQUIRED: [_term(app, key)]}}}


def apart(app="web", key=labels.ZONE):
    """Returns a spec with required pod anti-affinity to the pods of an app."""
    return {"affinity": {"podAntiAffinity": {_REQUIRED: [_term(app, key)]}}}


_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def _term(app, key):
    return {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}}


def only(*zones):
    """Returns the `nodeAffinity` part of a spec that requires one of these zones."""
    expression = {"key": labels.ZONE, "operator": "In", "values": list(zones)}
    return {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}}


def a_full_cluster(*zones, free=0):
    """Returns pods that leave `free` of four CPUs on each node, and one node and NodeClaim per zone."""
    names = [f"n{index}" for index in range(len(zones))]
    nodes = tuple(a_node(n, metadata={"labels": {labels.ZONE: z}}) for n, z in zip(names, zones, strict=True))
    filler = [
        a_pod(f"filler-{n}", cpu=str(4 - free), node=f"node-{n}", metadata={"labels": {"app": "filler"}})
        for n in names
        if free < 4
    ]
    return filler, {"nodes": nodes, "claims": tuple(a_running_claim(n) for n in names)}


# -- pods without effective constraints -------------------------------------------------------------------------------


def test_spread_that_matches_no_pod_restricts_no_zone_but_needs_its_label():
    """Every node has a zone, so any node will do; no node has the rack label, so those pods are unschedulable."""
    idle = assign(*pods(5, spec=spread(app="unmatched")))
    rack = assign(*pods(5, spec=spread("example.com/rack", app="unmatched")))

    assert idle.on_new_nodes() == {"": 5}
    assert (rack.on_new_nodes(), rack.unassigned()) == ({}, 5)


def test_pods_without_topology_constraints_get_no_domain():
    """Packing chooses the domain of these pods, and no batch is a quota."""
    assigned = assign(*pods(5))

    assert assigned.on_new_nodes() == {"": 5}
    assert not any(batch.is_quota for batch in assigned.batches)


# -- spread -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "expected"), [(1, [1]), (7, [3, 2, 2]), (10_000, [3334, 3333, 3333])])
def test_spread_fills_the_emptiest_domain_first(count, expected):
    """The numbers of pods in two zones differ by at most one, for any number of pods."""
    assert sorted(assign(*pods(count, spec=spread())).on_new_nodes().values(), reverse=True) == expected


def test_spread_counts_running_pods():
    """Two pods run in zone a, so the next two pods go to zones b and c."""
    filler, cluster = a_full_cluster("a")
    running = pods(2, prefix="old", cpu="0", node="node-n0")

    assert assign(*filler, *running, *pods(2, spec=spread()), **cluster).on_new_nodes() == {"b": 1, "c": 1}


def test_zone_without_available_offerings_is_no_domain_of_a_spread():
    """No pod goes to zone c, and its count of zero does not limit the other zones."""
    sold_out = replace(ZONAL, offerings=tuple(replace(o, available=o.zone != "c") for o in ZONAL.offerings))

    assert assign(*pods(6, spec=spread()), types=(sold_out,)).on_new_nodes() == {"a": 3, "b": 3}


def test_min_domains_limits_each_domain_to_max_skew_when_there_are_too_few_domains():
    """With minDomains 4 and only three zones, each zone takes at most maxSkew pods."""
    assigned = assign(*pods(8, spec=spread(skew=2, minDomains=4)))

    assert assigned.on_new_nodes() == {"a": 2, "b": 2, "c": 2}
    assert assigned.unassigned() == 2
    assert "exceeds its maxSkew" in assigned.reasons_text()


@pytest.mark.parametrize(("policy", "expected"), [("Honor", {"a": 1, "b": 1}), ("Ignore", {"b": 2})])
def test_node_affinity_policy_decides_which_running_pods_a_spread_counts(policy, expected):
    """The spread counts pods on a node that its own pods cannot use only with policy Ignore."""
    filler, cluster = a_full_cluster("a")
    running = pods(2, prefix="old", cpu="0", node="node-n0")
    disk = {"nodeSelector": {"disk": "fast"}}
    pools = (a_pool(spec={"template": {"metadata": {"labels": {"disk": "fast"}}}}),)
    types = (an_instance_type("z.large", cpu=8, memory_gib=32, price=0.4, zones=("a", "b")),)
    new = pods(2, spec={**spread(nodeAffinityPolicy=policy), **disk})

    assert assign(*filler, *running, *new, types=types, node_pools=pools, **cluster).on_new_nodes() == expected


@pytest.mark.parametrize(("policy", "expected"), [("Honor", {"a": 1, "b": 1}), ("Ignore", {"b": 2})])
def test_node_taints_policy_decides_which_running_pods_a_spread_counts(policy, expected):
    """The spread counts pods on a node with an untolerated taint only with policy Ignore."""
    taint = {"key": "mine", "effect": "NoSchedule"}
    node = a_node("n0", spec={"taints": [taint]})
    running = pods(2, prefix="old", cpu="0", node="node-n0")
    types = (an_instance_type("z.large", cpu=8, memory_gib=32, price=0.4, zones=("a", "b")),)
    new = pods(2, spec=spread(nodeTaintsPolicy=policy))

    assigned = assign(*running, *new, types=types, nodes=(node,), claims=(a_running_claim("n0"),))

    assert assigned.on_new_nodes() == expected


def a_tainted_cluster(where):
    """Returns a cluster whose nodes allow a pod each, with a taint on one node, on the nodes of one NodePool, or on none."""
    taint = {"spec": {"taints": [{"key": "mine", "effect": "NoSchedule"}]}}
    nodes = (a_node("n0", **(taint if where == "node" else {})), a_node("n1"))
    pools = (a_pool("one"), a_pool("two", spec={"template": taint if where == "pool" else {}}))
    filler = [a_pod(f"filler-{n}", cpu="4", node=f"node-{n}", metadata={"labels": {"app": "x"}}) for n in ("n0", "n1")]
    types = (an_instance_type("z.large", cpu=8, memory_gib=32, price=0.4, zones=("a", "b")),)
    claims = (a_running_claim("n0"), a_running_claim("n1"))
    return filler, {"nodes": nodes, "node_pools": pools, "types": types, "claims": claims}


@pytest.mark.parametrize(
    ("where", "tolerates", "expected"),
    [
        ("nowhere", "guests", {"b": 2}),
        ("node", "guests", {"a": 1, "b": 1}),
        ("pool", "guests", {"a": 1, "b": 1}),
        ("node", "both", {"b": 2}),
    ],
)
def test_spread_that_honors_taints_relies_only_on_pods_with_equal_tolerations(where, tolerates, expected):
    """Guests in zone a balance the spread in zone b, unless they may be bound to tainted nodes, where it counts no pods."""
    filler, cluster = a_tainted_cluster(where)
    tolerations = {"tolerations": [{"key": "mine", "operator": "Exists"}]}
    guests = pods(2, prefix="guest", cpu="2", spec={"nodeSelector": {labels.ZONE: "a"}, **tolerations})
    own = pods(2, cpu="3", spec={**spread(nodeTaintsPolicy="Honor"), **(tolerations if tolerates == "both" else {})})

    found = assign(*filler, *guests, *own, **cluster)

    assert found.of(own) == expected


@pytest.mark.parametrize(("disks", "expected"), [(["fast"], {"b": 2}), (["fast", "slow"], {"a": 1, "b": 1})])
def test_spread_relies_only_on_pods_whose_nodes_meet_its_node_affinity(disks, expected):
    """Guests in zone a balance the spread in zone b, unless they may be bound to nodes with another disk."""

    def on(*values):
        expressions = [{"key": "disk", "operator": "In", "values": list(values)}]
        return {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": expressions}]}}}

    pool = a_pool(spec={"template": {"spec": {"requirements": [{"key": "disk", "operator": "Exists"}]}}})
    guests = pods(2, prefix="guest", cpu="2", spec={"nodeSelector": {labels.ZONE: "a"}, "affinity": on(*disks)})
    own = pods(2, cpu="3", spec={**spread(), "affinity": on("fast", "ssd")})
    types = (an_instance_type("z.large", cpu=8, memory_gib=32, price=0.4, zones=("a", "b")),)

    found = assign(*guests, *own, types=types, node_pools=(pool,))

    assert found.of(own) == expected


def test_spread_over_capacity_types_balances_spot_and_on_demand():
    """Half of the pods go to spot nodes and half to on-demand nodes."""
    assigned = assign(*pods(6, spec=spread(labels.CAPACITY_TYPE)), types=(SPOTTY,))

    assert assigned.on_new_nodes() == {"on-demand": 3, "spot": 3}


def test_nodepool_requirement_defines_the_domains_of_a_custom_label():
    """The NodePool requires rack In [r1, r2], and the spread distributes the pods over both racks."""
    racks = [{"key": RACK, "operator": "In", "values": ["r1", "r2"]}]
    pools = (a_pool(spec={"template": {"spec": {"requirements": racks}}}),)

    assert assign(*pods(4, spec=spread(RACK)), node_pools=pools).on_new_nodes() == {"r1": 2, "r2": 2}


def test_two_spreads_over_different_labels_hold_at_once():
    """The pods are balanced over the zones and over the capacity types."""
    both = [c for key in (labels.ZONE, labels.CAPACITY_TYPE) for c in spread(key)["topologySpreadConstraints"]]
    assigned = assign(*pods(100, spec={"topologySpreadConstraints": both}), types=(SPOTTY,))

    found = {tuple(cell.split("/")): n for cell, n in assigned.on_new_nodes().items()}
    assert sum(found.values()) == 100
    for position in (0, 1):
        totals = Counter()
        for cell, n in found.items():
            totals[cell[position]] += n
        assert set(totals.values()) == {50}


def test_spread_chooses_the_cheaper_zone_when_zones_are_equally_full():
    """Karpenter chooses at random between equally full zones."""
    dear = an_instance_type("x.large", cpu=8, memory_gib=32, price=0.5, zones=("a",))
    cheap = an_instance_type("y.large", cpu=8, memory_gib=32, price=0.4, zones=("b",))

    assert assign(*pods(3, spec=spread()), types=(dear, cheap)).on_new_nodes() == {"a": 1, "b": 2}


def test_spread_uses_existing_nodes_first_within_max_skew():
    """Two pods go to the existing node in zone a; a third pod in zone a would exceed maxSkew."""
    filler, cluster = a_full_cluster("a", free=3)
    assigned = assign(*filler, *pods(6, spec=spread()), **cluster)

    assert assigned.on_existing_nodes() == {"node-n0": 2}
    assert assigned.on_new_nodes() == {"b": 2, "c": 2}


def test_pods_without_a_spread_that_a_spread_counts_are_balanced_but_never_rejected():
    """The selector matches pods that have no spread; the pods with the spread balance the zones around them."""
    loose = pods(9, prefix="loose", cpu="500m")
    bound = pods(3, prefix="bound", spec=spread())

    assert assign(*loose, *bound).on_new_nodes() == {"a": 4, "b": 4, "c": 4}
    tied = pods(5, prefix="tied", cpu="500m", spec={"nodeSelector": {labels.ZONE: "a"}})
    assert assign(*tied, *bound).on_new_nodes() == {"a": 5, "b": 2, "c": 1}


def test_pods_without_a_spread_that_a_spread_counts_stay_in_the_cheaper_zone():
    """Domain assignment does not pay for a dearer zone to balance pods that have no spread."""
    dear = an_instance_type("x.large", cpu=8, memory_gib=32, price=0.5, zones=("a",))
    cheap = an_instance_type("y.large", cpu=8, memory_gib=32, price=0.4, zones=("b",))
    bound = pods(1, prefix="bound", cpu="2", spec=spread())

    assert assign(*pods(4, prefix="loose"), *bound, types=(dear, cheap)).on_new_nodes() == {"a": 1, "b": 4}


def test_pods_with_fewer_allowed_zones_are_assigned_first():
    """Pods that require zone a are assigned first; the other pods then balance the zones."""
    tied = pods(4, prefix="tied", cpu="500m", spec={**spread(), "nodeSelector": {labels.ZONE: "a"}})

    assert assign(*pods(8, prefix="free", spec=spread()), *tied).on_new_nodes() == {"a": 4, "b": 4, "c": 4}


# -- affinity ---------------------------------------------------------------------------------------------------------


def test_self_affinity_chooses_one_domain_by_price():
    """The price covers all pod classes that must be in the same domain."""
    types = (
        an_instance_type("x.large", cpu=8, memory_gib=32, price=0.5, zones=("a",)),
        an_instance_type("y.large", cpu=8, memory_gib=32, price=0.4, zones=("b",)),
    )

    assert assign(*pods(3, spec=near()), *pods(2, prefix="big", cpu="4", spec=near()), types=types).on_new_nodes() == {
        "b": 5
    }


def test_self_affinity_chooses_the_domain_that_the_most_constrained_pods_allow():
    """One pod class can only be in zone c, so all pods go there."""
    tied = {"affinity": {**near()["affinity"], **only("c")}}

    assert assign(*pods(3, cpu="2", spec=near()), *pods(1, prefix="tied", spec=tied)).on_new_nodes() == {"c": 4}


def test_affinity_uses_the_domain_of_the_running_pods():
    """A pod of app db runs in zone b, so the pods with affinity to it go to zone b."""
    filler, cluster = a_full_cluster("b")
    running = pods(1, app="db", cpu="0", node="node-n0")

    assert assign(*filler, *running, *pods(3, spec=near("db")), **cluster).on_new_nodes() == {"b": 3}


def test_chained_affinities_put_all_pods_into_one_zone():
    """The web pod has affinity to db, and the db pod has affinity to disk."""
    assigned = assign(*pods(1, cpu="4", spec=near("db")), *pods(1, "db", cpu="2", spec=near("disk")), *pods(1, "disk"))

    assert assigned.on_new_nodes() == assigned.on_new_nodes("db") == assigned.on_new_nodes("disk")
    assert not assigned.left


def test_affinity_that_matches_no_pod_leaves_pods_unschedulable():
    """No pod of app db exists, and the pods do not match their own affinity selector."""
    assigned = assign(*pods(2, spec=near("db")))

    assert assigned.unassigned() == 2
    assert "no domain of topology.kubernetes.io/zone that it can reach holds any of the pods" in assigned.reasons_text()


def test_self_affinity_starts_a_new_domain_when_running_pods_are_in_an_excluded_zone():
    """A matching pod runs in zone a, which the new pods exclude; they choose a common zone among b and c."""
    filler, cluster = a_full_cluster("a")
    running = pods(1, prefix="old", cpu="0", node="node-n0")
    spec = {"affinity": {**near()["affinity"], **only("b", "c")}}

    assert assign(*filler, *running, *pods(2, spec=spec), **cluster).on_new_nodes() == {"b": 2}


# -- anti-affinity ----------------------------------------------------------------------------------------------------


def test_self_anti_affinity_allows_one_pod_per_domain():
    """Each of three zones takes one pod, and the other two pods are unschedulable."""
    assigned = assign(*pods(5, spec=apart()))

    assert assigned.on_new_nodes() == {"a": 1, "b": 1, "c": 1}
    assert assigned.unassigned() == 2
    assert "every domain of topology.kubernetes.io/zone that it can reach is taken (a, b, c)" in assigned.reasons_text()


def test_anti_affinity_applies_in_both_directions():
    """The web pods and the db pods that they exclude share no zone, whichever come first in the queue."""
    for mine, theirs in (("4", "1"), ("1", "4")):
        assigned = assign(*pods(3, cpu=mine, spec=apart("db")), *pods(6, "db", cpu=theirs))

        assert not assigned.left
        assert not assigned.on_new_nodes().keys() & assigned.on_new_nodes("db").keys()


def test_anti_affinity_of_a_running_pod_excludes_new_pods_from_its_zone():
    """The new pods have no constraint, but the running pod's anti-affinity excludes them from zone a."""
    filler, cluster = a_full_cluster("a", free=3)
    loner = a_pod("loner", cpu="0", node="node-n0", metadata={"labels": {"app": "loner"}}, spec=apart("web"))

    assigned = assign(*filler, loner, *pods(2), **cluster)

    assert assigned.on_existing_nodes() == {}
    assert "a" not in assigned.on_new_nodes()
    assert sum(assigned.on_new_nodes().values()) == 2


def with_a_cheaper_rack(*others, **cluster):
    """Returns the verified plan of these and two web pods; NodePool `racked` is cheaper, and its nodes are in rack r1."""
    rack = {"key": RACK, "operator": "In", "values": ["r1"]}
    pools = (a_pool(), a_pool("racked", spec={"template": {"spec": {"requirements": [rack]}}}))
    snapshot = a_snapshot(pods=(*others, *pods(2, cpu="2")), node_pools=pools, **cluster)
    cheaper = an_instance_type("z.large", cpu=8, memory_gib=32, price=0.1, zones=ZONES)
    catalogue = Catalogue({"default": (ZONAL,), "racked": (cheaper,)})
    results = solve(snapshot, catalogue, options=Options(compare_up_to=0))
    assert verify_strictly(snapshot, catalogue, results, pods=pods_to_schedule(snapshot)) == ()
    return results


def test_excluded_pods_on_nodes_without_the_label_avoid_nodes_with_it():
    """A running pod excludes them from the rack of the existing node and of the cheaper NodePool."""
    node = a_node("n0", metadata={"labels": {RACK: "r1"}})
    loner = a_pod("loner", cpu="1", node="node-n0", metadata={"labels": {"app": "loner"}}, spec=apart("web", RACK))

    results = with_a_cheaper_rack(loner, nodes=(node,), claims=(a_running_claim("n0"),))

    assert results.existing == {}
    assert [(claim.node_pool, len(claim.pods)) for claim in results.new_claims] == [("default", 2)]


@pytest.mark.parametrize("compare_up_to", [0, 100], ids=["in bulk", "compared"])
@pytest.mark.parametrize(
    ("requirements", "node_selector", "rack"),
    [
        ([("Exists", ())], {}, ("1",)),
        ([("Gte", ("0",)), ("Lte", ("3",))], {}, ("1",)),
        ([("Exists", ())], {RACK: "r7"}, ("r7",)),
        ([("NotIn", ("r9",))], {}, ()),
    ],
    ids=["exists", "bounds", "selected by the pods", "absent"],
)
def test_excluded_pods_get_another_value_of_a_label_that_their_nodepool_leaves_open(
    compare_up_to, requirements, node_selector, rack
):
    """The running pod is on a node of rack 0, the value that such a NodePool gives first; that node has capacity."""
    entries = [{"key": RACK, "operator": operator, "values": [*values]} for operator, values in requirements]
    node = a_node("n0", metadata={"labels": {RACK: "0"}})
    loner = a_pod("loner", cpu="1", node="node-n0", metadata={"labels": {"app": "loner"}}, spec=apart("web", RACK))
    snapshot = a_snapshot(
        pods=(loner, *pods(2, cpu="1", spec={"nodeSelector": node_selector})),
        node_pools=(a_pool(spec={"template": {"spec": {"requirements": entries}}}),),
        nodes=(node,),
        claims=(a_running_claim("n0"),),
    )
    catalogue = Catalogue({"default": (ZONAL,)})

    results = solve(snapshot, catalogue, options=Options(compare_up_to=compare_up_to))

    (claim,) = results.new_claims
    assert (results.existing, len(claim.pods)) == ({}, 2)
    assert [r.values for r in claim.requirements if r.key == RACK] == [rack]
    assert verify_strictly(snapshot, catalogue, results, pods=pods_to_schedule(snapshot)) == ()


def test_anti_affinity_that_no_scheduled_pod_has_binds_no_pod_to_a_zone():
    """The loner fits on no node, so the other pods may use any node."""
    web = pods(3, cpu="2")

    alone = assign(*web, *pods(1, "loner", cpu="100", spec=apart("web")))
    beside = assign(*web, *pods(1, "loner", cpu="2", spec=apart("web")))

    assert (alone.on_new_nodes(), alone.unassigned("loner")) == ({"": 3}, 1)
    assert "" not in beside.on_new_nodes()


def test_anti_affinity_of_an_unschedulable_pod_excludes_no_nodes():
    """Only pods that are in a domain exclude others from it."""
    results = with_a_cheaper_rack(*pods(1, "loner", cpu="100", spec=apart("web", RACK)))

    assert [claim.node_pool for claim in results.new_claims] == ["racked"]


def test_anti_affinity_excludes_the_zones_of_matching_running_pods():
    """The running pod in zone a has no constraint itself."""
    filler, cluster = a_full_cluster("a")
    running = pods(1, app="db", cpu="0", node="node-n0")

    assert set(assign(*filler, *running, *pods(3, spec=apart("db")), **cluster).on_new_nodes()) <= {"b", "c"}


# -- rules that later placements violate ------------------------------------------------------------------------------

BOTH = {"labelSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["loose", "tight"]}]}}


def _spread_in(zones, *, skew):
    """Returns a spec with a spread over the pods of the apps `loose` and `tight`, which requires one of these zones."""
    return {**spread(skew=skew, **BOTH), "affinity": only(*zones)}


def _solved(pods, types=(), **cluster):
    """Returns a bulk plan without rivals: scheduled pods by app and zone, and unschedulable ones; verification passes."""
    snapshot = a_snapshot(pods=tuple(sorted(pods, key=lambda p: p.key)), **cluster)
    catalogue = Catalogue({"default": types})
    results = solve(snapshot, catalogue, options=Options(compare_up_to=0))
    assert verify_strictly(snapshot, catalogue, results, pods=pods_to_schedule(snapshot)) == ()
    zones = {node.name: node.labels[labels.ZONE] for node in snapshot.state_nodes}
    places = [(zones[name], keys) for name, keys in results.existing.items()]
    places += [(claim.offering.zone, claim.pods) for claim in results.new_claims]
    scheduled = Counter((key.removeprefix("default/")[:-1], zone) for zone, keys in places for key in keys)
    return dict(scheduled), sorted(key.removeprefix("default/") for key in results.pod_errors)


def test_pods_that_exceed_their_max_skew_because_of_later_pods_are_unplaced():
    """Loose pods (maxSkew 2) fill zone a first; the tight pod (maxSkew 1) fits only there, and only if it is bound first.

    Zones b and c have capacity for one loose pod each, so zone a takes three pods at most, in any order of binding.
    """
    filler, cluster = a_full_cluster("b", "c", free=1)
    loose = pods(5, app="loose", spec=spread(skew=2, **BOTH))
    tight = pods(1, app="tight", cpu="2", spec=spread(skew=1, **BOTH))

    assigned = assign(*filler, *loose, *tight, types=(ZONAL_A,), **cluster)
    scheduled, errors = _solved((*filler, *loose, *tight), types=(ZONAL_A,), **cluster)

    assert (assigned.on_new_nodes("tight"), assigned.on_new_nodes("loose"), assigned.unassigned("loose")) == (
        {"a": 1},
        {},
        3,
    )
    assert scheduled == {("loose", "a"): 2, ("loose", "b"): 1, ("loose", "c"): 1, ("tight", "a"): 1}
    assert errors == ["loose4"]


def test_pods_that_followed_unplaced_pods_are_unplaced_too():
    """Three loose pods go to zone a and one follows them; then six tight pods go there, and leave no place for loose pods.

    Zone c runs five pods, so the tight pods may go up to six, while zone b has capacity for one loose pod only.
    """
    _, cluster = a_full_cluster("a", "b", "c")
    filler = (*pods(1, app="fill-b", cpu="3", node="node-n1"), *pods(1, app="fill-c", cpu="4", node="node-n2"))
    running = pods(5, app="tight", prefix="old", cpu="0", node="node-n2")
    loose = pods(4, app="loose", spec=_spread_in("ab", skew=2))
    tight = pods(6, app="tight", cpu="100m", spec=_spread_in("ac", skew=1))
    near_loose = {"affinity": {**near("loose")["affinity"], **only("a")}}
    follower = pods(1, app="follower", cpu="100m", spec=near_loose)
    waiting = (*filler, *running, *loose, *tight, *follower)

    assigned = assign(*waiting, types=(), **cluster)
    scheduled, errors = _solved(waiting, **cluster)

    assert (assigned.on_existing_nodes("loose"), assigned.on_existing_nodes("tight")) == (
        {"node-n1": 1},
        {"node-n0": 6},
    )
    assert (assigned.unassigned("loose"), assigned.unassigned("follower")) == (3, 1)
    assert "unsatisfiable pod affinity" in assigned.reasons_text()
    assert scheduled == {("loose", "b"): 1, ("tight", "a"): 6}
    assert errors == ["follower0", "loose1", "loose2", "loose3"]


# -- preferences, ceilings, pod order ---------------------------------------------------------------------------------


def test_preferred_spread_is_relaxed_only_for_pods_that_cannot_satisfy_it():
    """Zone b has only types that are too small: the first pod satisfies the spread, the others relax it."""
    types = (ZONAL_A, an_instance_type("y.small", cpu=2, memory_gib=8, price=0.1, zones=("b",)))

    assigned = assign(*pods(3, cpu="6", spec=spread(whenUnsatisfiable="ScheduleAnyway")), types=types)

    assert assigned.on_new_nodes() == {"a": 1, "": 2}
    assert [batch.row for batch in assigned.batches] == [1, 0]


def test_preferred_anti_affinity_does_not_exclude_other_pods():
    """Three pods take a zone each; the fourth may use any zone, although the others prefer to avoid it."""
    shun = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [_weighted("web")]}}

    assigned = assign(*pods(4, spec={"affinity": shun}))

    assert assigned.on_new_nodes() == {"a": 1, "b": 1, "c": 1, "": 1}
    assert not assigned.left


def test_preferred_affinity_follows_pods_that_have_to_share_a_domain_themselves():
    """The db pods have to be in zone c. The larger web pods are assigned later, else they would give up their preference."""
    prefers = {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [_weighted("db")]}}
    shared = {"affinity": {**near("db")["affinity"], **only("c")}}

    assigned = assign(*pods(2, cpu="4", spec={"affinity": prefers}), *pods(2, "db", spec=shared))

    assert (assigned.on_new_nodes(), assigned.on_new_nodes("db")) == ({"c": 2}, {"c": 2})


def _weighted(app):
    return {"weight": 1, "podAffinityTerm": _term(app, labels.ZONE)}


def test_ceiling_limits_how_many_pods_a_domain_takes():
    """The scheduler sets ceilings after an attempt in which limits reduce the quota of a domain."""

    def ceilings(problem):
        return {(0, ((labels.ZONE, "a"),)): 1, (0, ((labels.ZONE, "b"),)): 0}

    assert assign(*pods(9, spec=spread(skew=9)), ceilings=ceilings).on_new_nodes() == {"a": 1, "c": 8}


def test_pod_order_does_not_change_the_assignment():
    """The API server lists pods in arbitrary order."""
    some = [
        *pods(5, spec=spread()),
        *pods(3, "db", cpu="2", spec=apart("web")),
        *pods(4, "cache", cpu="500m", spec=near("web")),
        *pods(4, "loose", cpu="250m"),
    ]

    first, second = assign(*some), assign(*reversed(some))

    assert [(u.count, u.pins) for u in first.batches] == [(u.count, u.pins) for u in second.batches]
    assert first.left == second.left


# -- price and capacity of domains ------------------------------------------------------------------------------------


def test_the_cheaper_zone_is_the_one_with_the_lower_price_per_cpu():
    """The larger instance type costs more per node, but less per pod."""
    small = an_instance_type("x.small", cpu=2, memory_gib=8, price=0.2, zones=("a",))
    large = an_instance_type("y.large", cpu=8, memory_gib=32, price=0.4, zones=("b",))

    assert assign(*pods(3, spec=spread()), types=(small, large)).on_new_nodes() == {"a": 1, "b": 2}


def test_pod_is_assigned_when_its_only_type_has_neither_the_most_cpu_nor_the_most_memory():
    """The other types have more CPU or more memory; the pod exactly fits the type between them."""
    types = (
        an_instance_type("c.large", cpu=8, memory_gib=8, price=0.3),
        an_instance_type("m.medium", cpu=4, memory_gib=16, price=0.3),
        an_instance_type("r.small", cpu=2, memory_gib=32, price=0.3),
    )

    assert assign(*pods(1, cpu="3920m", memory="15872Mi"), types=types).on_new_nodes() == {"": 1}


def test_a_node_without_free_cpu_takes_pods_that_request_none():
    """A CPU request of zero fits on a node whose CPU is fully requested."""
    filler, cluster = a_full_cluster("a")

    assert assign(*filler, *pods(1, cpu="0", spec=near("filler")), **cluster).on_existing_nodes() == {"node-n0": 1}


def test_self_affinity_puts_all_pods_into_one_of_two_domains():
    """An existing node in zone a has capacity for one of the pods, but new nodes are cheaper in zone b."""
    types = (
        an_instance_type("x.large", cpu=8, memory_gib=32, price=0.5, zones=("a",)),
        an_instance_type("y.large", cpu=8, memory_gib=32, price=0.4, zones=("b",)),
    )
    filler, cluster = a_full_cluster("a", free=1)
    assigned = assign(*filler, *pods(3, spec=near()), types=types, **cluster)

    assert not assigned.left
    assert {"a" if assigned.on_existing_nodes() else "b"} | assigned.on_new_nodes().keys() in ({"a"}, {"b"})


def test_constraint_that_allows_a_domain_is_not_reported_as_the_reason():
    """The spread allows only zone a, the anti-affinity only zone b: neither alone excludes the pod."""
    types = (an_instance_type("z.large", cpu=8, memory_gib=32, price=0.4, zones=("a", "b")),)
    filler, cluster = a_full_cluster("a", "b")
    running = [*pods(1, "db", cpu="0", node="node-n0"), *pods(1, prefix="old", cpu="0", node="node-n1")]
    assigned = assign(*filler, *running, *pods(1, spec={**spread(), **apart("db")}), types=types, **cluster)

    assert assigned.unassigned() == 1
    assert assigned.reasons_text() == "unsatisfiable rules between pods: no domain that it can reach keeps all of them"


def test_first_domain_of_an_affinity_is_that_of_the_nodepool_with_more_weight():
    """The NodePool with more weight has the dearer zone."""
    types = (
        an_instance_type("x.large", cpu=8, memory_gib=32, price=0.4, zones=("a",)),
        an_instance_type("y.large", cpu=8, memory_gib=32, price=0.5, zones=("b",)),
    )
    in_zone = {z: {"spec": {"requirements": [{"key": labels.ZONE, "operator": "In", "values": [z]}]}} for z in "ab"}
    pools = (a_pool("heavy", spec={"weight": 10, "template": in_zone["b"]}), a_pool(spec={"template": in_zone["a"]}))

    assert assign(*pods(3, spec=near()), types=types, node_pools=pools).on_new_nodes() == {"b": 3}


def test_first_zone_of_an_affinity_counts_only_pods_that_need_new_nodes():
    """Zone a is dearer, but an existing node there takes three of the four pods; without it all pods go to zone b."""
    near = {"topologyKey": labels.ZONE, "labelSelector": {"matchLabels": {"app": "web"}}}
    spec = {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [near]}}}
    web = [a_pod(f"w{n}", cpu="1", spec=spec) for n in range(4)]
    types = (
        an_instance_type("a.large", cpu=8, memory_gib=32, price=0.6, zones=("a",)),
        an_instance_type("b.large", cpu=8, memory_gib=32, price=0.4, zones=("b",)),
    )
    existing = {"nodes": (a_node("n"),), "claims": (a_running_claim("n"),)}
    running = a_pod("r", cpu="500m", node="node-n", metadata={"labels": {"app": "other"}})

    assert assign(*web, types=types).on_new_nodes() == {"b": 4}
    beside = assign(*web, running, types=types, **existing)
    assert (beside.on_existing_nodes(), beside.on_new_nodes()) == ({"node-n": 3}, {"a": 1})


def test_first_zone_of_an_affinity_is_rated_by_its_cheapest_capacity_type():
    """Zone a has expensive on-demand and cheap spot nodes; the on-demand nodes of zone b cost less than the former."""
    near = {"topologyKey": labels.ZONE, "labelSelector": {"matchLabels": {"app": "web"}}}
    loose = {"maxSkew": 9, "topologyKey": labels.CAPACITY_TYPE, "whenUnsatisfiable": "DoNotSchedule"}
    spec = {
        "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [near]}},
        "topologySpreadConstraints": [{**loose, "labelSelector": {"matchLabels": {"app": "web"}}}],
    }
    types = (
        an_instance_type("a.large", cpu=8, memory_gib=32, price=0.9, zones=("a",), spot=0.1),
        an_instance_type("b.large", cpu=8, memory_gib=32, price=0.15, zones=("b",)),
    )

    on_new = assign(*(a_pod(f"w{n}", cpu="1", spec=spec) for n in range(2)), types=types).on_new_nodes()

    assert {where.split("/")[-1] for where in on_new} == {"a"}


def test_anti_affinity_excludes_every_zone_that_a_new_node_may_get():
    """Two pods share a new node in zone a or b; a pod with anti-affinity to them gets zone c or is unschedulable."""
    required = "requiredDuringSchedulingIgnoredDuringExecution"

    def term(key):
        return {required: [{"topologyKey": key, "labelSelector": {"matchLabels": {"app": "db"}}}]}

    def member(name, app, cpu, rules):
        return a_pod(name, cpu=cpu, spec={"affinity": rules}, metadata={"labels": {"app": app}})

    pods = (
        *(member(f"db-{n}", "db", "3", {"podAffinity": term(labels.HOSTNAME)}) for n in range(2)),
        member("web", "web", "1", {"podAntiAffinity": term(labels.ZONE)}),
    )
    large = an_instance_type("z.large", cpu=8, memory_gib=32, price=0.4, zones=("a", "b"))

    def zone_of_web(zones):
        types = (large, an_instance_type("z.small", cpu=2, memory_gib=8, price=0.1, zones=zones))
        snapshot, catalogue = a_snapshot(pods=pods), Catalogue({"default": types})
        results = solve(snapshot, catalogue, options=Options(compare_up_to=0))
        assert verify_strictly(snapshot, catalogue, results, pods=pods) == ()
        return [claim.offering[1] for claim in results.new_claims if claim.pods == ("default/web",)]

    assert zone_of_web(ZONES) == ["c"]
    assert zone_of_web(("a", "b")) == []
