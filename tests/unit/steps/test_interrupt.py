"""The interrupt step handles each interruption once and completely."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from journeyman.core.api import labels
from journeyman.core.api.objects import NODE, NODECLAIM, NODEPOOL, OFFERING_STATE, POD, OfferingKey, Pod
from journeyman.core.lifecycle.interruption import InterruptionKind, handle_interruption
from journeyman.core.plan import DeleteObject, MarkOfferingUnavailable, PatchObject, Step
from journeyman.core.state import BuildFailure
from journeyman.errors import (
    CloudProviderError,
    ForbiddenError,
    JourneymanError,
    KubeUnavailableError,
    MalformedEventError,
)
from journeyman.ports import AlarmChanged, Instance, Interruption, RequeueDue
from journeyman.steps.interrupt import interrupt
from tests.helpers.builders import (
    NOW,
    a_claim,
    a_snapshot,
    ago,
    claim_body,
    condition,
    node_class_body,
    pool_body,
    stamp,
)
from tests.helpers.fakes import Altered, Cluster, InterceptingStore, failing
from tests.helpers.fleets import a_fleet, a_member, bodies, types
from tests.helpers.simulated_cluster import SimulatedCluster

THREE_MINUTES = timedelta(minutes=3)


def a_notice(kind: str = "spot_interrupted", *instances: str, at: datetime = NOW) -> Interruption:
    return Interruption(
        id="e", cluster="demo", reason="test", time=at, kind=InterruptionKind(kind), instance_ids=instances
    )


def a_cluster(*members, **pool) -> Cluster:
    """Return a cluster with these nodes and fields of their NodePool."""
    cluster = Cluster()
    cluster.add(pool_body(**pool), node_class_body(), *bodies(*members))
    return cluster


def decide(snapshot, kind: InterruptionKind, *instances: str, at=NOW):
    return handle_interruption(
        snapshot, kind=kind, instance_ids=instances, event_time=at, unavailable_for=THREE_MINUTES
    )


def the_claim(cluster: Cluster, name: str = "n"):
    return next(c for c in cluster.server.list(NODECLAIM).items if c.metadata.name == name)


def test_a_spot_warning_deletes_the_claim_and_requeues_provision():
    """One run cordons the node, deletes its NodeClaim, marks its offering unavailable, and requeues both other steps.

    An interruption with two minutes' notice waits for no Lease. SQS delivers at least once: a repetition writes nothing,
    requeues nothing and extends no back-off.
    """
    cluster = a_cluster(a_member("n", size="l", capacity_type=labels.SPOT, zone="a"), a_member("other"))
    cluster.fence.held_by_other = True

    outcome = interrupt(cluster.run(), a_notice("spot_interrupted", "i-n"))

    assert the_claim(cluster).metadata.deletion_timestamp is not None
    assert the_claim(cluster, "other").metadata.deletion_timestamp is None
    node = cluster.server.get(NODE, "node-n")
    assert [(t.key, t.effect) for t in node.spec.taints] == [(labels.DISRUPTED_TAINT, "NoSchedule")]
    (state,) = cluster.server.list(OFFERING_STATE).items
    (avoided,) = state["status"]["unavailable"]
    assert (avoided["instanceType"], avoided["zone"], avoided["capacityType"]) == ("l", "a", "spot")
    assert {(m.step, m.at) for m in cluster.queue.sent} == {(Step.PROVISION, None), (Step.TERMINATE, None)}
    assert {(e.reason, e.type) for e in cluster.record.events} == {
        ("SpotInterrupted", "Warning"),
        ("TerminatingOnInterruption", "Warning"),
    }
    assert (outcome.step, outcome.status) == (Step.INTERRUPT, "done")

    before = cluster.server.resource_version
    cluster.queue.sent.clear()
    cluster.clock.advance(240)
    interrupt(cluster.run(), a_notice("spot_interrupted", "i-n"))
    assert (cluster.server.resource_version, cluster.queue.sent) == (before, [])


def test_interruption_of_a_foreign_instance_is_acknowledged():
    """Every cluster gets every event of the account, so the cloud is not asked while every claim has its instance."""
    cluster = a_cluster(a_member("n"))
    before = cluster.server.resource_version
    deaf = Altered(cluster.cloud, list=failing(AssertionError("list() is not needed")))

    outcome = interrupt(cluster.run(cloud=deaf), a_notice("instance_terminated", "i-foreign"))

    assert outcome.status == "done"
    assert "i-foreign is not ours" in outcome.notes[0]
    assert cluster.server.resource_version == before


@pytest.mark.parametrize(
    ("method", "error"),
    [
        ("delete", ForbiddenError("no right to delete nodeclaims", status=403, reason="Forbidden")),
        ("list", KubeUnavailableError("the API server does not answer")),
    ],
)
def test_partly_handled_interruption_is_delivered_again(method, error):
    """EC2 sends it once. If nothing could be read, a requeue by each delivery would run terminate ever more often in an outage."""
    cluster = a_cluster(a_member("n"))
    store = Altered(cluster.server, **{method: failing(error)})
    with pytest.raises(JourneymanError, match="must be delivered again") as raised:
        interrupt(cluster.run(store=store), a_notice("instance_stopped", "i-n"))
    assert error.message in str(raised.value)
    assert method == "delete" or cluster.queue.sent == []

    interrupt(cluster.run(), a_notice("instance_stopped", "i-n"))
    assert the_claim(cluster).metadata.deletion_timestamp is not None


def test_conflict_on_the_cordon_does_not_stop_the_deletion():
    """The kubelet wrote first, so the cordon fails with a conflict; the NodeClaim is deleted, and the drain cordons."""
    cluster = a_cluster(a_member("n"))
    label = {"metadata": {"labels": {"touched": "true"}}}
    store = InterceptingStore(cluster.server, "delete", 1, lambda: cluster.server.patch(NODE, "node-n", label))

    outcome = interrupt(cluster.run(store=store), a_notice("instance_terminated", "i-n"))

    assert the_claim(cluster).metadata.deletion_timestamp is not None
    assert outcome.counts["conflicts"] == 1
    assert Step.INTERRUPT not in {m.step for m in cluster.queue.sent}


def test_a_trigger_that_is_no_interruption_is_refused():
    other = RequeueDue(id="e", cluster="demo", step=Step.INTERRUPT, reason="test", time=NOW)
    with pytest.raises(MalformedEventError, match="not an interruption"):
        interrupt(a_cluster().run(), other)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (InterruptionKind.INSTANCE_STOPPED, "InstanceStopping"),
        (InterruptionKind.INSTANCE_TERMINATED, "InstanceTerminating"),
        (InterruptionKind.SCHEDULED_CHANGE, "InstanceUnhealthy"),
        (InterruptionKind.CAPACITY_RESERVATION_INTERRUPTED, "CapacityReservationInstanceInterrupted"),
    ],
)
def test_other_events_delete_the_claim_and_mark_no_offering(kind, reason):
    """Only a Spot interruption marks the offering unavailable; the deletion has the UID as a precondition."""
    plan = decide(a_fleet(a_member("n", capacity_type=labels.SPOT)), kind, "i-n")

    assert [type(a) for a in plan.actions][:2] == [DeleteObject, PatchObject]
    assert plan.actions[0].ref.uid == "uid-n"
    assert {e.reason for e in plan.events} == {reason}


@pytest.mark.parametrize(
    ("kind", "joined", "counts"),
    [
        ("instance_terminated", None, True),
        ("instance_terminated", timedelta(seconds=30), True),
        ("instance_terminated", timedelta(hours=2), False),
        ("scheduled_change", None, True),
        ("scheduled_change", timedelta(seconds=30), False),
        ("spot_interrupted", None, False),
    ],
)
def test_end_of_an_instance_counts_as_a_failed_registration_only_if_it_is_early(kind, joined, counts):
    """Some clouds announce it as a system event, before the node joins; an interruption is not the NodePool's fault."""
    joined_since = () if joined is None else ("Registered", "Initialized")
    cluster = a_joining_cluster(*(condition(type_, since=NOW - joined) for type_ in joined_since))

    interrupt(cluster.run(), a_notice(kind, "i-n"))

    health = cluster.server.get(NODEPOOL, "default").get("status", {}).get("conditions", [])
    assert bool(health or faults(cluster)) is counts
    assert the_claim(cluster).metadata.deletion_timestamp is not None


def a_joining_cluster(*conditions) -> Cluster:
    """Return a cluster with a launched NodeClaim that has these conditions, and another one whose node will join later."""
    cluster = a_cluster()
    uid = cluster.server.get(NODEPOOL, "default")["metadata"]["uid"]
    owner = {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "name": "default", "uid": uid}
    owned = {"metadata": {"ownerReferences": [owner]}}
    launched = condition("Launched", since=ago(hours=2))
    cluster.add(*bodies(a_member("n", claim={**owned, "status": {"conditions": [launched, *conditions]}})))
    cluster.add(claim_body("joins-later", provider_id="aws:///a/i-joins-later", **owned))
    return cluster


def faults(cluster: Cluster) -> list[str]:
    states = cluster.server.list(OFFERING_STATE).items
    return [failure["reason"] for state in states for failure in state["status"].get("launchFailures", [])]


@pytest.mark.parametrize(
    ("kind", "answer", "asked", "fault"),
    [
        ("instance_terminated", "KeyDisabled", [{"aws:///a/i-n"}], ["KeyDisabled"]),
        ("instance_terminated", None, [{"aws:///a/i-n"}], ["RegistrationFailed"]),
        ("instance_terminated", CloudProviderError("not allowed"), [{"aws:///a/i-n"}], ["RegistrationFailed"]),
        ("spot_interrupted", None, [], []),
    ],
)
def test_cloud_says_why_an_instance_ended_before_its_node_joined(kind, answer, asked, fault):
    """Without its answer the NodePool is at fault, and a warning says so; of other instances it is not asked."""
    cluster, questions = a_joining_cluster(), []

    def end_reasons(provider_ids):
        questions.append(set(provider_ids))
        if isinstance(answer, Exception):
            raise answer
        failure = BuildFailure(reason=answer, message="the key is disabled", is_capacity=False) if answer else None
        return dict.fromkeys(provider_ids, failure) if failure else {}

    interrupt(cluster.run(cloud=Altered(cluster.cloud, end_reasons=end_reasons)), a_notice(kind, "i-n"))

    assert (questions, faults(cluster)) == (asked, fault)
    warnings = [text for level, text, _ in cluster.record.lines if level == "warning" and "why instances ended" in text]
    assert len(warnings) == isinstance(answer, Exception)


def test_interruptible_reservation_is_not_used_again_at_once():
    """EC2 gives its capacity back to the owner; Karpenter counts the reservation as used up."""
    cluster = a_cluster(a_member("n", capacity_type=labels.RESERVED))
    cluster.server.patch(NODECLAIM, "n", {"metadata": {"labels": {labels.RESERVATION_ID: "cr-1"}}})
    interrupt(cluster.run(), a_notice("capacity_reservation_interrupted", "i-n"))

    (state,) = cluster.server.list(OFFERING_STATE).items
    (avoided,) = state["status"]["unavailable"]
    assert (avoided["instanceType"], avoided["zone"], avoided["capacityType"]) == ("m", "a", "reserved")
    assert (avoided["reservationID"], avoided["reason"]) == ("cr-1", "CapacityReservationInterruption")
    assert the_claim(cluster).metadata.deletion_timestamp is not None


REPLACE = {"annotations": {labels.REBALANCE: "replace"}}


@pytest.mark.parametrize("value", ["replace", "yes"])
def test_rebalance_recommendation_is_annotated_once(value):
    """The NodeClaim gets the event's time for the consolidate step; repeated and later ones change nothing.

    A NodePool's annotation with another value than "replace" is ignored.
    """
    cluster = a_cluster(a_member("n", capacity_type=labels.SPOT), metadata={"annotations": {labels.REBALANCE: value}})
    before = cluster.server.resource_version

    interrupt(cluster.run(), a_notice("rebalance_recommendation", "i-n"))
    noted, after = the_claim(cluster), cluster.server.resource_version
    sent = [(m.step, m.at) for m in cluster.queue.sent]
    interrupt(cluster.run(), a_notice("rebalance_recommendation", "i-n", at=NOW + timedelta(minutes=1)))

    valid = value == "replace"
    assert noted.metadata.annotations.get(labels.REBALANCE_RECOMMENDED_AT) == (
        "2026-03-02T21:00:00Z" if valid else None
    )
    assert noted.metadata.deletion_timestamp is None
    assert sent == [(Step.CONSOLIDATE, None)] * valid
    assert the_claim(cluster) == noted
    assert len(cluster.queue.sent) == valid
    assert (after == before) is not valid


@pytest.mark.parametrize("kind", ["rebalance_recommendation", "spot_interrupted", "instance_terminated"])
def test_later_events_of_a_terminating_instance_change_nothing(kind):
    """An instance's events arrive in any order: recommendation after warning, warning after termination."""
    cluster = a_cluster(a_member("n", capacity_type=labels.SPOT, deleting=True), metadata=REPLACE)
    before = cluster.server.resource_version

    outcome = interrupt(cluster.run(), a_notice(kind, "i-n"))

    assert "already being deleted" in outcome.notes[0]
    assert (cluster.server.resource_version, cluster.queue.sent, cluster.record.events) == (before, [], [])


@pytest.mark.parametrize("is_ours", [True, False])
def test_interruption_finds_a_claim_without_a_provider_id(is_ours):
    """The launching run crashed or has not written the status yet; the instance's tags have the NodeClaim's name and UID."""
    cluster = a_cluster()
    cluster.add(claim_body("young"))
    uid = the_claim(cluster, "young").metadata.uid if is_ours else "that of an earlier NodeClaim"
    cluster.cloud.run_orphan("aws:///a/i-9", NOW, claim="young", claim_uid=uid)

    outcome = interrupt(cluster.run(), a_notice("instance_terminated", "i-9"))

    assert bool(the_claim(cluster, "young").metadata.deletion_timestamp) is is_ours
    assert {m.step for m in cluster.queue.sent} == ({Step.PROVISION, Step.TERMINATE} if is_ours else set())
    assert is_ours or "i-9 is not ours" in outcome.notes[0]


def test_an_instance_without_a_provider_id_marks_its_offering():
    """The cloud returns the offering, which the NodeClaim's labels do not have yet."""
    launched = Instance(
        provider_id="aws:///b/i-9", instance_type="l", zone="b", capacity_type=labels.SPOT, state="running",
        launched_at=NOW, tags={labels.NODECLAIM_UID_TAG: a_claim("young").metadata.uid},
    )  # fmt: skip
    plan = handle_interruption(
        a_snapshot(claims=(a_claim("young"),)), kind=InterruptionKind.SPOT_INTERRUPTED, instance_ids=["i-9"],
        event_time=NOW, unavailable_for=THREE_MINUTES, launched=[launched],
    )  # fmt: skip

    (avoided,) = (a for a in plan.actions if isinstance(a, MarkOfferingUnavailable))
    assert avoided.offerings == (OfferingKey("l", "b", labels.SPOT),)


def test_rebalance_recommendation_only_emits_an_event():
    """That is the default."""
    plan = decide(a_fleet(a_member("n")), InterruptionKind.REBALANCE_RECOMMENDATION, "i-n")

    assert plan.chains == ()
    assert {(e.reason, e.type, e.ref.resource.kind) for e in plan.events} == {
        ("SpotRebalanceRecommendation", "Normal", "NodeClaim"),
        ("SpotRebalanceRecommendation", "Normal", "Node"),
    }


def test_an_offering_is_avoided_from_the_time_of_the_event():
    """An event that is two minutes late marks the offering for one more minute; after three minutes, not at all."""
    fleet = a_fleet(a_member("n", capacity_type=labels.SPOT))

    late = decide(fleet, InterruptionKind.SPOT_INTERRUPTED, "i-n", at=ago(minutes=2))
    later = decide(fleet, InterruptionKind.SPOT_INTERRUPTED, "i-n", at=ago(minutes=4))

    remembered = [a for a in late.actions if isinstance(a, MarkOfferingUnavailable)]
    assert [(a.soonest_end, a.longest) for a in remembered] == [
        (NOW + timedelta(minutes=1), a.first) for a in remembered
    ]
    assert len(remembered) == 1
    assert not any(isinstance(a, MarkOfferingUnavailable) for a in later.actions)
    assert any(isinstance(a, DeleteObject) for a in later.actions)


@pytest.mark.parametrize("provider_id", ["aws:///a/i-0abc", "cn-hangzhou.i-0abc", "i-0abc"])
def test_an_instance_is_found_by_the_end_of_its_provider_id(provider_id):
    """The prefix depends on the cloud; a part of an instance id is no match."""
    member = a_member("n", claim={"status": {"providerID": provider_id}}, node={"spec": {"providerID": provider_id}})

    plan = decide(a_fleet(member), InterruptionKind.INSTANCE_TERMINATED, "i-0abc", "0abc", "i-0ab")

    assert sum(isinstance(a, DeleteObject) for a in plan.actions) == 1
    assert len(plan.notes) == 3


def launching_runs(simulation: SimulatedCluster, moment: datetime) -> list[tuple[int, timedelta]]:
    """Return the runs since a time that launched instances, and how long after that time."""
    later = [(at, outcome) for at, outcome in simulation.functions.outcomes if at >= moment]
    return [(n, at - moment) for n, (at, outcome) in enumerate(later, start=1) if outcome.counts.get("launched")]


@pytest.mark.parametrize("kind", ["spot_interrupted", "capacity_reservation_interrupted", "scheduled_change"])
@pytest.mark.parametrize(("nodes", "hit"), [(1, 1), (6, 4)])
def test_interrupted_pods_run_on_replacements_within_two_minutes(kind, nodes, hit, record_property):
    """One run after the event launches all replacements without waiting for a drain; no further run is needed.

    Those of Spot interruptions have another offering, although the interrupted one is the cheapest.
    """
    spot = [
        {"key": labels.CAPACITY_TYPE, "operator": "In", "values": [labels.SPOT]},
        {"key": labels.INSTANCE_TYPE, "operator": "In", "values": ["s", "m"]},
    ]
    simulation = SimulatedCluster(types(), pool_body(spec={"template": {"spec": {"requirements": spot}}}))
    simulation.deploy("inflate", nodes, cpu="1500m", memory="6Gi")
    simulation.until(lambda: simulation.running() == nodes, "the pods")
    simulation.run_for(minutes=1)
    taken_back = sorted(i.provider_id for i in simulation.cloud.list())[:hit]
    offerings = {(i.instance_type, i.zone) for i in simulation.cloud.list() if i.provider_id in taken_back}
    pods_hit = {p.metadata.uid for p in simulation.server.list(POD).items if on(simulation, p) in taken_back}
    warned = simulation.clock.now()

    for provider_id in (*taken_back, taken_back[0]):
        interrupt(simulation.cluster.run(), a_notice(kind, provider_id.rsplit("/", 1)[-1], at=warned))
    simulation.until(
        lambda: (
            simulation.running() == nodes and not pods_hit & {p.metadata.uid for p in simulation.server.list(POD).items}
        ),
        "the pods on other nodes",
        minutes=2,
    )

    moved = simulation.clock.now() - warned
    simulation.run_for(minutes=5)
    launches = launching_runs(simulation, warned)
    record_property("steps from event to launch", launches[0][0])
    record_property("seconds until all pods had moved", moved.total_seconds())
    assert launches == [(1, timedelta(0))]
    assert moved <= timedelta(minutes=2)
    assert not set(taken_back) & {i.provider_id for i in simulation.cloud.list()}
    replacements = [i for i in simulation.cloud.list() if i.launched_at >= warned]
    assert replacements
    assert kind != "spot_interrupted" or not offerings & {(i.instance_type, i.zone) for i in replacements}
    assert simulation.running() == nodes


def on(simulation: SimulatedCluster, pod: Pod) -> str:
    return simulation.server.get(NODE, pod.spec.node_name).spec.provider_id


@pytest.mark.parametrize("name", ["a-copy", "z-copy"])
def test_only_the_nodeclaim_that_owns_the_instance_is_deleted(name):
    """A user may have copied a NodeClaim, with its provider id."""
    owner = a_claim("n", true=("Launched",), provider_id="aws:///a/i-n", age=timedelta(hours=1))
    copied = a_claim(name, true=("Launched",), provider_id="aws:///a/i-n")

    plan = decide(a_snapshot(claims=(owner, copied)), InterruptionKind.INSTANCE_TERMINATED, "i-n")

    assert [a.ref.name for a in plan.actions if isinstance(a, DeleteObject)] == ["n"]


# -- alarms -----------------------------------------------------------------------------------------------------------


def an_alarm(state: str, at: datetime = NOW) -> AlarmChanged:
    return AlarmChanged(
        id="e", cluster="demo", reason="alarm", time=at, alarm="shop-errors", is_firing=state == "ALARM"
    )


def test_alarm_pauses_disruption_of_the_cluster_until_it_is_over():
    """Consolidate starts at once, so that Events and metrics follow the alarm."""
    cluster = a_cluster(a_member("n"))
    interrupt(cluster.run(), an_alarm("ALARM", ago(minutes=2)))
    assert annotations_of_the_pool(cluster)[labels.ALARMS] == f'{{"shop-errors": "ALARM {stamp(ago(minutes=2))}"}}'

    interrupt(cluster.run(), an_alarm("OK", ago(minutes=1)))
    assert annotations_of_the_pool(cluster)[labels.ALARMS] == f'{{"shop-errors": "OK {stamp(ago(minutes=1))}"}}'
    assert {message.step for message in cluster.queue.sent} == {Step.CONSOLIDATE}

    before = cluster.server.resource_version
    interrupt(cluster.run(), an_alarm("ALARM", ago(minutes=2)))
    assert cluster.server.resource_version == before, "a late message changes nothing"


def test_alarm_is_delivered_again_until_every_nodepool_has_it():
    """CloudWatch sends it once."""
    cluster = a_cluster()

    def edit() -> None:
        cluster.server.patch(NODEPOOL, "default", {"spec": {"weight": 7}})

    with pytest.raises(JourneymanError, match="must be delivered again"):
        interrupt(cluster.run(store=InterceptingStore(cluster.server, "patch", 1, edit)), an_alarm("ALARM"))
    assert labels.ALARMS not in annotations_of_the_pool(cluster)

    interrupt(cluster.run(), an_alarm("ALARM"))
    assert labels.ALARMS in annotations_of_the_pool(cluster)


def annotations_of_the_pool(cluster: Cluster):
    return cluster.server.get(NODEPOOL, "default")["metadata"].get("annotations", {})
