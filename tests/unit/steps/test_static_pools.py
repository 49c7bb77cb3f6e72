"""Static NodePools on a simulated cluster keep their replicas, whatever happens to their nodes."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from journeyman.core.api import labels
from journeyman.core.api.conditions import DISRUPTION_REASON
from journeyman.core.api.objects import NODECLAIM, NODEPOOL
from journeyman.core.plan import Step
from journeyman.errors import ForbiddenError
from journeyman.steps.provision import provision
from tests.helpers import builders
from tests.helpers.builders import SMALL, TYPES, condition, pool_body, stamp
from tests.helpers.fakes import Altered, InterceptingStore
from tests.helpers.simulated_cluster import SimulatedCluster


def a_simulated_cluster(replicas: int, *, gate: bool = True, pool=None, types=(SMALL,), **spec) -> SimulatedCluster:
    """Return a cluster with a static NodePool of so many nodes and aggressive consolidation."""
    quick = {"consolidateAfter": "0s", "budgets": [{"nodes": "100%"}]}
    simulation = SimulatedCluster(types, pool or pool_body(spec={"replicas": replicas, "disruption": quick, **spec}))
    gates = msgspec.structs.replace(simulation.cluster.settings.feature_gates, static_capacity=gate)
    simulation.cluster.settings = msgspec.structs.replace(simulation.cluster.settings, feature_gates=gates)
    return simulation


def scale(simulation, replicas) -> None:
    simulation.server.patch(NODEPOOL, "default", {"spec": {"replicas": replicas}})


def settle(simulation, nodes) -> None:
    """Run until there are so many nodes and NodeClaims, and check that the number stays for ten minutes."""
    simulation.until(lambda: len(simulation.settled()) == nodes == len(simulation.claims()), f"{nodes} nodes")
    launched = len(simulation.cloud.launches)
    simulation.run_for(minutes=10)
    assert len(simulation.settled()) == nodes == len(simulation.claims()) == len(simulation.nodes())
    assert len(simulation.cloud.launches) == launched


def test_static_nodepool_always_has_its_replicas():
    """It scales up, down and to zero without pods; consolidation deletes no empty node, and the status counts them.

    Pods are put on its nodes, also if they were just launched, and open no others; nodes that die are replaced, whether or
    not the old NodeClaim's name is free again.
    """
    simulation = a_simulated_cluster(3)
    simulation.deploy("web", 3, cpu="1500m")
    simulation.until(lambda: simulation.running() == 3, "three pods")
    settle(simulation, 3)
    assert simulation.server.list(NODEPOOL).items[0]["status"]["nodes"] == 3
    assert simulation.record.count_of("karpenter_nodeclaims_created_total") == 3

    simulation.scale("web", 0)
    slots = {c.metadata.annotations[labels.REPLICA_INDEX] for c in simulation.claims()}
    simulation.server.delete(NODECLAIM, simulation.claims()[0].metadata.name)
    simulation.requeue(Step.TERMINATE)
    settle(simulation, 3)
    assert {c.metadata.annotations[labels.REPLICA_INDEX] for c in simulation.claims()} == slots == {"0", "1", "2"}

    for replicas in (5, 2, 0):
        scale(simulation, replicas)
        settle(simulation, replicas)

    assert simulation.disruptions() == []
    assert simulation.cloud.price == 0
    assert simulation.record.count_of("karpenter_nodeclaims_created_total") == 6
    assert simulation.record.count_of("karpenter_nodeclaims_disrupted_total") == 5


def test_static_nodepools_get_no_nodes_without_the_feature_gate():
    """It is Karpenter's gate with Karpenter's default. One Event says how to enable it, whatever else happens."""
    simulation = a_simulated_cluster(2, gate=False)
    simulation.run_for(minutes=5)
    assert simulation.claims() == ()

    [event] = [event for event in simulation.record.events if event.reason == "StaticCapacityDisabled"]
    assert (event.ref.resource.kind, event.ref.name) == ("NodePool", "default")
    assert "FEATURE_GATES=StaticCapacity=true" in event.message


@pytest.mark.parametrize("limit", ["3", "2"])
def test_a_static_node_that_expires_is_replaced_before_it_goes_if_the_limit_allows(limit):
    """One for one, and it takes over the replica index. If limits.nodes allows none, it goes first, at its time."""
    simulation = a_simulated_cluster(2, limits={"nodes": limit}, template={"spec": {"expireAfter": "1h"}})
    simulation.until(lambda: len(simulation.settled()) == 2, "2 nodes")
    first = {c.metadata.uid for c in simulation.claims()}
    counts = []
    simulation.server.on_write(lambda write: counts.append((simulation.clock.now(), len(simulation.settled()))))
    since = simulation.clock.now() + timedelta(minutes=2)
    simulation.run_for(minutes=63)

    assert not first & {c.metadata.uid for c in simulation.claims()}
    assert len(simulation.settled()) == 2
    assert min(number for at, number in counts if at > since) == (2 if limit == "3" else 0)
    assert len(simulation.cloud.launches) == 4
    assert {c.metadata.annotations[labels.REPLICA_INDEX] for c in simulation.claims()} == {"0", "1"}


def test_drift_of_a_nodepool_at_its_limit_says_which_limit_would_do():
    """A replacement comes before its node goes; fewer replicas would not help, as the limit would follow them."""
    simulation = a_simulated_cluster(2, limits={"nodes": "2"})
    settle(simulation, 2)
    first, _ = simulation.claims()
    simulation.cloud.drifted[first.metadata.name] = "AMIDrift"
    simulation.run_for(minutes=20)
    [text] = {
        e.message for e in simulation.record.events if e.reason == "DisruptionBlocked" and "limits.nodes" in e.message
    }
    assert "Raise limits.nodes of NodePool default to 3 at least" in text
    stored = next(c for c in simulation.claims() if c.metadata.uid == first.metadata.uid)
    [disruptable] = [c for c in stored.status.conditions if c.type == "Disruptable"]
    assert (disruptable.reason, "replicas" in disruptable.message) == ("NodeLimit", False)

    simulation.server.patch(NODEPOOL, "default", {"spec": {"limits": {"nodes": "3"}}})
    simulation.until(
        lambda: first.metadata.uid not in {c.metadata.uid for c in simulation.claims()}, "the drifted node is replaced"
    )
    settle(simulation, 2)


def test_claims_are_made_of_the_template_alone():
    """They have its labels, annotations, taints and requirements, but no chosen instance types and no pods' requests."""
    template = {
        "metadata": {"labels": {"team": "a"}, "annotations": {"note": "mine"}},
        "spec": {
            "requirements": [{"key": labels.CAPACITY_TYPE, "operator": "In", "values": ["spot", "on-demand"]}],
            "taints": [{"key": "dedicated", "value": "a", "effect": "NoSchedule"}],
        },
    }
    simulation = a_simulated_cluster(1, template=template)
    settle(simulation, 1)

    [claim] = simulation.claims()
    assert claim.metadata.labels["team"] == "a"
    assert claim.metadata.annotations["note"] == "mine"
    assert [t.key for t in claim.spec.taints] == ["dedicated"]
    wanted = {r.key: r.values for r in claim.spec.requirements}
    assert wanted[labels.CAPACITY_TYPE] == ("on-demand", "spot")
    assert labels.INSTANCE_TYPE not in wanted
    assert labels.INITIALIZED not in wanted
    assert not claim.spec.resources.requests


@pytest.mark.parametrize(("verb", "replicas"), [("create", 3), ("delete", 1)])
def test_refused_write_fails_the_run_and_changes_nothing(verb, replicas):
    """The log has the error; once it is allowed, the replicas are reached."""
    simulation = a_simulated_cluster(2)
    settle(simulation, 2)
    scale(simulation, replicas)
    cluster = simulation.cluster

    def refused(resource, *args, **kwargs):
        if resource.kind == "NodeClaim":
            raise ForbiddenError(f"cannot {verb} nodeclaims", status=403, reason="Forbidden")
        return getattr(cluster.server, verb)(resource, *args, **kwargs)

    refusing = Altered(cluster.server, **{verb: refused})
    provision(cluster.run(store=refusing), simulation.functions.trigger(Step.PROVISION))
    assert any(level == "error" and "nodeclaims" in str(fields) + text for level, text, fields in cluster.record.lines)
    assert len(simulation.claims()) == 2
    simulation.requeue(Step.PROVISION)
    settle(simulation, replicas)


def test_terminating_nodes_count_against_the_limit_until_gone():
    """Four of five replicas fit the limit; after a deletion the next one is launched once the limit permits it.

    A limit that stays exceeded causes no requeue: only its change helps, and that requeues the step.
    """
    simulation = a_simulated_cluster(5, limits={"nodes": "4"})
    settle(simulation, 4)
    assert "NodeLimitReached" in simulation.record.reasons
    runs = len(simulation.functions.outcomes)
    simulation.run_for(minutes=10)
    assert not [o for _, o in simulation.functions.outcomes[runs:] if o.step is Step.PROVISION]
    most = 0

    def is_replaced() -> bool:
        nonlocal most
        most = max(most, len(simulation.claims()))
        return gone.uid not in {c.metadata.uid for c in simulation.claims()} and len(simulation.settled()) == 4

    gone = simulation.claims()[0].metadata
    simulation.server.delete(NODECLAIM, gone.name)
    simulation.requeue(Step.TERMINATE)
    simulation.until(is_replaced, "another node")
    assert most == 4

    simulation.server.patch(NODEPOOL, "default", {"spec": {"limits": {"nodes": "5"}}})
    settle(simulation, 5)


def test_overlapping_runs_create_the_same_nodeclaims():
    """The second starts after the first created one of three, and creates the others; the first finds them created."""
    simulation = a_simulated_cluster(3)
    cluster = simulation.cluster
    interfering = InterceptingStore(
        simulation.server, "create", 2, lambda: provision(cluster.run(), simulation.functions.trigger(Step.PROVISION))
    )
    provision(cluster.run(store=interfering), simulation.functions.trigger(Step.PROVISION))

    assert len(simulation.claims()) == 3
    settle(simulation, 3)
    assert len(simulation.cloud.list()) == 3


def under_way(claim, replacement: str) -> dict:
    candidate = {"nodeClaim": claim.metadata.name, "nodeClaimUID": claim.metadata.uid, "nodePool": "default"}
    spec = {
        "reason": "Drifted",
        "decision": "replace",
        "method": "static-drift",
        "candidates": [candidate],
        "replacements": [{"name": replacement}],
        "createdAt": stamp(claim.metadata.creation_timestamp + timedelta(minutes=11)),
    }
    status = {"phase": "Replacing"}
    kind = {"apiVersion": "journeyman.dev/v1alpha1", "kind": "NodeDisruption"}
    return {**kind, "metadata": {"name": "drifted-1"}, "spec": spec, "status": status}


def test_a_replacement_under_way_changes_no_other_node():
    """The extra node during the replacement is not deleted, and no further one is launched after it."""
    simulation = a_simulated_cluster(2, types=TYPES)
    settle(simulation, 2)
    old = simulation.claims()[0]
    marked = [*(msgspec.to_builtins(c) for c in old.status.conditions), condition(DISRUPTION_REASON)]
    simulation.cluster.add(under_way(old, "replacement"), builders.claim_body("replacement"))
    simulation.server.patch(NODECLAIM, old.metadata.name, {"status": {"conditions": marked}}, subresource="status")
    seen = set()

    def is_done() -> bool:
        seen.add(len([c for c in simulation.claims() if c.metadata.deletion_timestamp is None]))
        return len(simulation.claims()) == 2 and "replacement" in simulation.settled()

    simulation.until(is_done, "the replacement alone")
    settle(simulation, 2)

    assert simulation.disruptions()[0][2] == "Succeeded"
    assert old.metadata.uid not in {c.metadata.uid for c in simulation.claims()}
    assert seen == {2, 3}
    assert simulation.record.count_of("karpenter_nodeclaims_created_total") == 2


def test_an_unavailable_offering_is_tried_again_after_its_expiry():
    """After one refused launch no NodeClaim is created until the offering may be available again."""
    simulation = a_simulated_cluster(1)
    simulation.cloud.out_of_stock = {(SMALL.name, "a", labels.ON_DEMAND)}
    simulation.run_for(minutes=2)
    assert simulation.claims() == ()
    assert "InsufficientCapacityError" in simulation.record.reasons
    assert len(simulation.cloud.launches) == 1
