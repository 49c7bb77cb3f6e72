"""Karpenter's own algorithm: order of pods and nodes, topology rules, growth of nodes, limits, ports, reservations."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.problem import ClusterInputs, PlannedNode, prepare_task
from journeyman.core.scheduling.requirements import requirement
from journeyman.core.scheduling.results import MinValuesPolicy, Options
from journeyman.core.scheduling.sequential import behind_leaders, schedule_sequentially
from tests.helpers.builders import (
    LARGE,
    MEDIUM,
    SMALL,
    TYPES,
    a_node,
    a_pod,
    a_pool,
    a_running_claim,
    a_snapshot,
    an_instance_type,
    with_reservation,
)

ZONES = ("a", "b", "c")
ZONAL = an_instance_type("z.medium", cpu=4, memory_gib=16, price=0.2, zones=ZONES)
OWN = {"matchLabels": {"app": "web"}}


class Outcome:
    """The solution of sequential scheduling for these pods."""

    def __init__(
        self,
        *pods,
        types=TYPES,
        pools=None,
        running=(),
        nodes=(),
        claims=(),
        prepare=None,
        options=Options(),  # noqa: B008
    ):
        pools = pools or (a_pool(),)
        snapshot = a_snapshot(pods=(*pods, *running), node_pools=pools, nodes=nodes, claims=claims)
        by_pool = types if isinstance(types, dict) else {pool.metadata.name: types for pool in pools}
        inputs = ClusterInputs.of(snapshot, Catalogue(by_pool), options)
        task = prepare_task(inputs, pods, frozenset())
        self.problem = task.problem
        self.solution = task.initial_solution()
        if prepare is not None:
            self.solution = prepare(self.problem, self.solution)
        self.solution = schedule_sequentially(self.problem, self.solution)

    @property
    def left(self):
        """The number of pods that stay pending."""
        return sum(self.solution.left)

    @property
    def sizes(self):
        """The number of pods of each new node, largest first."""
        return sorted((sum(n for _, n in node.pods) for node in self.solution.new_nodes), reverse=True)

    @property
    def on_existing(self):
        """The number of pods on existing nodes."""
        return sum(n for pods in self.solution.on_existing.values() for _, n in pods)

    def domains(self, key=labels.ZONE):
        """Return the label value that each new node requires, sorted; None if the label is undecided."""
        found = [
            node.requirements[key].single if key in node.requirements else None for node in self.solution.new_nodes
        ]
        return sorted(found, key=str)

    def pools(self):
        """Return the NodePools of the new nodes."""
        return [self.problem.pools[node.pool].template.name for node in self.solution.new_nodes]


def pods(count, prefix="p", **kwargs):
    """Return this many equal pods."""
    return [a_pod(f"{prefix}{i:02d}", **kwargs) for i in range(count)]


def rule(kind, *, key=labels.ZONE, selector=None, preferred=False, **kwargs):
    """Return the arguments for a pod with one (anti-)affinity term."""
    term = {"topologyKey": key, "labelSelector": selector or OWN}
    if preferred:
        entry = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term}]}
    else:
        entry = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    return {"spec": {"affinity": {kind: entry}}, **kwargs}


def spread(key=labels.ZONE, *, skew=1, when="DoNotSchedule", **changes):
    """Return the arguments for a pod with one topology spread constraint over the pods of the app web."""
    entry = {"maxSkew": skew, "topologyKey": key, "whenUnsatisfiable": when, "labelSelector": OWN, **changes}
    return {"spec": {"topologySpreadConstraints": [entry]}}


def existing_node(name="default-1", **changes):
    """Return an existing node of 4 CPUs in zone a, and its NodeClaim."""
    return {"nodes": (a_node(name, **changes),), "claims": (a_running_claim(name),)}


def test_pods_fill_existing_nodes_first():
    """Three pods fit on the existing node; the fourth gets a new node."""
    outcome = Outcome(*pods(4, cpu="1300m"), **existing_node())

    assert (outcome.on_existing, outcome.sizes, outcome.left) == (3, [1], 0)


def test_new_node_takes_pods_up_to_the_largest_instance_type():
    """Seven pods of one CPU share a new node, which only the largest type can hold."""
    outcome = Outcome(*pods(7))

    (node,) = outcome.solution.new_nodes
    assert outcome.sizes == [7]
    assert node.total[outcome.problem.axes.index("cpu")] == 7000


def test_larger_pods_are_scheduled_first():
    """The pod of seven CPUs gets the first node; the small pods do not fit there and share another."""
    outcome = Outcome(*pods(2, "small", cpu="1"), a_pod("big", cpu="7"))

    assert outcome.sizes == [2, 1]


def test_nodepool_weight_decides_before_price():
    """Of two NodePools with equal weight, the cheaper one opens the node."""
    cheap, dear = (replace(SMALL, name="s"), replace(LARGE, name="l"))
    offered = {"aa": (cheap,), "zz": (dear,)}

    heavy = Outcome(a_pod("p"), types=offered, pools=(a_pool("aa"), a_pool("zz", spec={"weight": 5})))
    equal = Outcome(a_pod("p"), types=offered, pools=(a_pool("aa"), a_pool("zz")))

    assert (heavy.pools(), equal.pools()) == (["zz"], ["aa"])


@pytest.mark.parametrize("count", [3, 7])
def test_zone_spread_distributes_pods_evenly(count):
    """Each new node requires one zone, and zones differ by at most one pod."""
    outcome = Outcome(*pods(count, **spread()), types=(ZONAL,))

    assert outcome.left == 0
    assert outcome.domains() == list(ZONES)
    assert max(outcome.sizes) - min(outcome.sizes) <= 1


def test_spread_counts_new_nodes_whose_types_all_match_the_node_selector():
    """One pod selects amd64; its spread also counts the other pod's node, whose types are all amd64."""
    selective = spread()
    selective["spec"] = {**selective["spec"], "nodeSelector": {labels.ARCH: "amd64"}}

    outcome = Outcome(a_pod("p", **spread()), a_pod("q", cpu="500m", **selective), types=(ZONAL,))

    assert (outcome.sizes, outcome.left) == ([1, 1], 0)


def test_spread_minimum_includes_pods_on_matching_new_nodes():
    """Zones a and b have one pod each, so the third pod may join the new node in zone b."""
    selective = spread()
    selective["spec"] = {**selective["spec"], "nodeSelector": {labels.ARCH: "amd64"}}
    sent = a_pod("q", cpu="2", spec={"nodeSelector": {labels.ZONE: "b"}})
    two_zones = an_instance_type("z.medium", cpu=4, memory_gib=16, price=0.2, zones=("a", "b"))
    running = a_pod("r", cpu="4", node="node-default-1")
    full = existing_node(metadata={"labels": {labels.ARCH: "amd64"}})

    outcome = Outcome(sent, a_pod("p", **selective), types=(two_zones,), running=[running], **full)

    assert (outcome.sizes, outcome.left) == ([2], 0)


def test_spread_relies_on_a_pod_whose_new_node_has_only_matching_types():
    """Zone a has a pod; the new node in zone b does not require amd64, but can only be that, so zone a may get another."""
    selective = spread()
    selective["spec"] = {**selective["spec"], "nodeSelector": {labels.ARCH: "amd64"}}
    sent = a_pod("q", spec={"nodeSelector": {labels.ZONE: "b"}})
    types = (
        an_instance_type("s.small", cpu=2, memory_gib=8, price=0.1, zones=("b",)),
        an_instance_type("l.large", cpu=8, memory_gib=32, price=0.4, zones=("a",)),
    )
    running = a_pod("r", cpu="4", node="node-default-1")
    full = existing_node(metadata={"labels": {labels.ARCH: "amd64"}})

    outcome = Outcome(sent, a_pod("p", cpu="6", **selective), types=types, running=[running], **full)

    assert (outcome.domains(), outcome.left) == (["a", "b"], 0)


def test_zone_without_available_offerings_is_no_spread_domain():
    """Zone c is out of stock, so the spread covers zones a and b."""
    offerings = tuple(replace(o, available=o.zone != "c") for o in ZONAL.offerings)
    outcome = Outcome(*pods(6, **spread()), types=(replace(ZONAL, offerings=offerings),))

    assert (outcome.left, outcome.domains(), outcome.sizes) == (0, ["a", "b"], [3, 3])


def test_spread_counts_running_pods():
    """Two pods run in zone a, so the next two go to zones b and c."""
    running = pods(2, "r", node="node-default-1")
    outcome = Outcome(*pods(2, **spread()), types=(ZONAL,), running=running, **existing_node())

    assert (outcome.on_existing, outcome.domains()) == (0, ["b", "c"])


def test_spread_with_too_few_domains_allows_max_skew_pods_per_zone():
    """With minDomains 4 and three zones, each zone takes one pod and two pods stay pending."""
    outcome = Outcome(*pods(5, **spread(minDomains=4)), types=(ZONAL,))

    assert (outcome.sizes, outcome.left) == ([1, 1, 1], 2)


def test_hostname_spread_limits_the_pods_per_node():
    """A node takes two pods, however much capacity it has."""
    assert Outcome(*pods(5, cpu="100m", **spread(labels.HOSTNAME, skew=2))).sizes == [2, 2, 1]


def test_schedule_anyway_spread_is_relaxed_if_no_node_can_be_opened():
    """Each pod gets a node if new nodes are possible; otherwise the pods share the existing node."""
    demand = spread(labels.HOSTNAME, when="ScheduleAnyway")

    apart = Outcome(*pods(3, cpu="100m", **demand), **existing_node())
    together = Outcome(*pods(3, cpu="100m", **demand), types=(), **existing_node())

    assert (apart.on_existing, apart.sizes, apart.left) == (1, [1, 1], 0)
    assert (together.on_existing, together.left) == (3, 0)


def test_pods_with_zone_affinity_share_a_zone():
    """The first pod chooses the zone, and the others follow."""
    outcome = Outcome(*pods(6, cpu="2", **rule("podAffinity")), types=(ZONAL,))

    assert outcome.left == 0
    assert len(set(outcome.domains())) == 1


def test_pod_with_affinity_to_missing_pods_stays_pending():
    """No pod matches its affinity, not even the pod itself."""
    outcome = Outcome(a_pod("p", **rule("podAffinity", selector={"matchLabels": {"app": "db"}})))

    assert (outcome.left, outcome.solution.new_nodes) == (1, [])


def test_pod_is_retried_after_its_affinity_target_gets_a_node():
    """The larger pod is tried first and fails; once the smaller pod has a node, it joins."""
    follower = a_pod(
        "big", cpu="2", **rule("podAffinity", key=labels.HOSTNAME, selector={"matchLabels": {"app": "db"}})
    )
    leader = a_pod("small", cpu="1", metadata={"labels": {"app": "db"}})

    outcome = Outcome(follower, leader)

    assert (outcome.sizes, outcome.left) == ([2], 0)


def test_affinity_target_goes_to_the_only_zone_of_its_follower():
    """The leader may go to any zone, the follower only to zone c, so both go to zone c."""
    only_in_c = an_instance_type("c.small", cpu=1, memory_gib=4, price=0.1, zones=("c",))
    small = {"nodeSelector": {labels.INSTANCE_TYPE: "c.small"}}
    follower = rule("podAffinity")
    follower["spec"].update(small)

    outcome = Outcome(
        a_pod("leader", cpu="2", metadata={"labels": {"app": "web"}}),
        a_pod("follower", cpu="500m", metadata={"labels": {"app": "web"}}, **follower),
        types=(ZONAL, only_in_c),
    )

    assert (outcome.left, outcome.domains()) == (0, ["c", "c"])


def test_zone_anti_affinity_schedules_one_pod_per_zone_in_one_pass():
    """Each new node requires its own zone; the fourth pod stays pending."""
    outcome = Outcome(*pods(4, **rule("podAntiAffinity")), types=(ZONAL,))

    assert (outcome.domains(), outcome.left) == (list(ZONES), 1)


def test_anti_affinity_of_another_pod_excludes_a_pod_without_terms():
    """The pod shares no node with a new or running pod whose anti-affinity selects it."""
    shy = a_pod("shy", cpu="2", metadata={"labels": {"app": "db"}}, **rule("podAntiAffinity", key=labels.HOSTNAME))
    fellow = a_pod("p", cpu="100m")
    running = a_pod(
        "r", node="node-default-1", metadata={"labels": {"app": "db"}}, **rule("podAntiAffinity", key=labels.HOSTNAME)
    )

    assert Outcome(shy, fellow).sizes == [1, 1]
    assert Outcome(fellow, running=[running], **existing_node()).on_existing == 0


def test_new_node_of_a_pool_that_lists_no_values_excludes_those_that_exclude_its_pods():
    """The running pod is in rack 0; the NodePool only requires that its nodes have the label."""
    rack = "example.com/rack"
    pool = a_pool(spec={"template": {"spec": {"requirements": [{"key": rack, "operator": "Exists"}]}}})
    running = a_pod("r", node="node-default-1", metadata={"labels": {"app": "db"}}, **rule("podAntiAffinity", key=rack))
    existing = existing_node(metadata={"labels": {rack: "0"}})

    outcome = Outcome(*pods(2, cpu="100m"), pools=(pool,), running=[running], **existing)

    (node,) = outcome.solution.new_nodes
    assert (outcome.on_existing, outcome.sizes) == (0, [2])
    assert (node.requirements[rack].has("0"), node.requirements[rack].has("1")) == (False, True)


def test_preferred_anti_affinity_opens_nodes_up_to_the_nodepool_limit():
    """The limit allows two nodes, so two of the three pods share one."""
    limited = a_pool(spec={"limits": {"nodes": "2"}})
    outcome = Outcome(
        *pods(3, cpu="100m", **rule("podAntiAffinity", key=labels.HOSTNAME, preferred=True)), pools=(limited,)
    )

    assert (outcome.sizes, outcome.left) == ([2, 1], 0)


def test_preferred_zone_anti_affinity_counts_only_pods_with_one_zone():
    """A pod whose node may be in any zone excludes no pod; a pod that selects zone a does."""
    anywhere = a_pod("q", cpu="2", metadata={"labels": {"app": "db"}})
    bound = a_pod("q", cpu="2", metadata={"labels": {"app": "db"}}, spec={"nodeSelector": {labels.ZONE: "a"}})
    shy = a_pod("p", cpu="1", **rule("podAntiAffinity", selector={"matchLabels": {"app": "db"}}, preferred=True))

    assert Outcome(anywhere, shy, types=(ZONAL,)).sizes == [2]
    assert Outcome(bound, shy, types=(ZONAL,)).sizes == [1, 1]


def test_pods_with_the_same_host_port_get_a_node_each():
    """Two pods with host port 8080 get two nodes."""
    port = {"containers": [{"name": "c", "image": "x", "ports": [{"containerPort": 80, "hostPort": 8080}]}]}

    assert Outcome(*pods(2, spec=port)).sizes == [1, 1]


def test_new_nodes_stay_within_the_nodepool_limit():
    """A limit of ten CPUs allows a type of eight and one of two, not a second of four."""
    outcome = Outcome(*pods(12), pools=(a_pool(spec={"limits": {"cpu": "10"}}),))

    shares = sum(int(node.share[0]) for node in outcome.solution.new_nodes)
    assert shares == 10_000
    assert outcome.solution.headroom[0].left.tolist() == [0]
    assert (sum(outcome.sizes), outcome.left) == (8, 4)


def test_spread_skips_a_zone_whose_types_exceed_the_nodepool_limit():
    """The cheapest zone has only a type that exceeds the limit."""
    cheap = an_instance_type("m.large", cpu=8, memory_gib=32, price=0.1, zones=("a",))
    fitting = an_instance_type("m.small", cpu=2, memory_gib=8, price=0.2, zones=("b",))

    outcome = Outcome(a_pod("p", **spread()), types=(cheap, fitting), pools=(a_pool(spec={"limits": {"cpu": "4"}}),))

    assert (outcome.domains(), outcome.left) == (["b"], 0)


def test_first_node_affinity_term_that_an_offering_matches_is_used():
    """No type matches the first term; the second is used although the third is cheaper."""
    terms = [
        {"matchExpressions": [{"key": labels.INSTANCE_TYPE, "operator": "In", "values": [name]}]}
        for name in ("nowhere", "m.large", "m.small")
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    outcome = Outcome(a_pod("p", spec={"affinity": {"nodeAffinity": required}}))

    assert outcome.domains(labels.INSTANCE_TYPE) == ["m.large"]


def test_scheduling_continues_from_a_partial_solution():
    """A planned node keeps its pods, takes more if they fit, and counts for the spread."""

    def add_planned_node(problem, solution):
        pool = problem.pools[0]
        bound = pool.template.requirements & {labels.ZONE: requirement(labels.ZONE, "In", ("b",))}
        node = PlannedNode(pool=0, requirements=bound, pods=((0, 1),), total=problem.requests[0].copy())
        return replace(solution, new_nodes=[node], left=[solution.left[0] - 1, *solution.left[1:]])

    outcome = Outcome(*pods(4, **spread()), types=(ZONAL,), prepare=add_planned_node)

    assert outcome.left == 0
    assert outcome.solution.new_nodes[0].requirements[labels.ZONE].single == "b"
    assert outcome.domains() == list(ZONES)
    assert sum(outcome.sizes) == 4


def test_planned_node_takes_only_pods_that_fit_the_types_of_its_zone():
    """The planned node is in zone b, where only the small type exists; the larger type is in zone a."""
    types = (
        an_instance_type("s.small", cpu=2, memory_gib=8, price=0.1, zones=("b",)),
        an_instance_type("l.large", cpu=8, memory_gib=32, price=0.4, zones=("a",)),
    )

    def add_planned_node(problem, solution):
        bound = problem.pools[0].template.requirements & {labels.ZONE: requirement(labels.ZONE, "In", ("b",))}
        node = PlannedNode(pool=0, requirements=bound, pods=((0, 1),), total=problem.requests[0].copy())
        return replace(solution, new_nodes=[node], left=[solution.left[0] - 1])

    outcome = Outcome(*pods(4), types=types, prepare=add_planned_node)

    assert (outcome.sizes, outcome.left) == ([3, 1], 0)


def test_new_nodes_use_a_reservation_until_it_is_exhausted():
    """The first node requires the reservation; the second uses other offerings."""
    outcome = Outcome(*pods(2, cpu="3"), types=(with_reservation(MEDIUM, "cr-1", price=1e-8),))

    assert set(outcome.domains(labels.RESERVATION_ID)) == {"cr-1", None}
    assert outcome.solution.reservations.left == {"cr-1": 0}


def test_the_larger_reservation_is_used_if_the_smaller_leaves_pods():
    """The limit allows one node; Karpenter's NodeClaim could use either reservation, ours requires one."""
    types = (with_reservation(SMALL, "cr-small", price=1e-7), with_reservation(LARGE, "cr-large", price=4e-7))
    limited = a_pool(spec={"limits": {"memory": "32Gi"}})

    outcome = Outcome(*pods(6), types=types, pools=(limited,))

    assert (outcome.domains(labels.RESERVATION_ID), outcome.left) == (["cr-large"], 0)


def test_last_node_affinity_term_is_tried_first_if_pods_stay_pending():
    """The first term gives the leader a node on which its follower does not fit."""
    terms = [
        {"matchExpressions": [{"key": labels.INSTANCE_TYPE, "operator": "In", "values": [name]}]}
        for name in ("m.small", "m.large")
    ]
    either = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    leader = a_pod("leader", cpu="1", metadata={"labels": {"app": "db"}}, spec={"affinity": either})
    joins = rule("podAffinity", key=labels.HOSTNAME, selector={"matchLabels": {"app": "db"}})

    outcome = Outcome(leader, a_pod("follower", cpu="4", **joins))

    assert (outcome.domains(labels.INSTANCE_TYPE), outcome.sizes, outcome.left) == (["m.large"], [2], 0)


def two_nodes(*, first_cpu="4"):
    """Return a node in zone a and one in zone b, with their NodeClaims; the first is tried first."""
    small = {"allocatable": {"cpu": first_cpu, "memory": "16Gi", "pods": "10"}}
    nodes = (a_node("default-1", status=small), a_node("default-2", metadata={"labels": {labels.ZONE: "b"}}))
    return {"nodes": nodes, "claims": (a_running_claim("default-1"), a_running_claim("default-2"))}


def joining(app, name="follower", *, cpu="1", zone="", **changes):
    """Return a pod that must share a node with pods of an app, in a zone if one is given."""
    joins = rule("podAffinity", key=labels.HOSTNAME, selector={"matchLabels": {"app": app}})
    joins["spec"]["nodeSelector"] = {labels.ZONE: zone} if zone else {}
    return a_pod(name, cpu=cpu, **joins, **changes)


CACHE = joining("db", "cache", cpu="500m", metadata={"labels": {"app": "cache"}})


@pytest.mark.parametrize(
    ("followers", "first_cpu"),
    [
        ((joining("db", zone="b"),), "4"),
        ((joining("db"),), "2500m"),
        ((CACHE, joining("cache", zone="b")), "4"),
    ],
    ids=[
        "its follower accepts another zone",
        "its follower is too large",
        "the follower of its follower does not accept",
    ],
)
def test_leader_does_not_go_to_an_existing_node_where_followers_cannot_join_it(followers, first_cpu):
    """The first node takes the leader as well; no NodePool offers a new node."""
    leader = a_pod("leader", cpu="2", metadata={"labels": {"app": "db"}})

    outcome = Outcome(leader, *followers, types=(), **two_nodes(first_cpu=first_cpu))

    assert (outcome.on_existing, outcome.left) == (1 + len(followers), 0)


def test_leader_gets_a_new_node_if_its_follower_can_join_it_on_no_existing_one():
    """The follower may go to zone c alone, where no node exists."""
    leader = a_pod("leader", cpu="2", metadata={"labels": {"app": "db"}})

    outcome = Outcome(leader, joining("db", zone="c"), types=(ZONAL,), **two_nodes())

    assert (outcome.on_existing, outcome.sizes, outcome.left) == (0, [2], 0)


def test_leader_goes_to_an_existing_node_if_its_follower_can_join_it_nowhere():
    """No node of any kind is in the follower's zone, so a new one for the leader would be of no use."""
    leader = a_pod("leader", cpu="2", metadata={"labels": {"app": "db"}})

    outcome = Outcome(leader, joining("db", zone="d"), types=(ZONAL,), **two_nodes())

    assert (outcome.on_existing, outcome.sizes, outcome.left) == (1, [], 1)


def test_of_equal_pods_one_that_joins_any_pod_goes_after_those_that_spread():
    """Alone on its node it would keep off the pod whose spread counts it, which it may join itself."""
    anyone = {"matchExpressions": [{"key": "none", "operator": "DoesNotExist"}]}
    joins = a_pod("a", **rule("podAffinity", key=labels.HOSTNAME, selector=anyone))
    spreads = a_pod("b", **spread(labels.HOSTNAME, labelSelector=anyone))

    assert Outcome(joins, spreads).sizes == [2]


def test_leader_and_follower_are_scheduled_before_others_fill_the_node():
    """The leader is the last pod in the queue; its node would then be full of other pods."""
    leader = a_pod("leader", cpu="100m", metadata={"labels": {"app": "db"}})
    follower = a_pod(
        "follower", cpu="4", **rule("podAffinity", key=labels.HOSTNAME, selector={"matchLabels": {"app": "db"}})
    )

    outcome = Outcome(follower, *pods(7), leader, types=(LARGE,))

    assert (outcome.sizes, outcome.left) == ([5, 4], 0)


def test_pending_pods_go_first_if_that_schedules_more_pods():
    """The large pod is first and excludes both small pods from the only zone; without it, both are scheduled."""
    alone = rule("podAntiAffinity")

    outcome = Outcome(
        a_pod("large", cpu="2", **alone),
        *pods(2, prefix="small", cpu="1", metadata={"labels": {"app": "web"}}),
        types=(an_instance_type("m", cpu=4, memory_gib=16, price=0.2, zones=("a",)),),
    )

    assert (outcome.sizes, outcome.left) == ([2], 1)


def test_best_effort_min_values_are_relaxed_if_pods_stay_pending():
    """The limit allows one medium node or two small ones; with both types open, the second pod would stay pending."""
    variety = {"key": labels.INSTANCE_TYPE, "operator": "Exists", "minValues": 2}
    pool = a_pool(spec={"limits": {"memory": "16Gi"}, "template": {"spec": {"requirements": [variety]}}})

    outcome = Outcome(
        *pods(2, cpu="1"), types=(SMALL, MEDIUM), pools=(pool,), options=Options(min_values=MinValuesPolicy.BEST_EFFORT)
    )

    assert outcome.left == 0


def test_pod_order_does_not_change_the_solution():
    """The same pods in reverse order give the same nodes."""
    pending = [*pods(5, **spread()), *pods(4, "q", cpu="2"), *pods(3, "r", **rule("podAntiAffinity"))]

    one, other = Outcome(*pending, types=(ZONAL, LARGE)), Outcome(*reversed(pending), types=(ZONAL, LARGE))

    assert [(n.pods, n.requirements) for n in one.solution.new_nodes] == [
        (n.pods, n.requirements) for n in other.solution.new_nodes
    ]


def a_queue(*apps, near=None):
    """The problem of one pod per letter, and pod classes by app; `near` maps an app to the app whose node it needs."""
    near = near or {}

    def affinity(app):
        term = {"topologyKey": labels.HOSTNAME, "labelSelector": {"matchLabels": {"app": near[app]}}}
        return {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}

    pods = [
        a_pod(f"{app}{n}", spec=affinity(app) if app in near else {}, metadata={"labels": {"app": app}})
        for n, app in enumerate(apps)
    ]
    inputs = ClusterInputs.of(a_snapshot(pods=tuple(pods)), Catalogue({"default": TYPES}), Options())
    problem = prepare_task(inputs, pods, frozenset()).problem
    number = {problem.rows[rows[0]].labels["app"]: c for c, rows in enumerate(problem.levels)}
    return problem, number


@pytest.mark.parametrize(
    ("queue", "near", "left", "order"),
    [
        ("oofffl", {"f": "l"}, "f", "lfffoo"),
        ("ofgl", {"f": "l"}, "o", ""),
        ("ffgl", {"g": "f", "f": "l"}, "gf", "fglf"),
        ("fgh", {"g": "f", "h": "f"}, "gh", "fgh"),
        ("ogg", {"g": "o"}, "gg", "ogg"),
        ("of", {"f": "x"}, "f", ""),
    ],
    ids=["leader first", "no follower left", "chain", "leader used up", "same class twice", "no leader"],
)
def test_follower_is_queued_right_after_a_leader(queue, near, left, order):
    """Letters are apps; an empty order means that the queue would not change."""
    problem, number = a_queue(*queue, near=near)

    found = behind_leaders(problem, [number[app] for app in queue], [number[app] for app in left])

    assert [app for c in found for app, n in number.items() if n == c] == list(order)
