"""When a NodeClass is resolved again, and how it is finalized."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import EC2NODECLASS, NODECLAIM, NODEPOOL
from journeyman.core.plan import ResolveNodeClass, Step
from journeyman.errors import CloudProviderError, CloudUnavailableError
from journeyman.ports import RequeueDue
from journeyman.steps.context import PARTIAL
from journeyman.steps.node_classes import is_due, resolve_node_class
from journeyman.steps.provision import provision
from tests.helpers.builders import NOW, SMALL, a_node_class, condition, node_class_body, pool_body, stamp
from tests.helpers.fakes import Altered, InterceptingStore, failing
from tests.helpers.simulated_cluster import SimulatedCluster

PERIOD = timedelta(minutes=5)


def resolved_at(when, **changes):
    """Return a NodeClass that was last resolved at a time, given as a time or in words."""
    text = when if isinstance(when, str) else stamp(when)
    return a_node_class(raw=node_class_body(metadata={"annotations": {labels.RESOLVED_AT: text}}), **changes)


@pytest.mark.parametrize(
    ("ago", "due"),
    [
        (timedelta(0), False),
        (PERIOD - timedelta(seconds=1), False),
        (PERIOD, True),
        (-timedelta(seconds=30), False),
        (-timedelta(hours=1), True),
    ],
)
def test_a_ready_node_class_is_checked_once_in_a_period(ago, due):
    """A time far in the future comes from a wrong clock, so the NodeClass is due at once."""
    assert is_due(resolved_at(NOW - ago), NOW, PERIOD) is due


def test_a_node_class_without_a_ready_condition_is_due_at_once():
    """A user who corrects it does not have to wait; the step ignores a deleted one."""
    assert is_due(resolved_at(NOW, ready=False), NOW, PERIOD)
    assert is_due(resolved_at("yesterday"), NOW, PERIOD)
    assert not is_due(resolved_at("yesterday", deleting=True), NOW, PERIOD)


FINALIZER = "karpenter.k8s.aws/termination"


@pytest.fixture
def simulation():
    """Return a cluster with one node and a pod, without consolidation."""
    simulation = SimulatedCluster((SMALL,), pool_body(spec={"disruption": {"consolidateAfter": "Never"}}))
    simulation.deploy("web", 1, cpu="1.5")
    simulation.until(lambda: simulation.running() == 1, "a pod on a node")
    return simulation


def class_of(simulation):
    return next(iter(simulation.server.list(EC2NODECLASS).items), None)


def a_trigger(simulation):
    now = simulation.clock.now()
    return RequeueDue(id="t", cluster="demo", step=Step.PROVISION, reason="test", time=now)


def drop_finalizer(simulation):
    simulation.server.patch(EC2NODECLASS, "default", {"metadata": {"finalizers": []}})


def test_node_class_in_use_gets_its_finalizer_first(simulation):
    """The step adds Karpenter's finalizer again if a user removes it; a NodeClass without a NodePool gets none."""
    assert class_of(simulation)["metadata"]["finalizers"] == [FINALIZER]
    drop_finalizer(simulation)
    simulation.requeue(Step.PROVISION)
    simulation.run_for(minutes=1)
    assert class_of(simulation)["metadata"]["finalizers"] == [FINALIZER]

    simulation.cluster.add(node_class_body("spare"))
    simulation.requeue(Step.PROVISION)
    simulation.run_for(minutes=1)
    assert "finalizers" not in simulation.server.get(EC2NODECLASS, "spare")["metadata"]


def test_node_class_without_its_finalizer_is_not_resolved(simulation):
    """Another client writes it at that moment; without the finalizer its instance profile could leak."""
    drop_finalizer(simulation)
    simulation.server.patch(EC2NODECLASS, "default", {"spec": {"role": "another"}})
    before, run = simulation.cloud.resolved, simulation.cluster.run()
    written = {"metadata": {"labels": {"written": "meanwhile"}}}
    meanwhile = lambda: simulation.server.patch(EC2NODECLASS, "default", written)  # noqa: E731
    provision(replace(run, store=InterceptingStore(simulation.server, "patch", 1, meanwhile)), a_trigger(simulation))
    assert simulation.cloud.resolved == before
    assert not class_of(simulation)["metadata"]["finalizers"]

    simulation.run_for(minutes=1)
    assert simulation.cloud.resolved == before + 1
    assert class_of(simulation)["metadata"]["finalizers"] == [FINALIZER]


def test_a_deleted_node_class_waits_until_its_claims_are_gone(simulation):
    """An Event reports it every ten minutes; then the step deletes its cloud resources and removes the finalizer."""
    simulation.server.delete(EC2NODECLASS, "default")
    simulation.run_for(minutes=21)
    (claim,) = simulation.claims()
    waiting = f"Waiting on NodeClaim termination for {claim.metadata.name}"
    assert set(simulation.messages("WaitingOnNodeClaimTermination")) == {waiting}
    assert len(simulation.messages("WaitingOnNodeClaimTermination")) >= 2
    assert simulation.cloud.released == []

    simulation.server.delete(NODEPOOL, "default")
    simulation.server.delete(NODECLAIM, claim.metadata.name)
    simulation.until(lambda: class_of(simulation) is None, "the NodeClass to go", minutes=10)
    assert simulation.cloud.released == ["default"]
    assert simulation.cloud.list() == ()
    assert simulation.messages("Finalized")
    took = simulation.record.count_of("operator_ec2nodeclass_termination_duration_seconds")
    assert took >= timedelta(minutes=21).total_seconds()


def test_node_class_stays_until_its_cloud_resources_are_deleted(simulation):
    """The cloud refuses at first, so the finalizer stays until a retry succeeds."""
    simulation.server.delete(NODEPOOL, "default")
    simulation.server.delete(NODECLAIM, simulation.claims()[0].metadata.name)
    simulation.until(lambda: not simulation.claims(), "the claim to go", minutes=10)
    simulation.cloud.failures = [CloudProviderError("no right to iam:DeleteInstanceProfile")]
    simulation.server.delete(EC2NODECLASS, "default")
    simulation.until(lambda: not simulation.cloud.failures, "the first try", minutes=2)
    assert class_of(simulation) is not None

    simulation.until(lambda: class_of(simulation) is None, "the NodeClass to go", minutes=3)
    assert simulation.cloud.released == ["default"]


def without_answer(simulation):
    return Altered(simulation.cloud, resolve=failing(CloudUnavailableError("EC2 is down")))


def test_answer_that_comes_just_before_the_deadline_is_written(simulation):
    """Else a run that is as slow would ask again, and again; the step's other work is for the next run."""
    simulation.server.patch(EC2NODECLASS, "default", {"spec": {"role": "another"}})
    generation = class_of(simulation)["metadata"]["generation"]

    def resolve(node_class, now):
        simulation.clock.advance(simulation.cluster.seconds - 1)
        return simulation.cloud.resolve(node_class, now)

    run = simulation.cluster.run(cloud=Altered(simulation.cloud, resolve=resolve))
    outcome = provision(run, a_trigger(simulation))

    assert outcome.status == PARTIAL
    assert conditions_of(simulation) == [("Ready", "True", generation)]


def conditions_of(simulation):
    found = class_of(simulation)["status"]["conditions"]
    return [(c["type"], c["status"], c["observedGeneration"]) for c in found]


def test_node_class_that_the_cloud_does_not_answer_for_has_conditions_of_its_generation(simulation):
    """They are Unknown with the cloud's words until it answers; a pod's Event has these, too."""
    simulation.server.patch(EC2NODECLASS, "default", {"spec": {"tags": {"a": "b"}}})
    generation = class_of(simulation)["metadata"]["generation"]
    simulation.cluster.cloud = without_answer(simulation)
    simulation.deploy("more", 1, cpu="1.5")
    simulation.run_for(minutes=1)

    assert conditions_of(simulation) == [("Ready", "Unknown", generation)]
    [message] = [c["message"] for c in class_of(simulation)["status"]["conditions"]]
    assert "EC2 is down" in message
    [text] = {text for text in simulation.messages("FailedScheduling") if "EC2NodeClass" in text}
    assert "EC2 is down" in text

    simulation.cluster.cloud = simulation.cloud
    simulation.until(lambda: simulation.running() == 2, "both pods run", minutes=5)
    assert conditions_of(simulation) == [("Ready", "True", generation)]


def test_outage_leaves_what_was_found_for_this_generation(simulation):
    """It is still the best that is known, and nodes are launched with it."""
    before = class_of(simulation)["status"]
    resolve = ResolveNodeClass(name="default", raw=class_of(simulation), at=simulation.clock.now())
    state, writes, _ = resolve_node_class(without_answer(simulation), resolve)

    assert state.ready
    assert state.raw["status"] == before
    assert writes.actions == ()


def test_outage_after_a_change_writes_conditions_and_keeps_the_rest_of_the_status(simulation):
    """What was found for an earlier generation is outdated, but better than nothing."""
    found = [{"id": "subnet-1", "zone": "a"}]
    ready = condition("Ready", observedGeneration=1)
    raw = node_class_body(metadata={"generation": 2, "uid": "u"}, status={"subnets": found, "conditions": [ready]})
    resolve = ResolveNodeClass(name="default", raw=raw, at=simulation.clock.now())
    state, writes, _ = resolve_node_class(without_answer(simulation), resolve)

    assert (state.ready, state.raw["status"]["subnets"]) == (False, found)
    [patch] = writes.actions
    assert list(patch.patch["status"]) == ["conditions"]
