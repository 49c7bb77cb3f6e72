"""Domain assignment for any mix of constraints."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from journeyman.core.api import labels
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.domain_assignment import assign_domains
from journeyman.core.scheduling.node_filling import NodeFilling
from journeyman.core.scheduling.problem import ClusterInputs, prepare_task
from journeyman.core.scheduling.results import Options
from journeyman.core.scheduling.scheduler import pods_to_schedule
from tests.helpers.builders import a_node, a_pod, a_running_claim, a_snapshot, an_instance_type

ZONES = ("a", "b", "c")
TYPES = (an_instance_type("z.large", cpu=8, memory_gib=32, price=0.4, zones=ZONES, spot=0.2),)
KEYS = (labels.ZONE, labels.CAPACITY_TYPE)
APPS = ("red", "green", "blue")
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"

selectors = st.sampled_from(APPS).map(lambda app: {"matchLabels": {"app": app}})
terms = st.fixed_dictionaries({"topologyKey": st.sampled_from(KEYS), "labelSelector": selectors})
spreads = st.fixed_dictionaries(
    {
        "topologyKey": st.sampled_from(KEYS),
        "labelSelector": selectors,
        "maxSkew": st.integers(1, 3),
        "whenUnsatisfiable": st.just("DoNotSchedule"),
    }
)


@st.composite
def workloads(draw):
    """Pods of one kind, as keyword arguments for `a_pod`, and how many."""
    affinity = {}
    kind = draw(st.sampled_from(("plain", "spread", "spread", "both", "near", "apart")))
    if kind in {"near", "apart"}:
        rule = "podAffinity" if kind == "near" else "podAntiAffinity"
        affinity[rule] = {REQUIRED: [draw(terms)]}
    spec = {"affinity": affinity} if affinity else {}
    if kind in {"spread", "both"}:
        spec["topologySpreadConstraints"] = draw(st.lists(spreads, min_size=1, max_size=1 + (kind == "both")))
    if draw(st.integers(0, 3)) == 0:
        spec["nodeSelector"] = {labels.ZONE: draw(st.sampled_from(ZONES))}
    app = draw(st.sampled_from(APPS))
    return {"cpu": draw(st.sampled_from(("100m", "1", "3"))), "spec": spec, "app": app}, draw(st.integers(1, 7))


@st.composite
def clusters(draw):
    """Pods that wait, and nodes with pods that run."""
    waiting = [
        a_pod(f"w{w}-{i}", cpu=found["cpu"], spec=found["spec"], metadata={"labels": {"app": found["app"]}})
        for w, (found, count) in enumerate(draw(st.lists(workloads(), min_size=1, max_size=5)))
        for i in range(count)
    ]
    places = draw(st.lists(st.tuples(st.sampled_from(ZONES), st.sampled_from(("on-demand", "spot"))), max_size=3))
    nodes = [
        a_node(f"n{i}", metadata={"labels": {labels.ZONE: zone, labels.CAPACITY_TYPE: capacity}})
        for i, (zone, capacity) in enumerate(places)
    ]
    running = [
        a_pod(f"r{i}", cpu="1", node=node.metadata.name, metadata={"labels": {"app": draw(st.sampled_from(APPS))}})
        for i, node in enumerate(nodes)
    ]
    return waiting, running, nodes


def assigned(waiting, running, nodes):
    """The question, the units, what is stuck, and what went to existing nodes."""
    claims = tuple(a_running_claim(n.metadata.name.removeprefix("node-")) for n in nodes)
    snapshot = a_snapshot(pods=(*waiting, *running), nodes=tuple(nodes), claims=claims)
    catalogue = Catalogue({pool.metadata.name: TYPES for pool in snapshot.node_pools})
    asked = prepare_task(ClusterInputs.of(snapshot, catalogue, Options()), pods_to_schedule(snapshot), frozenset())
    solution, problem = asked.initial_solution(), asked.problem
    filling = NodeFilling(
        problem.existing, problem.rows, problem.requests, problem.host_constraints, solution.on_existing
    )
    assigned = assign_domains(problem, solution, filling)
    return problem, assigned.batches, assigned.left, filling.taken


def placements(problem, batches, taken):
    """Every group of pods that has a place, as (row, labels of the place, pods), those without decided labels left out."""
    found = [(batch.row, dict(batch.decided), batch.count) for batch in batches if batch.decided]
    nodes = problem.existing.nodes
    return found + [(row, nodes[n].labels, pods) for n, entries in taken.items() for row, pods in entries]


def counted(group, problem, places, *, running=True):
    """The pods a group counts by domain, placed now and running."""
    totals = Counter()
    for row, values, pods in places:
        if group.counts(problem.rows[row].namespace, problem.rows[row].labels) and group.key in values:
            totals[values[group.key]] += pods
    for node in problem.existing.nodes if running else ():
        totals[node.labels[group.key]] += sum(group.counts(p.metadata.namespace, p.metadata.labels) for p in node.pods)
    return totals


def domains_of(row, key):
    """Where a row's pods could be."""
    wanted = [term[key] for term in row.terms if key in term]
    every = ZONES if key == labels.ZONE else ("on-demand", "spot")
    return [value for value in every if all(r.has(value) for r in wanted)]


@given(clusters())
def test_every_pod_is_in_the_result_once(cluster):
    """On a node, in a unit, or unschedulable."""
    problem, batches, left, taken = assigned(*cluster)

    totals = Counter(left)
    for row, pods in [(u.row, u.count) for u in batches] + [e for entries in taken.values() for e in entries]:
        totals[problem.class_of_row[row]] += pods

    assert totals == dict(enumerate(problem.counts))


@given(clusters())
def test_every_constraint_holds_at_the_end(cluster):
    """Affinity, anti-affinity, and each spread's maxSkew."""
    problem, batches, _, taken = assigned(*cluster)
    places = placements(problem, batches, taken)

    for row, values, pods in places:
        rules = problem.rows[row]
        for group in rules.affinities:
            assert counted(group, problem, places)[values[group.key]] > 0
        for group in rules.anti_affinities:
            own = group.counts(rules.namespace, rules.labels)
            assert counted(group, problem, places)[values[group.key]] == own
            assert not own or pods == 1
        for spread in rules.spreads:
            if spread.group.counts(rules.namespace, rules.labels):
                bearing = [p for p in places if _bears(problem.rows[p[0]], spread)]
                total = counted(spread.group, problem, places)
                floor = min(total[value] for value in domains_of(rules, spread.key))
                here = counted(spread.group, problem, bearing)[values[spread.key]]
                assert here - floor <= spread.max_skew


def _bears(row, spread):
    """Whether pods of a row have that spread, or a stricter one, over the same pods and nodes."""
    return any(s.group.id == spread.group.id and s.max_skew <= spread.max_skew for s in row.spreads)


@given(clusters(), st.randoms(use_true_random=False))
def test_order_of_input_does_not_matter(cluster, draw):
    """Shuffled pods and nodes lead to the same result."""
    shuffled = [list(part) for part in cluster]
    for part in shuffled:
        draw.shuffle(part)

    (one, batches, left, taken), (two, others, reasons, filled) = assigned(*cluster), assigned(*shuffled)

    assert [r.keys for r in one.rows] == [r.keys for r in two.rows]
    assert (batches, left, taken) == (others, reasons, filled)
