"""The verifier rejects invalid placements, keeps the others, and reports each pod that loses its placement."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.results import Defect, Options, Results
from journeyman.core.scheduling.scheduler import pods_to_schedule, solve
from journeyman.steps.verification import PlanVerifier, defects_plan
from tests.helpers.builders import a_daemon_set, a_node, a_pod, a_pool, a_running_claim, a_snapshot, an_instance_type
from tests.helpers.fakes import Cluster

ZONAL = an_instance_type("z.medium", cpu=4, memory_gib=16, price=0.2, zones=("a", "b", "c"))


def even_pods(number):
    spread = {"maxSkew": 1, "topologyKey": labels.ZONE, "whenUnsatisfiable": "DoNotSchedule"}
    spec = {"topologySpreadConstraints": [{**spread, "labelSelector": {"matchLabels": {"app": "even"}}}]}
    return [a_pod(f"e{i:02}", cpu="3", spec=spec, metadata={"labels": {"app": "even"}}) for i in range(number)]


def a_verifier(*pods, types=(ZONAL,), **cluster):
    snapshot = a_snapshot(pods=tuple(sorted(pods, key=lambda p: p.key)), **cluster)
    catalogue = Catalogue({pool.metadata.name: types for pool in snapshot.node_pools})
    return PlanVerifier(
        snapshot=snapshot,
        catalogue=catalogue,
        pods=pods_to_schedule(snapshot),
        removed_nodes=frozenset(),
        options=Options(),
    )


def planned_by_scheduler(verifier):
    return solve(verifier.snapshot, verifier.catalogue, pods=verifier.pods)


def test_overbooked_nodeclaim_is_rejected_and_a_valid_one_kept():
    """The pods of the rejected NodeClaim get an error that contains the defect; valid results are the same object."""
    verifier = a_verifier(*(a_pod(f"p{i}") for i in range(6)))
    right = planned_by_scheduler(verifier)
    unchanged = verifier.verify_results(right)
    assert unchanged.results is right
    assert unchanged.defects == ()
    sound = solve(verifier.snapshot, verifier.catalogue, pods=verifier.pods[:1]).new_claims[0]
    others = tuple(pod.key for pod in verifier.pods[1:])

    verified = verifier.verify_results(Results(new_claims=(sound, replace(sound, pods=others)), price=2 * sound.price))

    assert verified.results.new_claims == (sound,)
    assert verified.results.price == sound.price
    assert tuple(verified.results.pod_errors) == others
    assert {error.kind for error in verified.results.pod_errors.values()} == {"refused"}
    assert verified.defects[0].sentence in verified.results.pod_errors[others[0]].message


def test_overbooked_node_does_not_affect_other_nodes():
    """Six cores on a node of four; the spread of the new nodes' pods verifies only with all three of them."""
    nodes, claims = (a_node("x"), a_node("y")), (a_running_claim("x"), a_running_claim("y"))
    even = even_pods(6)
    alone = planned_by_scheduler(a_verifier(*even))
    large = [a_pod("l0", cpu="3"), a_pod("l1", cpu="3"), a_pod("s", cpu="100m")]
    verifier = a_verifier(*even, *large, nodes=nodes, claims=claims)
    existing = {"node-x": ("default/l0", "default/l1"), "node-y": ("default/s",)}

    verified = verifier.verify_results(replace(alone, existing=existing))

    assert verified.results.new_claims == alone.new_claims
    assert verified.results.existing == {"node-y": ("default/s",)}
    assert tuple(verified.results.pod_errors) == ("default/l0", "default/l1")


def test_placements_that_depend_on_a_rejected_one_are_rejected():
    """Without the NodeClaim in zone c, maxSkew allows one pod in each other zone."""
    even = even_pods(6)
    verifier = a_verifier(*even)
    right = planned_by_scheduler(verifier)
    wrong = tuple(replace(c, requests={}) if c.offering[1] == "c" else c for c in right.new_claims)

    verified = verifier.verify_results(replace(right, new_claims=wrong))

    kept = verified.results.new_claims
    assert all(claim.offering[1] != "c" for claim in kept)
    assert verifier.verify_results(replace(verified.results)).defects == ()
    assert {pod.key for pod in even} == {key for claim in kept for key in claim.pods} | set(verified.results.pod_errors)


def test_nodeclaims_within_the_limit_are_kept_when_all_exceed_it():
    """The defect names no node, so the verifier keeps as many NodeClaims as the limit allows."""
    pods = [a_pod(f"p{i}", cpu="3") for i in range(3)]
    generous = planned_by_scheduler(a_verifier(*pods))
    verifier = a_verifier(*pods, node_pools=(a_pool(spec={"limits": {"cpu": "8"}}),))

    verified = verifier.verify_results(generous)

    assert len(generous.new_claims) == 3
    assert 1 <= len(verified.results.new_claims) <= 2
    assert len(verified.results.pod_errors) == 3 - len(verified.results.new_claims)


def test_nodeclaim_beyond_the_limit_by_itself_leaves_the_others():
    """The limit is for three small nodes; bisecting finds the large one in their middle."""
    types = (ZONAL, an_instance_type("z.xlarge", cpu=16, memory_gib=64, price=0.8, zones=("a", "b", "c")))
    sizes = {"p0": "z.medium", "p1": "z.medium", "p2": "z.xlarge", "p3": "z.medium"}
    pods = [a_pod(name, cpu="3", spec={"nodeSelector": {labels.INSTANCE_TYPE: size}}) for name, size in sizes.items()]
    generous = planned_by_scheduler(a_verifier(*pods, types=types))
    verifier = a_verifier(*pods, types=types, node_pools=(a_pool(spec={"limits": {"cpu": "12"}}),))
    claims = sorted(generous.new_claims, key=lambda claim: claim.pods)

    verified = verifier.verify_results(replace(generous, new_claims=tuple(claims)))

    assert [claim.pods for claim in verified.results.new_claims] == [(f"default/p{n}",) for n in (0, 1, 3)]
    assert tuple(verified.results.pod_errors) == ("default/p2",)


def test_nodeclaim_of_an_unknown_nodepool_rejects_no_other_placement():
    """The defect names the NodeClaim, although it has no instance types to verify."""
    node, claim = a_node("x"), a_running_claim("x")
    verifier = a_verifier(a_pod("p0"), a_pod("p1"), nodes=(node,), claims=(claim,))
    (planned,) = solve(
        verifier.snapshot, verifier.catalogue, pods=verifier.pods[:1], without_nodes=frozenset({"node-x"})
    ).new_claims
    wrong = replace(planned, node_pool="gone")

    verified = verifier.verify_results(
        Results(new_claims=(wrong,), existing={"node-x": ("default/p1",)}, price=wrong.price)
    )

    assert verified.results.new_claims == ()
    assert verified.results.existing == {"node-x": ("default/p1",)}
    assert tuple(verified.results.pod_errors) == ("default/p0",)


def test_pod_on_two_nodes_loses_both_placements():
    """The verifier cannot decide which placement is right; other pods keep theirs."""
    names = ("x", "y", "z")
    cluster = {"nodes": tuple(a_node(n) for n in names), "claims": tuple(a_running_claim(n) for n in names)}
    verifier = a_verifier(a_pod("p0"), a_pod("p1"), **cluster)

    verified = verifier.verify_results(
        Results(existing={"node-x": ("default/p0",), "node-y": ("default/p0",), "node-z": ("default/p1",)})
    )

    assert verified.results.existing == {"node-z": ("default/p1",)}
    assert tuple(verified.results.pod_errors) == ("default/p0",)


def test_daemon_set_with_resource_claims_is_verified_by_the_options_of_the_pass():
    """It takes three of four CPUs; with IGNORE_DRA_REQUESTS its pods run on no planned node."""
    claims = [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]
    verifier = a_verifier(a_pod("p", cpu="2"), daemon_sets=(a_daemon_set("agent", cpu="3", resourceClaims=claims),))
    planned = planned_by_scheduler(verifier)

    counted = replace(verifier, options=Options(ignore_dra_requests=False)).verify_results(planned)

    assert verifier.verify_results(planned).defects == ()
    assert "cpu" in str(counted.defects[0])
    assert counted.results.new_claims == ()


def test_pod_missing_from_results_rejects_no_placement():
    """The missing pod is a defect, but every placement is valid."""
    verifier = a_verifier(a_pod("p0"), a_pod("p1"), nodes=(a_node("x"),), claims=(a_running_claim("x"),))

    verified = verifier.verify_results(Results(existing={"node-x": ("default/p1",)}))

    assert "missing from the plan" in verified.defects[0].sentence
    assert verified.results.existing == {"node-x": ("default/p1",)}


def test_bisection_keeps_valid_nodeclaims_of_sixty_in_one_zone():
    """Each round rejects one NodeClaim and rounds are limited, so the verifier bisects the rest."""
    even = even_pods(60)
    verifier = a_verifier(*even)
    claims = tuple(claim for claim in planned_by_scheduler(verifier).new_claims if claim.offering[1] == "a")
    crowded = tuple(replace(claims[i % len(claims)], pods=(pod.key,)) for i, pod in enumerate(even))

    verified = verifier.verify_results(Results(new_claims=crowded))

    kept = verified.results.new_claims
    assert kept
    assert verifier.verify_results(verified.results).defects == ()
    assert len(verified.results.pod_errors) == 60 - len(kept)


@pytest.mark.parametrize(("count", "shown", "more"), [(1, 1, ""), (5, 5, ""), (7, 5, "and 2 more")])
def test_defects_are_reported_and_do_not_fail_the_run(count, shown, more):
    """A failed run would block the message group, and with it all other pods; the first five defects say enough."""
    cluster, defects = Cluster(), tuple(Defect(f"node {n}: cpu is overbooked", (f"node {n}",)) for n in range(count))

    outcome = cluster.execute(defects_plan("pods", "refused", defects))

    assert (outcome.status, outcome.counts) == ("done", {"errors": 1})
    assert outcome.notes[0].count("cpu is overbooked") == shown
    assert ("more" in outcome.notes[0], more in outcome.notes[0]) == (bool(more), True)
    assert {o.name for o in cluster.record.observations} == {"journeyman_plan_defects_total", "journeyman_errors_total"}


def test_each_pod_error_names_the_defect_of_its_own_node():
    nodes, claims = (a_node("x"), a_node("y")), (a_running_claim("x"), a_running_claim("y"))
    pods = [a_pod(f"{name}{i}", cpu="3") for name in "xy" for i in range(2)]
    verifier = a_verifier(*pods, nodes=nodes, claims=claims)

    crowded = {f"node-{name}": (f"default/{name}0", f"default/{name}1") for name in "xy"}
    errors = verifier.verify_results(Results(existing=crowded)).results.pod_errors

    assert {key: "node node-x: cpu is exceeded" in e.message for key, e in errors.items()} == {
        "default/x0": True,
        "default/x1": True,
        "default/y0": False,
        "default/y1": False,
    }
