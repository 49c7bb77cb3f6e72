"""Events have Karpenter's reason, object, type, message and dedupe window.

The table restates karpenter v1.14.1 pkg/events, pkg/controllers/*/events.go and karpenter-provider-aws v1.14.1
pkg/controllers/{interruption/events,nodeclass/events.go}: alerts match on reason, type and the beginning of messages.
Covers: the Events of simulation clusters (provisioned, consolidated, drained, forced, interrupted, repaired, refused), and
every reason in the source.
"""

import ast
import re
from datetime import timedelta
from pathlib import Path

import pytest

import journeyman
from journeyman.core.api.event_reasons import DEFAULT_DEDUPE_WINDOW, EVENT_REASONS
from journeyman.core.api.objects import EC2NODECLASS, NODE, NODECLAIM, NODEPOOL, PDB
from journeyman.core.lifecycle.interruption import EVENTS_BY_KIND
from journeyman.core.plan import Event, ObjectRef, Step
from journeyman.observe.kube_events import dedupe_window
from tests.helpers.builders import SMALL, condition, pool_body
from tests.helpers.simulated_cluster import SimulatedCluster

SOURCE = Path(journeyman.__file__).parent
BOTH = {"Node", "NodeClaim"}
KARPENTER = {  # reason: (type, kinds, beginning of the message, minutes, whether the key has more values)
    "Nominated": ("Normal", {"Pod"}, r"Pod should schedule on: (nodeclaim/|node/)", 2, False),
    "FailedScheduling": ("Warning", {"Pod"}, r"Failed to schedule pod, ", 5, False),
    "NoCompatibleInstanceTypes": (
        "Warning", {"NodePool"}, r"NodePool requirements filtered out all compatible available instance types", 1, False,
    ),
    "InvalidDoNotDisruptAnnotation": (
        "Warning", {"Pod"}, r"Invalid karpenter.sh/do-not-disrupt annotation: .*, ignoring annotation$", 2, True,
    ),
    "DoNotDisruptUntil": ("Normal", {"Pod"}, r"The karpenter.sh/do-not-disrupt grace period will elapse at ", 2, True),
    "DoNotDisruptGracePeriodElapsed": (
        "Normal", {"Pod"}, r"The karpenter.sh/do-not-disrupt grace period has elapsed, pod is now disruptable$", 2, False,
    ),
    "DisruptionBlocked": ("Normal", {*BOTH, "NodePool"}, r"", 2, None),  # on a NodePool with a key for each reason; one minute
    "Unconsolidatable": ("Normal", BOTH, r"", 15, False),
    "ConsolidationCandidate": ("Normal", BOTH, r"Consolidation candidate: ", 2, True),
    "ConsolidationApproved": ("Normal", {*BOTH, "NodePool"}, r"", 2, False),
    "ConsolidationRejected": ("Normal", BOTH, r"Consolidation rejected: .*, reason: ", 2, True),
    "DisruptionLaunching": ("Normal", {"NodeClaim"}, r"Launching NodeClaim: [A-Z]", 2, True),
    "DisruptionWaitingReadiness": ("Normal", {"NodeClaim"}, r"Waiting on readiness to continue disruption$", 2, False),
    "DisruptionTerminating": ("Normal", BOTH, r"Disrupting (Node|NodeClaim): [A-Z]", 2, True),
    "Evicted": ("Normal", {"Pod"}, r"Evicted pod: ", 2, False),
    "Disrupted": (
        "Normal", {"Pod"},
        r"Deleting the pod to accommodate the terminationTime .* of the node. The pod was granted \d+ seconds", 2, False,
    ),
    "FailedDraining": ("Warning", {"Node"}, r"Failed to drain node, ", 2, False),
    "AwaitingVolumeDetachment": ("Normal", {"Node"}, r"Awaiting deletion of bound volumeattachments \(", 2, False),
    "TerminationGracePeriodExpiring": ("Warning", BOTH, r"All pods will be deleted by ", 2, False),
    "FailedTermination": ("Warning", BOTH, r"", 2, False),
    "InsufficientCapacityError": ("Warning", {"NodeClaim", "NodePool"}, r"(NodeClaim .* event: |NodePool )", 2, False),
    "NodeClassNotReady": ("Warning", {"NodeClaim"}, r"NodeClaim .* event: ", 2, False),
    "UnregisteredTaintMissing": (
        "Warning", {"NodeClaim"},
        r"Missing karpenter.sh/unregistered taint which prevents registration related race conditions", 2, False,
    ),
    "FailedConsistencyCheck": ("Warning", {"NodeClaim"}, r"", 2, True),
    "NodeRepairBlocked": ("Warning", {"Node"}, r"more than 20% nodes are unhealthy in the (nodepool|cluster)", 15, False),
    "SpotInterrupted": ("Warning", BOTH, r"Spot interruption warning was triggered$", 2, False),
    "CapacityReservationInstanceInterrupted": (
        "Warning", BOTH, r"Capacity Reservation interruption warning was triggered$", 2, False,
    ),
    "SpotRebalanceRecommendation": ("Normal", BOTH, r"Spot rebalance recommendation was triggered$", 2, False),
    "InstanceStopping": ("Warning", BOTH, r"Instance is stopping$", 2, False),
    "InstanceTerminating": ("Warning", BOTH, r"Instance is terminating$", 2, False),
    "InstanceUnhealthy": ("Warning", BOTH, r"An unhealthy warning was triggered for the instance$", 2, False),
    "TerminatingOnInterruption": (
        "Warning", BOTH, r"Interruption triggered termination for the (Node|NodeClaim)$", 2, False,
    ),
    "WaitingOnNodeClaimTermination": ("Normal", {"EC2NodeClass"}, r"Waiting on NodeClaim termination for ", 2, False),
    "Finalized": ("Normal", {*BOTH, "EC2NodeClass"}, r"Finalized$", 2, False),
}  # fmt: skip
OURS = {reason for reason, entry in EVENT_REASONS.items() if not entry.is_karpenters}
KINDS = {kind.kind: kind for kind in (NODE, NODECLAIM, NODEPOOL, EC2NODECLASS)}
CONDITION_TRANSITION = re.compile(r"Status condition transitioned, Type: \w+, Status: \w+ -> \w+, Reason: \w+")


def events_in_the_source():
    """Return (reason, type) of every `Event(…)` in the source with literal reason and type; the default type is Normal."""
    for path in SOURCE.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Event":
                given = {k.arg: k.value for k in call.keywords}
                reason, type_ = given.get("reason"), given.get("type", ast.Constant("Normal"))
                if isinstance(reason, ast.Constant) and isinstance(type_, ast.Constant):
                    yield str(reason.value), str(type_.value)


def test_every_event_in_the_source_is_in_the_table_with_its_type():
    """`tests.helpers.fakes.Record` checks Events whose reason is not a literal, in every test that records one."""
    events = set(events_in_the_source())
    assert len(events) > 20
    assert events <= {(reason, entry.type) for reason, entry in EVENT_REASONS.items()}


def test_every_reason_in_the_table_is_used_and_described():
    """A reason that the source does not use is out of date."""
    source = "".join(path.read_text() for path in SOURCE.rglob("*.py") if path.name != "event_reasons.py")
    assert [reason for reason in EVENT_REASONS if f'"{reason}"' not in source] == []
    for reason, entry in EVENT_REASONS.items():
        assert entry.reason == reason
        assert entry.meaning.endswith(".")
        assert not entry.what_to_do or entry.what_to_do.endswith(".")
        assert entry.type == "Normal" or entry.is_karpenters or entry.meaning


def test_the_table_has_karpenters_reasons_with_karpenters_type_and_objects():
    """`kubectl get events` and alerts select Events by type; Karpenter's source here is that for AWS."""
    of_other_clouds = {"ECSNodeClass", "CCENodeClass"}
    ours = {reason: (e.type, set(e.kinds) - of_other_clouds) for reason, e in EVENT_REASONS.items() if e.is_karpenters}
    assert ours == {reason: (type_, kinds) for reason, (type_, kinds, *_) in KARPENTER.items()}


def test_interruption_events_have_karpenters_reason_and_message():
    """Each kind of interruption has its Event."""
    for reason, message in EVENTS_BY_KIND.values():
        assert re.match(KARPENTER[reason][2], message)


@pytest.mark.parametrize("reason", KARPENTER)
def test_dedupe_window_is_karpenters(reason):
    """It is two minutes unless Karpenter sets another; budgets may change each minute."""
    kinds, minutes = KARPENTER[reason][1], KARPENTER[reason][3]
    for kind in kinds & KINDS.keys():
        event = Event(ref=ObjectRef(resource=KINDS[kind], name="n"), reason=reason, message="m")
        on_a_budget = (kind, reason) == ("NodePool", "DisruptionBlocked")
        assert dedupe_window(event) == timedelta(minutes=1 if on_a_budget else minutes)


def test_dedupe_window_of_a_condition_transition_is_the_default():
    """Its reason is the condition's type, which is not in the table."""
    event = Event(ref=ObjectRef(resource=NODECLAIM, name="n"), reason="Launched", message="m")
    assert dedupe_window(event) == DEFAULT_DEDUPE_WINDOW


def drained_by_force(simulation):
    """Delete a NodeClaim with a terminationGracePeriod while a PodDisruptionBudget blocks its drain."""
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "b", "namespace": "default"},
    }
    simulation.cluster.add({**budget, "spec": {"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 0}})
    simulation.server.delete(NODECLAIM, simulation.claims()[0].metadata.name)
    simulation.requeue(Step.TERMINATE)
    simulation.run_for(minutes=12)
    simulation.server.delete(PDB, "b", namespace="default")


def consolidated(simulation):
    simulation.scale("web", 1)
    simulation.run_for(minutes=12)


def repaired(simulation):
    name = simulation.claims()[0].status.node_name
    simulation.server.patch(
        NODE, name, {"status": {"conditions": [condition("StorageReady", "False")]}}, subresource="status"
    )
    simulation.run_for(minutes=5)


def refused(simulation):
    """Let the NodePool reach its limits, then delete its NodeClass."""
    simulation.server.patch(NODEPOOL, "default", {"spec": {"limits": {"cpu": "0"}}})
    simulation.scale("web", 5)
    simulation.run_for(minutes=3)
    simulation.server.delete(EC2NODECLASS, "default")
    simulation.run_for(minutes=11)


@pytest.mark.parametrize("scenario", [drained_by_force, consolidated, repaired, refused])
def test_events_of_a_running_cluster_have_karpenters_form(scenario):
    """They have Karpenter's object, type and message prefix, and a key where Karpenter deduplicates by more values."""
    disruption = {"consolidateAfter": "30s", "budgets": [{"nodes": "100%"}]}
    template = {"spec": {"terminationGracePeriod": "5m"}}
    simulation = SimulatedCluster((SMALL,), pool_body(spec={"disruption": disruption, "template": template}))
    simulation.deploy("web", 3, cpu="1.5")
    simulation.until(lambda: simulation.running() == 3, "three pods")
    scenario(simulation)

    events = simulation.record.events
    assert len(events) > 10
    for event in events:
        if event.reason in OURS:
            continue
        if CONDITION_TRANSITION.match(event.message):
            assert (event.type, bool(event.key)) == ("Normal", True)
            continue
        type_, kinds, form, _, apart = KARPENTER[event.reason]
        assert event.ref.resource.kind in kinds
        assert event.type == type_, event
        assert re.match(form, event.message), event
        assert apart is None or bool(event.key) is apart, event
