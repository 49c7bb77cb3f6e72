"""Karpenter's own algorithm: the order of places, rules between pods, growth of nodes, limits, ports, reservations."""

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
    """What became of some pods: the draft, and who is on which node to open (by pod class' sample name)."""

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
        asked = prepare_task(inputs, pods, frozenset())
        self.problem = asked.problem
        self.solution = asked.initial_solution()
        if prepare is not None:
            self.solution = prepare(self.problem, self.solution)
        self.solution = schedule_sequentially(self.problem, self.solution)

    @property
    def left(self):
        """How many pods have no place."""
        return sum(self.solution.left)

    @property
    def sizes(self):
        """Pods by node to open, most first."""
        return sorted((sum(n for _, n in node.pods) for node in self.solution.new_nodes), reverse=True)

    @property
    def on_existing(self):
        """How many pods existing nodes took."""
        return sum(n for pods in self.solution.on_existing.values() for _, n in pods)

    def domains(self, key=labels.ZONE):
        """The label's value each node to open is bound to, sorted; None where it is open."""
        found = [
            node.requirements[key].single if key in node.requirements else None for node in self.solution.new_nodes
        ]
        return sorted(found, key=str)

    def pools(self):
        """The NodePools of the nodes to open."""
        return [self.problem.pools[node.pool].template.name for node in self.solution.new_nodes]


def pods(count, prefix="p", **kwargs):
    """That many equal pods."""
    return [a_pod(f"{prefix}{i:02d}", **kwargs) for i in range(count)]


def rule(kind, *, key=labels.ZONE, selector=None, preferred=False, **kwargs):
    """A pod with one (anti-)affinity term."""
    term = {"topologyKey": key, "labelSelector": selector or OWN}
    if preferred:
        entry = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term}]}
    else:
        entry = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    return {"spec": {"affinity": {kind: entry}}, **kwargs}


def spread(key=labels.ZONE, *, skew=1, when="DoNotSchedule", **changes):
    """A pod with one topology spread constraint over its like."""
    entry = {"maxSkew": skew, "topologyKey": key, "whenUnsatisfiable": when, "labelSelector": OWN, **changes}
    return {"spec": {"topologySpreadConstraints": [entry]}}


def standing(name="default-1", **changes):
    """An existing node of 4 CPUs in zone a, and its claim."""
    return {"nodes": (a_node(name, **changes),), "claims": (a_running_claim(name),)}


def test_pods_fill_existing_nodes_first():
    """Three pods of one CPU fit on the existing node, the fourth opens one."""
    outcome = Outcome(*pods(4, cpu="1300m"), **standing())

    assert (outcome.on_existing, outcome.sizes, outcome.left) == (3, [1], 0)


def test_a_node_grows_to_the_largest_type_that_holds_its_pods():
    """Seven pods of one CPU share one node, which only the largest type can still be."""
    outcome = Outcome(*pods(7))

    (node,) = outcome.solution.new_nodes
    assert outcome.sizes == [7]
    assert node.total[outcome.problem.axes.index("cpu")] == 7000


def test_larger_pods_go_first():
    """The pod of seven CPUs gets the node, and the small ones that no longer fit there another."""
    outcome = Outcome(*pods(2, "small", cpu="1"), a_pod("big", cpu="7"))

    assert outcome.sizes == [2, 1]


def test_the_heavier_pool_opens_nodes_and_equal_ones_compete_on_price():
    """Weight decides before price; price before the name."""
    cheap, dear = (replace(SMALL, name="s"), replace(LARGE, name="l"))
    offered = {"aa": (cheap,), "zz": (dear,)}

    heavy = Outcome(a_pod("p"), types=offered, pools=(a_pool("aa"), a_pool("zz", spec={"weight": 5})))
    equal = Outcome(a_pod("p"), types=offered, pools=(a_pool("aa"), a_pool("zz")))

    assert (heavy.pools(), equal.pools()) == (["zz"], ["aa"])


@pytest.mark.parametrize("count", [3, 7])
def test_zone_spread_deals_pods_out_evenly(count):
    """Each node is bound to a zone, and zones differ by one pod at most."""
    outcome = Outcome(*pods(count, **spread()), types=(ZONAL,))

    assert outcome.left == 0
    assert outcome.domains() == list(ZONES)
    assert max(outcome.sizes) - min(outcome.sizes) <= 1


def test_pods_on_nodes_that_will_suit_count_though_no_claim_says_so():
    """All types are amd64; that only one of the pods asks for it makes them no strangers."""
    selective = spread()
    selective["spec"] = {**selective["spec"], "nodeSelector": {labels.ARCH: "amd64"}}

    outcome = Outcome(a_pod("p", **spread()), a_pod("q", cpu="500m", **selective), types=(ZONAL,))

    assert (outcome.sizes, outcome.left) == ([1, 1], 0)


def test_a_zone_filled_by_pods_on_nodes_that_will_suit_is_not_the_emptiest():
    """One pod runs in zone a, one without a selector is sent to b: then the third may go to its node."""
    selective = spread()
    selective["spec"] = {**selective["spec"], "nodeSelector": {labels.ARCH: "amd64"}}
    sent = a_pod("q", cpu="2", spec={"nodeSelector": {labels.ZONE: "b"}})
    two_zones = an_instance_type("z.medium", cpu=4, memory_gib=16, price=0.2, zones=("a", "b"))
    running = a_pod("r", cpu="4", node="node-default-1")
    full = standing(metadata={"labels": {labels.ARCH: "amd64"}})

    outcome = Outcome(sent, a_pod("p", **selective), types=(two_zones,), running=[running], **full)

    assert (outcome.sizes, outcome.left) == ([2], 0)


def test_a_zone_that_cannot_be_had_is_no_domain():
    """With everything in zone c out of stock the spread is over the other two."""
    offerings = tuple(replace(o, available=o.zone != "c") for o in ZONAL.offerings)
    outcome = Outcome(*pods(6, **spread()), types=(replace(ZONAL, offerings=offerings),))

    assert (outcome.left, outcome.domains(), outcome.sizes) == (0, ["a", "b"], [3, 3])


def test_pods_that_run_count_for_a_spread():
    """Two pods in zone a already: the next two go to the other zones."""
    running = pods(2, "r", node="node-default-1")
    outcome = Outcome(*pods(2, **spread()), types=(ZONAL,), running=running, **standing())

    assert (outcome.on_existing, outcome.domains()) == (0, ["b", "c"])


def test_too_few_domains_count_as_empty_ones():
    """With minDomains beyond what there is every zone holds maxSkew pods and no more."""
    outcome = Outcome(*pods(5, **spread(minDomains=4)), types=(ZONAL,))

    assert (outcome.sizes, outcome.left) == ([1, 1, 1], 2)


def test_hostname_spread_caps_every_node():
    """Two pods a node, however much capacity it has."""
    assert Outcome(*pods(5, cpu="100m", **spread(labels.HOSTNAME, skew=2))).sizes == [2, 2, 1]


def test_a_wish_is_a_rule_until_nothing_else_helps():
    """ScheduleAnyway pods open nodes to stay apart; where none can be opened they share."""
    demand = spread(labels.HOSTNAME, when="ScheduleAnyway")

    apart = Outcome(*pods(3, cpu="100m", **demand), **standing())
    together = Outcome(*pods(3, cpu="100m", **demand), types=(), **standing())

    assert (apart.on_existing, apart.sizes, apart.left) == (1, [1, 1], 0)
    assert (together.on_existing, together.left) == (3, 0)


@pytest.mark.karpenter("provisioning/scheduling/topology", it="should respect self pod affinity (zone)")
def test_pods_with_affinity_share_the_first_ones_zone():
    """The first starts a domain, the others follow."""
    outcome = Outcome(*pods(6, cpu="2", **rule("podAffinity")), types=(ZONAL,))

    assert outcome.left == 0
    assert len(set(outcome.domains())) == 1


def test_affinity_to_nobody_stays_pending():
    """A pod that wants company it is not itself, and finds none, is left."""
    outcome = Outcome(a_pod("p", **rule("podAffinity", selector={"matchLabels": {"app": "db"}})))

    assert (outcome.left, outcome.solution.new_nodes) == (1, [])


def test_a_pod_waits_for_those_it_wants_to_join():
    """The larger pod comes first, fails, and is tried again once the smaller one it follows has a node."""
    follower = a_pod(
        "big", cpu="2", **rule("podAffinity", key=labels.HOSTNAME, selector={"matchLabels": {"app": "db"}})
    )
    leader = a_pod("small", cpu="1", metadata={"labels": {"app": "db"}})

    outcome = Outcome(follower, leader)

    assert (outcome.sizes, outcome.left) == ([2], 0)


def test_an_affinity_target_with_an_open_zone_takes_its_followers_zone():
    """The leader could be in any zone, the follower (of two starts) only where its small type is: there both go."""
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


def test_anti_affinity_over_zones_places_one_pod_a_zone_within_one_pass():
    """Each is bound to a zone of its own; the fourth finds none."""
    outcome = Outcome(*pods(4, **rule("podAntiAffinity")), types=(ZONAL,))

    assert (outcome.domains(), outcome.left) == (list(ZONES), 1)


def test_anti_affinity_holds_the_other_way_round_too():
    """A pod without a term keeps off the node of one whose term is about it, and off those of running ones."""
    shy = a_pod("shy", cpu="2", metadata={"labels": {"app": "db"}}, **rule("podAntiAffinity", key=labels.HOSTNAME))
    fellow = a_pod("p", cpu="100m")
    running = a_pod(
        "r", node="node-default-1", metadata={"labels": {"app": "db"}}, **rule("podAntiAffinity", key=labels.HOSTNAME)
    )

    assert Outcome(shy, fellow).sizes == [1, 1]
    assert Outcome(fellow, running=[running], **standing()).on_existing == 0


@pytest.mark.karpenter("provisioning/scheduling/topology", it="should allow violation of preferred pod anti-affinity")
def test_preferred_anti_affinity_opens_nodes_but_leaves_nobody_pending():
    """While a pool's limit allows new nodes pods stay apart, then they share."""
    limited = a_pool(spec={"limits": {"nodes": "2"}})
    outcome = Outcome(
        *pods(3, cpu="100m", **rule("podAntiAffinity", key=labels.HOSTNAME, preferred=True)), pools=(limited,)
    )

    assert (outcome.sizes, outcome.left) == ([2, 1], 0)


def test_preferred_anti_affinity_counts_those_whose_zone_is_settled():
    """Beside a pod whose node may still be in any zone the preference repels no pod; once it is bound to one, it does."""
    anywhere = a_pod("q", cpu="2", metadata={"labels": {"app": "db"}})
    bound = a_pod("q", cpu="2", metadata={"labels": {"app": "db"}}, spec={"nodeSelector": {labels.ZONE: "a"}})
    shy = a_pod("p", cpu="1", **rule("podAntiAffinity", selector={"matchLabels": {"app": "db"}}, preferred=True))

    assert Outcome(anywhere, shy, types=(ZONAL,)).sizes == [2]
    assert Outcome(bound, shy, types=(ZONAL,)).sizes == [1, 1]


@pytest.mark.karpenter("provisioning/scheduling", it="should schedule pods with the same host port to different nodes")
def test_host_ports_keep_pods_apart():
    """The same port twice is two nodes."""
    port = {"containers": [{"name": "c", "image": "x", "ports": [{"containerPort": 80, "hostPort": 8080}]}]}

    assert Outcome(*pods(2, spec=port)).sizes == [1, 1]


def test_nodes_never_outgrow_a_limit():
    """Ten CPUs allow a type of eight and one of two, not a second of four."""
    outcome = Outcome(*pods(12), pools=(a_pool(spec={"limits": {"cpu": "10"}}),))

    shares = sum(int(node.share[0]) for node in outcome.solution.new_nodes)
    assert shares == 10_000
    assert outcome.solution.headroom[0].left.tolist() == [0]
    assert (sum(outcome.sizes), outcome.left) == (8, 4)


def test_a_spread_chooses_among_the_domains_within_a_limit():
    """The cheapest domain has only a type that is too large."""
    cheap = an_instance_type("m.large", cpu=8, memory_gib=32, price=0.1, zones=("a",))
    fitting = an_instance_type("m.small", cpu=2, memory_gib=8, price=0.2, zones=("b",))

    outcome = Outcome(a_pod("p", **spread()), types=(cheap, fitting), pools=(a_pool(spec={"limits": {"cpu": "4"}}),))

    assert (outcome.domains(), outcome.left) == (["b"], 0)


def test_terms_of_an_affinity_are_tried_one_after_the_other():
    """The first term that any place can meet decides, be the second cheaper."""
    terms = [
        {"matchExpressions": [{"key": labels.INSTANCE_TYPE, "operator": "In", "values": [name]}]}
        for name in ("nowhere", "m.large", "m.small")
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    outcome = Outcome(a_pod("p", spec={"affinity": {"nodeAffinity": required}}))

    assert outcome.domains(labels.INSTANCE_TYPE) == ["m.large"]


def test_a_draft_is_carried_on():
    """A node opened before keeps its pods, takes more while it can, and counts for the rules."""

    def one_open(problem, solution):
        pool = problem.pools[0]
        bound = pool.template.requirements & {labels.ZONE: requirement(labels.ZONE, "In", ("b",))}
        node = PlannedNode(pool=0, requirements=bound, pods=((0, 1),), total=problem.requests[0].copy())
        return replace(solution, new_nodes=[node], left=[solution.left[0] - 1, *solution.left[1:]])

    outcome = Outcome(*pods(4, **spread()), types=(ZONAL,), prepare=one_open)

    assert outcome.left == 0
    assert outcome.solution.new_nodes[0].requirements[labels.ZONE].single == "b"
    assert outcome.domains() == list(ZONES)
    assert sum(outcome.sizes) == 4


def test_reserved_capacity_is_used_as_far_as_it_goes():
    """The node that draws on the reservation is bound to it; when it is used up, others are bought."""
    outcome = Outcome(*pods(2, cpu="3"), types=(with_reservation(MEDIUM, "cr-1", price=1e-8),))

    assert set(outcome.domains(labels.RESERVATION_ID)) == {"cr-1", None}
    assert outcome.solution.reservations.left == {"cr-1": 0}


def test_the_larger_reservation_is_used_if_the_smaller_leaves_pods():
    """The limit allows one node of either; Karpenter's claim would grow from one to the other, ours is bound to one."""
    types = (with_reservation(SMALL, "cr-small", price=1e-7), with_reservation(LARGE, "cr-large", price=4e-7))
    limited = a_pool(spec={"limits": {"memory": "32Gi"}})

    outcome = Outcome(*pods(6), types=types, pools=(limited,))

    assert (outcome.domains(labels.RESERVATION_ID), outcome.left) == (["cr-large"], 0)


def test_the_last_alternative_is_tried_first_if_pods_are_left():
    """By its first alternative the leader gets a node on which its follower does not fit."""
    terms = [
        {"matchExpressions": [{"key": labels.INSTANCE_TYPE, "operator": "In", "values": [name]}]}
        for name in ("m.small", "m.large")
    ]
    either = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    leader = a_pod("leader", cpu="1", metadata={"labels": {"app": "db"}}, spec={"affinity": either})
    joins = rule("podAffinity", key=labels.HOSTNAME, selector={"matchLabels": {"app": "db"}})

    outcome = Outcome(leader, a_pod("follower", cpu="4", **joins))

    assert (outcome.domains(labels.INSTANCE_TYPE), outcome.sizes, outcome.left) == (["m.large"], [2], 0)


def test_who_must_share_a_node_comes_before_others_have_filled_it_up():
    """The small pod to be joined is the last to come; by then its node would be full of those in between."""
    leader = a_pod("leader", cpu="100m", metadata={"labels": {"app": "db"}})
    follower = a_pod(
        "follower", cpu="4", **rule("podAffinity", key=labels.HOSTNAME, selector={"matchLabels": {"app": "db"}})
    )

    outcome = Outcome(follower, *pods(7), leader, types=(LARGE,))

    assert (outcome.sizes, outcome.left) == ([5, 4], 0)


def test_who_was_left_over_goes_first_where_that_serves_more():
    """One zone. The large pod comes first, and may not be with any of the two small ones; without it both have a place."""
    alone = rule("podAntiAffinity")

    outcome = Outcome(
        a_pod("large", cpu="2", **alone),
        *pods(2, prefix="small", cpu="1", metadata={"labels": {"app": "web"}}),
        types=(an_instance_type("m", cpu=4, memory_gib=16, price=0.2, zones=("a",)),),
    )

    assert (outcome.sizes, outcome.left) == ([2], 1)


def test_choice_that_is_a_best_effort_is_given_up_for_a_place():
    """The limit allows a medium node or two small ones. Keeping both types open would cost the second pod its place."""
    variety = {"key": labels.INSTANCE_TYPE, "operator": "Exists", "minValues": 2}
    pool = a_pool(spec={"limits": {"memory": "16Gi"}, "template": {"spec": {"requirements": [variety]}}})

    outcome = Outcome(
        *pods(2, cpu="1"), types=(SMALL, MEDIUM), pools=(pool,), options=Options(min_values=MinValuesPolicy.BEST_EFFORT)
    )

    assert outcome.left == 0


def test_arrival_order_never_matters():
    """The same pods in another order give the same draft."""
    asked = [*pods(5, **spread()), *pods(4, "q", cpu="2"), *pods(3, "r", **rule("podAntiAffinity"))]

    one, other = Outcome(*asked, types=(ZONAL, LARGE)), Outcome(*reversed(asked), types=(ZONAL, LARGE))

    assert [(n.pods, n.requirements) for n in one.solution.new_nodes] == [
        (n.pods, n.requirements) for n in other.solution.new_nodes
    ]


def a_queue(*apps, near=None):
    """The problem of one pod per letter, by application; `near` maps applications to the one they must share a node with."""
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
def test_pods_that_must_join_others_are_queued_right_after_one(queue, near, left, order):
    """Letters are applications; an empty order means that nothing would change."""
    problem, number = a_queue(*queue, near=near)

    found = behind_leaders(problem, [number[app] for app in queue], [number[app] for app in left])

    assert [app for c in found for app, n in number.items() if n == c] == list(order)
