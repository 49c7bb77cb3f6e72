"""The verifier rejects wrong parts of a solver's answer, keeps the others, and reports each pod that loses its node."""

from __future__ import annotations

from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.results import Results
from journeyman.core.scheduling.scheduler import pods_to_schedule, solve
from journeyman.core.scheduling.verify import Defect
from journeyman.steps.verification import PlanVerifier, defects_plan
from tests.helpers.builders import a_node, a_pod, a_pool, a_running_claim, a_snapshot, an_instance_type
from tests.helpers.fakes import Cluster

ZONAL = an_instance_type("z.medium", cpu=4, memory_gib=16, price=0.2, zones=("a", "b", "c"))
SPREAD = {
    "topologySpreadConstraints": [
        {
            "maxSkew": 1,
            "topologyKey": labels.ZONE,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": "even"}},
        }
    ]
}


def checking(*pods, **cluster):
    """The check of answers for these pods."""
    snapshot = a_snapshot(pods=tuple(sorted(pods, key=lambda p: p.key)), **cluster)
    catalogue = Catalogue({pool.metadata.name: (ZONAL,) for pool in snapshot.node_pools})
    return PlanVerifier(snapshot=snapshot, catalogue=catalogue, pods=pods_to_schedule(snapshot), gone=frozenset())


def answer(check):
    """The scheduler's."""
    return solve(check.snapshot, check.catalogue, pods=check.pods)


def test_a_right_answer_passes_untouched():
    """The very same."""
    check = checking(*(a_pod(f"p{i}") for i in range(6)))
    right = answer(check)

    checked = check.of(right)

    assert checked.results is right
    assert checked.defects == ()


def test_a_claim_that_is_too_small_is_left_out_and_the_sound_one_stays():
    """Its pods have an error that says why, and are not forgotten."""
    check = checking(*(a_pod(f"p{i}") for i in range(6)))
    sound = solve(check.snapshot, check.catalogue, pods=check.pods[:1]).new_claims[0]
    others = tuple(pod.key for pod in check.pods[1:])

    checked = check.of(Results(new_claims=(sound, replace(sound, pods=others)), price=2 * sound.price))

    assert checked.results.new_claims == (sound,)
    assert checked.results.price == sound.price
    assert tuple(checked.results.pod_errors) == others
    assert {error.kind for error in checked.results.pod_errors.values()} == {"refused"}
    assert checked.defects[0].sentence in checked.results.pod_errors[others[0]].message


def test_an_overbooked_node_does_not_affect_other_nodes():
    """Six cores on a node of four; the spread of the new nodes' pods verifies only with all three of them."""
    nodes, claims = (a_node("x"), a_node("y")), (a_running_claim("x"), a_running_claim("y"))
    even = [a_pod(f"e{i}", cpu="3", spec=SPREAD, metadata={"labels": {"app": "even"}}) for i in range(6)]
    alone = answer(checking(*even))
    large = [a_pod("l0", cpu="3"), a_pod("l1", cpu="3"), a_pod("s", cpu="100m")]
    check = checking(*even, *large, nodes=nodes, claims=claims)
    existing = {"node-x": ("default/l0", "default/l1"), "node-y": ("default/s",)}

    checked = check.of(replace(alone, existing=existing))

    assert checked.results.new_claims == alone.new_claims
    assert checked.results.existing == {"node-y": ("default/s",)}
    assert tuple(checked.results.pod_errors) == ("default/l0", "default/l1")


def test_who_counted_on_what_is_left_out_is_left_out_as_well():
    """Zone c's claim is wrong: in the others one pod each may stay, no two."""
    even = [a_pod(f"e{i}", cpu="3", spec=SPREAD, metadata={"labels": {"app": "even"}}) for i in range(6)]
    check = checking(*even)
    right = answer(check)
    wrong = tuple(replace(c, price=0.0) if c.offering[1] == "c" else c for c in right.new_claims)

    checked = check.of(replace(right, new_claims=wrong))

    kept = checked.results.new_claims
    assert all(claim.offering[1] != "c" for claim in kept)
    assert check.of(replace(checked.results)).defects == ()
    assert {pod.key for pod in even} == {key for claim in kept for key in claim.pods} | set(checked.results.pod_errors)


def test_of_claims_that_exceed_a_limit_together_some_are_kept():
    """The check names no node: as many stay as the NodePool may have."""
    pods = [a_pod(f"p{i}", cpu="3") for i in range(3)]
    generous = answer(checking(*pods))
    check = checking(*pods, node_pools=(a_pool(spec={"limits": {"cpu": "8"}}),))

    checked = check.of(generous)

    assert len(generous.new_claims) == 3
    assert 1 <= len(checked.results.new_claims) <= 2
    assert len(checked.results.pod_errors) == 3 - len(checked.results.new_claims)


def test_a_claim_of_a_pool_that_cannot_be_used_takes_no_other_nodes_places():
    """The check names it, though nothing can be said of what it would become."""
    node, claim = a_node("x"), a_running_claim("x")
    check = checking(a_pod("p0"), a_pod("p1"), nodes=(node,), claims=(claim,))
    (planned,) = solve(
        check.snapshot, check.catalogue, pods=check.pods[:1], without_nodes=frozenset({"node-x"})
    ).new_claims
    wrong = replace(planned, node_pool="gone")

    checked = check.of(Results(new_claims=(wrong,), existing={"node-x": ("default/p1",)}, price=wrong.price))

    assert checked.results.new_claims == ()
    assert checked.results.existing == {"node-x": ("default/p1",)}
    assert tuple(checked.results.pod_errors) == ("default/p0",)


def test_a_pod_on_two_nodes_loses_both_and_no_other_pod_does():
    """The verifier cannot decide which of them is right."""
    names = ("x", "y", "z")
    cluster = {"nodes": tuple(a_node(n) for n in names), "claims": tuple(a_running_claim(n) for n in names)}
    check = checking(a_pod("p0"), a_pod("p1"), **cluster)

    checked = check.of(
        Results(existing={"node-x": ("default/p0",), "node-y": ("default/p0",), "node-z": ("default/p1",)})
    )

    assert checked.results.existing == {"node-z": ("default/p1",)}
    assert tuple(checked.results.pod_errors) == ("default/p0",)


def test_a_pod_that_was_forgotten_takes_no_place_from_those_that_were_not():
    """It is a defect, and every place is right."""
    check = checking(a_pod("p0"), a_pod("p1"), nodes=(a_node("x"),), claims=(a_running_claim("x"),))

    checked = check.of(Results(existing={"node-x": ("default/p1",)}))

    assert "missing from the plan" in checked.defects[0].sentence
    assert checked.results.existing == {"node-x": ("default/p1",)}


def test_of_sixty_claims_crowding_one_zone_some_are_kept_and_verify():
    """Each look takes one of them out, and looks are counted: the rest is found by halving."""
    even = [a_pod(f"e{i:02}", cpu="3", spec=SPREAD, metadata={"labels": {"app": "even"}}) for i in range(60)]
    check = checking(*even)
    claims = tuple(claim for claim in answer(check).new_claims if claim.offering[1] == "a")
    crowded = tuple(replace(claims[i % len(claims)], pods=(pod.key,)) for i, pod in enumerate(even))

    checked = check.of(Results(new_claims=crowded))

    kept = checked.results.new_claims
    assert kept
    assert check.of(checked.results).defects == ()
    assert len(checked.results.pod_errors) == 60 - len(kept)


def test_a_defect_is_reported_and_fails_no_run():
    """Its message would hide the queue's for minutes, and all other pods with it."""
    cluster, defects = Cluster(), (Defect("node x: cpu is overbooked", ("node x",)),)

    outcome = cluster.execute(defects_plan("pods", "refused", defects))

    assert (outcome.status, outcome.counts) == ("done", {"errors": 1})
    assert "node x: cpu is overbooked" in outcome.notes[0]
    assert {o.name for o in cluster.record.observations} == {"journeyman_plan_defects_total", "journeyman_errors_total"}


def test_each_pod_s_event_says_what_is_wrong_on_its_own_node():
    """Two nodes are overbooked, and each pod's Event names its own node only."""
    nodes, claims = (a_node("x"), a_node("y")), (a_running_claim("x"), a_running_claim("y"))
    pods = [a_pod(f"{name}{i}", cpu="3") for name in "xy" for i in range(2)]
    check = checking(*pods, nodes=nodes, claims=claims)

    crowded = {f"node-{name}": (f"default/{name}0", f"default/{name}1") for name in "xy"}
    errors = check.of(Results(existing=crowded)).results.pod_errors

    assert {key: "node node-x: cpu is exceeded" in e.message for key, e in errors.items()} == {
        "default/x0": True,
        "default/x1": True,
        "default/y0": False,
        "default/y1": False,
    }
