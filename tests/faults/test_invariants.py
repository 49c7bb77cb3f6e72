"""Each invariant checker detects a violation, and accepts similar behaviour that is allowed."""

import json
from datetime import datetime, timezone
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from journeyman.cloud.messages import MAX_RECEIVES
from journeyman.core.api import labels
from journeyman.core.api.objects import FLEET_PLAN, NAMESPACE, NODE, NODE_DISRUPTION, NODECLAIM, NODEPOOL, PDB, POD
from journeyman.core.plan import Step
from journeyman_simulator.apiserver import ApiServer
from journeyman_simulator.apiserver.server import Write
from journeyman_simulator.clock import VirtualClock
from journeyman_simulator.faults.fault_scenario import (
    CallFault,
    EditClaim,
    EditTags,
    EndsEarly,
    FaultKind,
    FaultScenario,
    ForgeNode,
    OutOfStock,
    Overstate,
    ScenarioBudget,
    ScenarioPool,
    ScenarioSetup,
    StopKubelet,
)
from journeyman_simulator.faults.invariants import ALL_CHECKERS
from journeyman_simulator.faults.invariants.checkers import InvariantCheckers
from journeyman_simulator.faults.invariants.consistency_invariants import (
    CommandsSeeMachines,
    HealthyPoolsServe,
    InstancesOfOthersUntouched,
    NodesWithoutClaimKeepPods,
    RemovalsForInconsistencyBounded,
)
from journeyman_simulator.faults.invariants.disruption_invariants import (
    ConsolidationLowersPrice,
    EvictionCapsHold,
    FleetPlansEnd,
    PausedNodePoolsKeepNodes,
    ReplacementsInitializedFirst,
    UnhealthyNodesReplaced,
)
from journeyman_simulator.faults.invariants.instance_invariants import (
    InstancesDrainedFirst,
    NoOrphanedInstance,
    OneInstancePerNodeClaim,
)
from journeyman_simulator.faults.invariants.nodepool_invariants import (
    DisruptionBudgetsHold,
    NodePoolLimitsHold,
    ScheduleEntriesHaveWindows,
    StaticNodePoolsKeepReplicas,
)
from journeyman_simulator.faults.invariants.pod_invariants import (
    LaunchesPerPodBounded,
    PodsEvictedAsAllowed,
    SchedulablePodsRun,
)
from journeyman_simulator.faults.invariants.progress_invariants import (
    NothingStuck,
    OnlyExpectedErrors,
    UnfinishedWorkHasARequeue,
)
from journeyman_simulator.faults.manifests import initial_manifests
from journeyman_simulator.faults.scenario_clouds import CLOUDS
from journeyman_simulator.faults.scenario_view import CloudEvent, CloudInstance, PendingMessage, RunError
from journeyman_simulator.huawei_account.fgs_stack import FgsStack, read_description
from journeyman_simulator.huawei_account.huawei_account import HuaweiAccount

START = datetime(2026, 1, 5, 12, tzinfo=timezone.utc)
TAINT = {"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}
READY = [{"type": "Ready", "status": "True"}]
TYPES = ("m5.large", "m5.xlarge")


class Fixture:
    """An API server, instances and messages that a test sets up for one invariant checker."""

    def __init__(self, invariant, **setup):
        faults, operations = setup.pop("faults", ()), setup.pop("operations", ())
        self.scenario = FaultScenario(
            seed=0, setup=ScenarioSetup(types=TYPES, **setup), faults=faults, operations=operations
        )
        self.clock = VirtualClock(START)
        self.server = ApiServer(self.clock)
        self.server.load(initial_manifests(self.scenario.setup))
        self.fleet, self.messages, self.letters, self.entries = [], [], [], {}
        self.checkers = InvariantCheckers(self, [invariant])
        self.server.on_write(self.checkers.check_write)

    def instances(self):
        return tuple(self.fleet)

    def pending_messages(self):
        return tuple(self.messages)

    def active_runs(self):
        return ()

    def schedule_entries(self):
        return self.entries

    def dead_letters(self):
        return tuple(self.letters)

    @property
    def violations(self):
        return [violation.what for violation in self.checkers.violations]

    def as_(self, step):
        return self.server.acting_as(f"journeyman/{step}")

    def claim(
        self,
        name,
        *true,
        command="",
        grace=None,
        finalizers=("karpenter.sh/termination",),
        launched=True,
        recorded=True,
    ):
        """A claim whose conditions of these types are True, and its instance."""
        metadata = {"name": name, "labels": {"karpenter.sh/nodepool": "default"}, "finalizers": list(finalizers)}
        if command:
            metadata["annotations"] = {"journeyman.dev/node-disruption": command}
        reference = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}
        spec = {"nodeClassRef": reference, "requirements": []}
        if grace:
            spec["terminationGracePeriod"] = grace
        self.as_("provision").create(NODECLAIM, {"metadata": metadata, "spec": spec})
        self.say(name, *true, provider_id=f"aws:///a/{name}" if recorded else "")
        return self.launch(name) if launched else None

    def say(self, name, *true, provider_id="", by="provision"):
        """Set exactly these conditions True."""
        conditions = [
            {
                "type": t,
                "status": "True",
                "reason": "Empty",
                "message": "",
                "lastTransitionTime": "2026-01-05T12:00:00Z",
            }
            for t in true
        ]
        status = {"conditions": conditions, **({"providerID": provider_id} if provider_id else {})}
        self.as_(by).patch(NODECLAIM, name, {"status": status}, subresource="status")

    def launch(self, claim, type_="m5.large", price=0.1, by="journeyman/provision", suffix=""):
        uid = self.server.get(NODECLAIM, claim).metadata.uid
        instance = CloudInstance(
            provider_id=f"aws:///a/{claim}{suffix}",
            instance_type=type_,
            zone="a",
            capacity_type="on-demand",
            price=price,
            state="running",
            launched_at=self.clock.now(),
            tags={"karpenter.sh/nodeclaim": claim, "journeyman.dev/nodeclaim-uid": uid},
        )
        self.fleet.append(instance)
        self.happen("launched", instance, by)
        return instance

    def happen(self, kind, instance, by="journeyman/terminate"):
        self.checkers.check_cloud_event(CloudEvent(at=self.clock.now(), kind=kind, instance=instance, by=by))

    def node(self, claim, *, taints=(), labels=None):
        body = {
            "metadata": {"name": f"node-{claim}", "finalizers": ["karpenter.sh/termination"], "labels": labels or {}},
            "spec": {"providerID": f"aws:///a/{claim}", "taints": list(taints)},
        }
        self.server.create(NODE, body)
        self.server.patch(NODE, f"node-{claim}", {"status": {"conditions": READY}}, subresource="status")

    def pod(self, name, node, *, annotations=None, cpu="500m", phase="Running"):
        requests = {"cpu": cpu, "memory": "256Mi"}
        container = {"name": "c", "image": "i", "resources": {"requests": requests}}
        body = {
            "metadata": {"name": name, "labels": {"app": "a"}, "annotations": annotations or {}},
            "spec": {"nodeName": node, "terminationGracePeriodSeconds": 30, "containers": [container]},
        }
        status = {"phase": phase, "conditions": READY, "startTime": "2026-01-05T11:00:00Z"}
        self.server.create(POD, body, namespace="default")
        self.server.patch(POD, name, {"status": status}, namespace="default", subresource="status")

    def command(
        self,
        name,
        candidates,
        replacements=(),
        phase="Draining",
        reason="Underutilized",
        method="single-node",
        pods=(),
    ):
        body = {
            "metadata": {"name": name},
            "spec": {
                "reason": reason,
                "decision": "replace" if replacements else "delete",
                "method": method,
                "candidates": [{"nodeClaim": c, "nodePool": "default", "pods": list(pods)} for c in candidates],
                "replacements": [{"name": r} for r in replacements],
            },
        }
        self.as_("consolidate").create(NODE_DISRUPTION, body)
        self.as_("consolidate").patch(NODE_DISRUPTION, name, {"status": {"phase": phase}}, subresource="status")


def leaving_node(fixture, *, annotations=None, **claim):
    """Return a terminating NodeClaim, its tainted node, and a pod on it."""
    instance = fixture.claim("c1", "Registered", **claim)
    fixture.node("c1", taints=[TAINT])
    fixture.pod("p1", "node-c1", annotations=annotations)
    fixture.as_("terminate").delete(NODECLAIM, "c1")
    return instance


def test_there_are_twenty_four_invariants_with_different_names():
    """Reports name invariants unambiguously."""
    assert len({*ALL_CHECKERS}) == len({invariant.name for invariant in ALL_CHECKERS}) == 24
    assert all(invariant.name for invariant in ALL_CHECKERS)


def test_a_second_instance_of_a_nodeclaim_is_detected():
    """The UID in its tags identifies the NodeClaim, even if the first instance is terminated."""
    fixture = Fixture(OneInstancePerNodeClaim)
    fixture.claim("c1")
    assert fixture.violations == []
    fixture.launch("c1", suffix="-again")
    assert fixture.violations == ["aws:///a/c1-again is instance 2 of NodeClaim c1, by journeyman/provision"]


@pytest.mark.parametrize("state", ["running", "terminated"])
def test_a_second_instance_is_detected_although_a_user_removed_the_launch(state):
    """The tags still name the first instance, also after it ended."""
    removal = EditClaim(at_seconds=1, claim=0, change="drop-status")
    fixture = Fixture(OneInstancePerNodeClaim, operations=(removal,))
    fixture.claim("c1")
    fixture.fleet = [replace(instance, state=state) for instance in fixture.fleet]
    fixture.launch("c1", suffix="-again")
    assert len(fixture.violations) == 1


@pytest.mark.parametrize(("recorded", "found"), [(True, 1), (False, 0)])
def test_a_second_instance_is_allowed_if_nothing_names_the_first(recorded, found):
    """A user removed the tag of the first; the NodeClaim names it if its launch was recorded."""
    removal = EditTags(at_seconds=1, node=0, change="drop-claim")
    fixture = Fixture(OneInstancePerNodeClaim, operations=(removal,))
    fixture.claim("c1", recorded=recorded)
    fixture.launch("c1", suffix="-again")
    assert len(fixture.violations) == found


STALE_LIST = CallFault(site="provision: cce ListNodes", nth=2, kind=FaultKind.STALE, seconds=20)


@pytest.mark.parametrize(
    ("state", "recorded", "found"), [("running", False, 1), ("terminated", False, 0), ("terminated", True, 1)]
)
def test_without_client_tokens_an_existing_node_names_its_nodeclaim(state, recorded, found):
    """CCE no longer lists a deleted node; the NodeClaim's status names it if its launch was recorded."""
    fixture = Fixture(OneInstancePerNodeClaim, cloud="huawei")
    fixture.claim("c1", recorded=recorded)
    fixture.fleet = [replace(instance, state=state) for instance in fixture.fleet]
    fixture.launch("c1", suffix="-again")
    assert len(fixture.violations) == found


def test_a_second_node_after_a_stale_list_must_be_terminated_and_run_no_pods():
    """Without a client token, CCE creates it. Where launches have one, a stale list excuses nothing."""
    on_aws = Fixture(OneInstancePerNodeClaim, faults=(STALE_LIST,))
    on_aws.claim("c1")
    on_aws.launch("c1", suffix="-again")
    assert len(on_aws.violations) == 1

    fixture = Fixture(OneInstancePerNodeClaim, cloud="huawei", faults=(STALE_LIST,))
    fixture.claim("c1")
    fixture.launch("c1", suffix="-again")
    fixture.node("c1")
    fixture.pod("p1", "node-c1")
    fixture.checkers.check_every_minute()
    assert fixture.violations == []
    fixture.node("c1-again")
    fixture.pod("p2", "node-c1-again")
    fixture.checkers.check_every_minute()
    fixture.clock.advance(660)
    fixture.checkers.check_every_minute()
    fixture.checkers.check_at_rest()
    assert list(dict.fromkeys(fixture.violations)) == [
        "pod p2 runs on node-c1-again, which is not the node of a NodeClaim",
        "aws:///a/c1-again has run since 12:00:00 besides the instance of NodeClaim c1",
        "aws:///a/c1-again runs besides the instance of NodeClaim c1",
    ]
    found = len(fixture.violations)
    fixture.fleet[1] = replace(fixture.fleet[1], state="terminated")
    fixture.checkers.check_every_minute()
    fixture.checkers.check_at_rest()
    assert len(fixture.violations) == found


def test_an_orphaned_instance_is_detected_at_rest_and_after_ten_minutes():
    """While faults are injected, the product has ten minutes to terminate it."""
    fixture = Fixture(NoOrphanedInstance)
    fixture.claim("c1", finalizers=())
    fixture.server.delete(NODECLAIM, "c1")
    fixture.checkers.check_every_minute()
    fixture.clock.advance(600)
    fixture.checkers.check_every_minute()
    assert fixture.violations == []
    fixture.clock.advance(60)
    fixture.checkers.check_every_minute()
    fixture.checkers.check_at_rest()
    assert fixture.violations == [
        "aws:///a/c1 has run without a NodeClaim since 12:00:00",
        "aws:///a/c1 (c1) runs without a NodeClaim",
    ]


def test_a_claim_without_instance_node_or_finalizer_is_detected_at_rest():
    """Each NodeClaim must have one instance, one node and its finalizer."""
    fixture = Fixture(NoOrphanedInstance)
    fixture.claim("good")
    fixture.node("good")
    fixture.claim("homeless", launched=False)
    fixture.claim("nodeless", finalizers=())
    fixture.checkers.check_at_rest()
    assert fixture.violations == [
        "NodeClaim homeless has no running instance (aws:///a/homeless)",
        "NodeClaim nodeless has no Node",
        "NodeClaim nodeless has no termination finalizer",
    ]


def test_an_eviction_against_a_budget_is_detected():
    """The checker counts healthy pods itself, even if the API server allowed the eviction."""
    fixture = Fixture(PodsEvictedAsAllowed)
    leaving_node(fixture)
    budget = {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}}
    fixture.server.create(PDB, {"metadata": {"name": "b"}, "spec": budget}, namespace="default")
    evicted = Write(
        verb="evict",
        resource=POD,
        namespace="default",
        name="p1",
        subresource="eviction",
        body={},
        result=msgspec.to_builtins(fixture.server.get(POD, "p1", namespace="default")),
        version=1,
        user="journeyman/terminate",
    )
    fixture.checkers.check_write(evicted)
    assert fixture.violations == ["journeyman/terminate evicted p1 against PodDisruptionBudget b"]


def test_an_eviction_of_a_protected_pod_is_detected():
    """An eviction of any other pod is accepted."""
    fixture = Fixture(PodsEvictedAsAllowed)
    leaving_node(fixture, annotations={"karpenter.sh/do-not-disrupt": "true"})
    fixture.pod("free", "node-c1")
    fixture.as_("terminate").evict("default", "free")
    assert fixture.violations == []
    fixture.as_("terminate").evict("default", "p1")
    assert fixture.violations == ["journeyman/terminate evicted p1, which must not be disrupted"]


def test_an_annotation_newer_than_stale_information_is_no_violation():
    """A paused run read the pod before it was annotated."""
    pause = CallFault(site="terminate: evict Pod", nth=1, kind=FaultKind.PAUSE, seconds=60)
    fixture = Fixture(PodsEvictedAsAllowed, faults=(pause,))
    leaving_node(fixture, annotations={"karpenter.sh/do-not-disrupt": "true"})
    fixture.clock.advance(59)
    fixture.as_("terminate").evict("default", "p1")
    assert fixture.violations == []


@pytest.mark.parametrize(("edits", "found"), [((), 1), ((EditTags(at_seconds=1, node=0, change="other-claim"),), 0)])
def test_edited_tags_give_a_node_that_never_registered_a_deadline(edits, found):
    """The NodeClaim that it was launched for is gone, and the node has no owner."""
    fixture = Fixture(PodsEvictedAsAllowed, operations=edits)
    fixture.node("c1", taints=[TAINT])
    fixture.pod("p1", "node-c1")
    fixture.as_("terminate").delete(POD, "p1", namespace="default")
    assert len(fixture.violations) == found


@pytest.mark.parametrize(("owner", "found"), [("c1", 0), ("b1", 1)])
def test_an_eviction_is_judged_by_the_owner_of_the_node(owner, found):
    """A user set the provider id of another NodeClaim, which stays and sorts first, to that of the node."""
    fixture = Fixture(PodsEvictedAsAllowed)
    leaving_node(fixture)
    fixture.claim("b1")
    fixture.say("b1", provider_id="aws:///a/c1")
    uid = fixture.server.get(NODECLAIM, owner).metadata.uid
    reference = {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "name": owner, "uid": uid}
    fixture.server.patch(NODE, "node-c1", {"metadata": {"ownerReferences": [reference]}})
    fixture.as_("terminate").evict("default", "p1")
    assert len(fixture.violations) == found


def test_an_eviction_from_a_node_that_is_not_disrupted_is_detected():
    """Neither the node nor its NodeClaim was deleted."""
    fixture = Fixture(PodsEvictedAsAllowed)
    fixture.claim("c1")
    fixture.node("c1")
    fixture.pod("p1", "node-c1")
    fixture.as_("terminate").evict("default", "p1")
    assert fixture.violations == ["journeyman/terminate evicted p1 from node-c1, which is not disrupted"]


@pytest.mark.parametrize(("seconds", "violations"), [(59, 0), (60, 1)])
def test_an_eviction_after_a_user_removed_the_taint_is_detected_once_the_run_can_know(seconds, violations):
    """A run that is paused before the eviction cannot; the node still is to be drained."""
    pause = CallFault(site="terminate: evict Pod", nth=1, kind=FaultKind.PAUSE, seconds=60)
    fixture = Fixture(PodsEvictedAsAllowed, faults=(pause,))
    leaving_node(fixture)
    fixture.as_("alice").patch(NODE, "node-c1", {"spec": {"taints": []}})
    fixture.clock.advance(seconds)
    fixture.as_("terminate").evict("default", "p1")
    assert len(fixture.violations) == violations


@pytest.mark.parametrize(("seconds", "violation"), [(59, True), (60, False)])
def test_a_forced_deletion_before_the_deadline_is_detected(seconds, violation):
    """The deadline is ninety seconds after the NodeClaim's deletion, minus the pod's grace period of thirty."""
    fixture = Fixture(PodsEvictedAsAllowed)
    leaving_node(fixture, grace="90s")
    fixture.clock.advance(seconds - 1)
    fixture.as_("terminate").delete(POD, "p1", namespace="default", grace_period_seconds=1)
    assert bool(fixture.violations) == violation


@pytest.mark.parametrize(("deleted", "found"), [(True, 0), (False, 1)])
def test_a_deletion_by_the_deadline_of_a_claim_that_shares_the_provider_id_is_allowed(deleted, found):
    """A user gave b1, which stays, the provider id of c1's node before it registered: the run that restores it drains the node."""
    fixture = Fixture(PodsEvictedAsAllowed)
    for name in ("c1", "b1"):
        fixture.claim(name, grace="90s")
    fixture.node("c1", taints=[TAINT])
    fixture.pod("p1", "node-c1")
    fixture.say("b1", provider_id="aws:///a/c1")
    uid = fixture.server.get(NODECLAIM, "b1").metadata.uid
    reference = {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "name": "b1", "uid": uid}
    fixture.server.patch(NODE, "node-c1", {"metadata": {"ownerReferences": [reference]}})
    if deleted:
        fixture.server.delete(NODECLAIM, "c1")
    fixture.clock.advance(90)
    fixture.as_("terminate").delete(POD, "p1", namespace="default", grace_period_seconds=1)
    assert len(fixture.violations) == found


@pytest.mark.parametrize(("seconds", "violation"), [(20, False), (21, True)])
def test_a_deletion_by_a_deadline_that_went_before_the_pause_is_detected(seconds, violation):
    """A run that is paused for twenty seconds before the deletion cannot see that the NodeClaim goes meanwhile."""
    pause = CallFault(site="terminate: delete Pod", nth=1, kind=FaultKind.PAUSE, seconds=20)
    fixture = Fixture(PodsEvictedAsAllowed, faults=(pause,))
    leaving_node(fixture, grace="90s")
    fixture.clock.advance(90)
    fixture.server.patch(NODECLAIM, "c1", {"metadata": {"finalizers": None}})
    fixture.clock.advance(seconds)
    fixture.as_("terminate").delete(POD, "p1", namespace="default", grace_period_seconds=1)
    assert bool(fixture.violations) == violation


def test_a_termination_with_running_pods_is_detected():
    """Without pods it is accepted."""
    fixture = Fixture(InstancesDrainedFirst)
    instance = leaving_node(fixture)
    fixture.happen("terminate", instance, by="human")
    assert fixture.violations == []
    fixture.happen("terminate", instance)
    assert fixture.violations == ["journeyman/terminate terminated aws:///a/c1 (c1) with running pods p1"]
    fixture.server.delete(POD, "p1", namespace="default", grace_period_seconds=0)
    fixture.happen("terminate", instance)
    assert len(fixture.violations) == 1


@pytest.mark.parametrize(
    ("nodes", "taken", "violation"), [("1", 1, False), ("1", 2, True), ("50%", 2, False), ("30%", 2, True)]
)
def test_more_disrupted_nodes_than_the_budget_allows_are_detected(nodes, taken, violation):
    """There are three nodes; percentages are rounded up."""
    fixture = Fixture(
        DisruptionBudgetsHold, pools=(ScenarioPool(name="default", budgets=(ScenarioBudget(nodes=nodes),)),)
    )
    names = ("c1", "c2", "c3")
    for name in names:
        fixture.claim(name, "Initialized")
    for name in names[:taken]:
        fixture.say(name, "Initialized", "DisruptionReason", by="consolidate")
    assert bool(fixture.violations) == violation


def test_a_node_counts_for_budgets_by_its_label_if_its_condition_was_dropped():
    """A user dropped the conditions of two of three NodeClaims; half of the nodes, rounded up, may be disrupted."""
    fixture = Fixture(
        DisruptionBudgetsHold, pools=(ScenarioPool(name="default", budgets=(ScenarioBudget(nodes="50%"),)),)
    )
    fixture.claim("c1", "Initialized")
    for name in ("c2", "c3"):
        fixture.claim(name)
        fixture.node(name, labels={labels.INITIALIZED: "true"})
    fixture.say("c1", "Initialized", "DisruptionReason", by="consolidate")
    fixture.say("c2", "DisruptionReason", by="consolidate")
    assert fixture.violations == []


def test_a_budget_for_another_reason_does_not_apply():
    """Drift may disrupt none, emptiness may."""
    budget = ScenarioBudget(nodes="0", reasons=("Drifted",))
    fixture = Fixture(DisruptionBudgetsHold, pools=(ScenarioPool(name="default", budgets=(budget,)),))
    fixture.claim("c1", "Initialized")
    fixture.say("c1", "Initialized", "DisruptionReason", by="consolidate")
    assert fixture.violations == []


@pytest.mark.parametrize(("minutes", "violation"), [(4, False), (6, True), (10, False)])
def test_a_budget_counts_while_its_window_is_open(minutes, violation):
    """It opens five minutes after the start for two minutes, in a time zone that is not whole hours from UTC."""
    window = ScenarioBudget(nodes="0", opens_at_minute=5, seconds=120)
    pool = ScenarioPool(name="default", budgets=(window,), time_zone="Asia/Kolkata")
    fixture = Fixture(DisruptionBudgetsHold, pools=(pool,))
    fixture.claim("c1", "Initialized")
    fixture.clock.advance(60 * minutes)
    fixture.say("c1", "Initialized", "DisruptionReason", by="consolidate")
    assert bool(fixture.violations) == violation


@pytest.mark.parametrize("value", ["true", "tomorrow", "2026-01-05T12:10:00Z"])
@pytest.mark.parametrize("phase", ["Proposed", "Validated"])
def test_a_command_for_a_paused_nodepool_is_detected(value, phase):
    """It is neither proposed nor started. One that had started before goes on."""
    fixture = Fixture(PausedNodePoolsKeepNodes)
    fixture.command("before", ["c0"], phase="Validated")
    if phase == "Validated":
        fixture.command("proposed", ["c1"], phase="Proposed")
    annotations = {"journeyman.dev/pause-disruption": value}
    fixture.server.patch(NODEPOOL, "default", {"metadata": {"annotations": annotations}})
    fixture.as_("consolidate").patch(NODE_DISRUPTION, "before", {"status": {"phase": "Draining"}}, subresource="status")
    assert fixture.violations == []

    if phase == "Validated":
        started = {"status": {"phase": phase}}
        fixture.as_("consolidate").patch(NODE_DISRUPTION, "proposed", started, subresource="status")
    else:
        fixture.command("proposed", ["c1"], phase=phase)
    done = "started" if phase == "Validated" else "proposed"
    assert fixture.violations == [f"proposed was {done}, and default is paused: {value!r}"]


@pytest.mark.parametrize("value", ["", "2026-01-05T11:59:00Z"])
def test_a_pause_that_is_over_allows_commands(value):
    """The annotation was removed, or its time has passed."""
    fixture = Fixture(PausedNodePoolsKeepNodes)
    for each in ("true", value or None):
        annotations = {"journeyman.dev/pause-disruption": each}
        fixture.server.patch(NODEPOOL, "default", {"metadata": {"annotations": annotations}})
    fixture.command("proposed", ["c1"], phase="Proposed")
    assert fixture.violations == []


@pytest.mark.parametrize(("reason", "violations"), [("Underutilized", 1), ("Drifted", 0)])
@pytest.mark.parametrize("of", ["pod", "NodePool"])
def test_an_eviction_beyond_the_cap_is_detected(of, reason, violations):
    """Two pods of a workload are moved, and a cap allows one; other reasons than consolidation are not limited."""
    cap = {"journeyman.dev/max-evictions-per-day": "1"}
    pools = (ScenarioPool(name="default", max_evictions_per_day=1 if of == "NodePool" else 0),)
    fixture = Fixture(EvictionCapsHold, pools=pools)
    fixture.claim("c1", "Initialized")
    fixture.node("c1")
    for name in ("p1", "p2"):
        fixture.pod(name, "node-c1", annotations=cap if of == "pod" else None)
    fixture.command("moves", ["c1"], reason=reason, pods=["default/p1", "default/p2"])
    for name in ("p1", "p2"):
        assert fixture.violations == []
        fixture.as_("terminate").evict("default", name)
    assert len(fixture.violations) == violations


def a_fleet_plan(fixture, *nodes, moves=()):
    """Create a FleetPlan with a move for each node, and these moves started: (name, NodeDisruption)."""
    moving = [{"name": node, "nodeClaims": [node]} for node in nodes]
    spec = {"moves": moving, "createdAt": fixture.clock.now().isoformat()}
    name = f"fleet-{nodes[0] if nodes else 'empty'}"
    fixture.server.create(FLEET_PLAN, {"metadata": {"name": name}, "spec": spec})
    started = [{"name": name, "state": "Running", "nodeDisruption": command} for name, command in moves]
    fixture.server.patch(FLEET_PLAN, name, {"status": {"phase": "Running", "moves": started}}, subresource="status")


def test_a_fleet_plan_that_moves_a_node_it_launched_is_detected():
    """Its pods would be evicted twice within the plan."""
    fixture = Fixture(FleetPlansEnd)
    fixture.claim("old")
    fixture.claim("new", command="first")
    a_fleet_plan(fixture, "old", "gone", moves=[("gone", "first")])
    fixture.command("second", ["old"], method="fleet-plan", phase="Proposed")
    assert fixture.violations == []
    fixture.command("third", ["new"], method="fleet-plan", phase="Proposed")
    assert fixture.violations == ["third has NodeClaim new, which FleetPlan fleet-old launched"]


def test_a_fleet_plan_that_does_not_end_is_detected():
    """It may wait for budgets as long as one of its nodes exists; two plans never run at rest."""
    fixture = Fixture(FleetPlansEnd)
    fixture.claim("c1")
    a_fleet_plan(fixture, "c1", "gone")
    fixture.checkers.check_at_rest()
    assert fixture.violations == []
    a_fleet_plan(fixture, "left")
    fixture.checkers.check_at_rest()
    assert fixture.violations == ["2 FleetPlans run", "FleetPlan fleet-left runs, and none of its nodes exists"]


@pytest.mark.parametrize(("seconds", "violations"), [(240, 0), (241, 1)])
def test_a_fleet_plan_without_moves_ends_within_minutes(seconds, violations):
    """The next run records that it ended."""
    fixture = Fixture(FleetPlansEnd)
    a_fleet_plan(fixture)
    fixture.clock.advance(seconds)
    fixture.checkers.check_at_rest()
    assert len(fixture.violations) == violations


@pytest.mark.parametrize(("at", "violations"), [("12:05:00", 0), ("12:06:00", 0), ("17:30:00", 1)])
def test_an_entry_of_the_scheduler_without_a_window_is_detected(at, violations):
    """A window of hibernation opens after five minutes, for one; the sweep has some minutes to delete entries."""
    pool = ScenarioPool(name="default", hibernates_at_minute=5, hibernates_seconds=60, time_zone="Asia/Kolkata")
    fixture = Fixture(ScheduleEntriesHaveWindows, pools=(pool,))
    fixture.entries["e"] = datetime.fromisoformat(f"2026-01-06T{at}+00:00")
    for _ in range(10):
        fixture.checkers.check_every_minute()
        fixture.clock.advance(60)
    assert bool(fixture.violations) == bool(violations)


def test_a_launch_beyond_the_limit_is_detected():
    """Two nodes of two vCPUs exceed a limit of three; a node with a replacement does not count."""
    fixture = Fixture(NodePoolLimitsHold, pools=(ScenarioPool(name="default", limit_cpus=3),))
    fixture.claim("c1", "Registered")
    fixture.as_("terminate").delete(NODECLAIM, "c1")
    fixture.claim("c2", "Registered")
    assert fixture.violations == []
    fixture.claim("c3")
    assert fixture.violations == ["default has 4 vCPUs with m5.large c3, the limit is 3"]


@pytest.mark.parametrize(("paused", "found"), [(60, 0), (5, 1)])
def test_a_node_that_lost_its_taint_while_a_run_was_paused_does_not_count(paused, found):
    """The run has read the node as one that a command replaces."""
    pause = CallFault(site="provision: get NodePool", nth=1, kind=FaultKind.PAUSE, seconds=paused)
    fixture = Fixture(NodePoolLimitsHold, pools=(ScenarioPool(name="default", limit_cpus=3),), faults=(pause,))
    fixture.claim("c1", "Registered")
    fixture.node("c1")
    fixture.server.patch(NODE, "node-c1", {"spec": {"taints": [TAINT]}})
    fixture.server.patch(NODE, "node-c1", {"spec": {"taints": []}})
    fixture.clock.advance(40)
    fixture.claim("c2")
    assert len(fixture.violations) == found


def test_a_launch_within_a_limit_raised_since_is_allowed():
    """Runs check the limit again before they launch."""
    fixture = Fixture(NodePoolLimitsHold, pools=(ScenarioPool(name="default", limit_cpus=3),))
    fixture.claim("c1", "Registered")
    fixture.claim("c2", launched=False)
    fixture.server.acting_as("human").patch(NODEPOOL, "default", {"spec": {"limits": {"cpu": "4"}}})
    fixture.launch("c2")
    assert fixture.violations == []


@pytest.mark.parametrize(
    ("cloud", "faults", "found"), [("huawei", (STALE_LIST,), 0), ("huawei", (), 1), ("aws", (STALE_LIST,), 1)]
)
def test_a_second_node_after_a_stale_list_does_not_count_against_limits(cloud, faults, found):
    """The list hid the first one, and the launch has no client token. The largest of them counts."""
    fixture = Fixture(
        NodePoolLimitsHold, cloud=cloud, faults=faults, pools=(ScenarioPool(name="default", limit_cpus=3),)
    )
    fixture.claim("c1")
    fixture.launch("c1", suffix="-again")
    assert len(fixture.violations) == found
    fixture.launch("c1", type_="m5.xlarge", suffix="-larger")
    assert len(fixture.violations) == found + 1


def test_candidate_deleted_before_its_replacement_initializes_is_detected():
    """A deletion without a command is detected, too."""
    fixture = Fixture(ReplacementsInitializedFirst)
    for name in ("old", "new", "other"):
        fixture.claim(name, "Launched")
    fixture.claim("withdrawn")
    fixture.command("d", ["old"], ["new"])
    fixture.as_("consolidate").delete(NODECLAIM, "withdrawn")
    fixture.as_("consolidate").delete(NODECLAIM, "old")
    fixture.as_("consolidate").delete(NODECLAIM, "other")
    assert fixture.violations == [
        "NodeClaim old was deleted before new of d was initialized",
        "NodeClaim other was deleted, and no draining command has it as candidate",
    ]


def test_a_candidate_may_go_once_its_replacement_was_initialized():
    """The replacement may have been deleted since."""
    fixture = Fixture(ReplacementsInitializedFirst)
    fixture.claim("old", "Launched")
    fixture.claim("new", "Initialized")
    fixture.say("new")
    fixture.command("d", ["old"], ["new"])
    fixture.as_("consolidate").delete(NODECLAIM, "old")
    assert fixture.violations == []


@pytest.mark.parametrize(
    ("reason", "price", "violation"),
    [("Underutilized", 0.1, True), ("Underutilized", 0.09, False), ("Drifted", 0.2, False)],
)
def test_a_replacement_at_the_same_price_is_detected(reason, price, violation):
    """Drift may cost more, consolidation may not."""
    fixture = Fixture(ConsolidationLowersPrice)
    fixture.claim("old")
    fixture.command("d", ["old"], ["new"], reason=reason)
    fixture.claim("new", command="d", launched=False)
    fixture.launch("new", price=price)
    assert bool(fixture.violations) == violation


@pytest.mark.parametrize(
    ("limit", "cpu", "result"), [(0, "1500m", True), (3, "1500m", False), (0, "3900m", False), (0, "3000m", True)]
)
def test_a_schedulable_pod_that_does_not_run_is_detected(limit, cpu, result):
    """Exhausted limits and pods that are too large are accepted."""
    fixture = Fixture(SchedulablePodsRun, pools=(ScenarioPool(name="default", limit_cpus=limit),))
    fixture.claim("c1")
    fixture.pod("p1", "", cpu=cpu, phase="Pending")
    fixture.checkers.check_at_rest()
    assert bool(fixture.violations) == result


def test_an_instance_whose_tags_were_removed_uses_the_limit():
    """Its NodeClaim still names it."""
    fixture = Fixture(SchedulablePodsRun, pools=(ScenarioPool(name="default", limit_cpus=2),))
    fixture.claim("c1")
    fixture.fleet = [replace(instance, tags={}) for instance in fixture.fleet]
    fixture.pod("p1", "", phase="Pending")
    fixture.checkers.check_at_rest()
    assert fixture.violations == []


@pytest.mark.parametrize(
    ("sweep", "minutes", "result"), [(True, 4, False), (True, 5, True), (False, 0, False), (False, 1, True)]
)
def test_an_unfinished_claim_without_a_requeue_is_detected(sweep, minutes, result):
    """The sweep has some minutes to find it; without a sweep there must be a message."""
    fixture = Fixture(UnfinishedWorkHasARequeue, sweep=sweep)
    fixture.claim("c1")
    for _ in range(minutes + 1):
        fixture.checkers.check_every_minute()
        fixture.clock.advance(60)
    assert bool(fixture.violations) == result


def test_a_message_to_the_right_step_is_a_requeue():
    """A message to another step is not."""
    fixture = Fixture(UnfinishedWorkHasARequeue, sweep=False)
    fixture.claim("c1")
    fixture.messages = [PendingMessage(step=Step.PROVISION, at=START)]
    fixture.checkers.check_every_minute()
    fixture.clock.advance(60)
    fixture.checkers.check_every_minute()
    assert fixture.violations == []


def test_leftover_taints_conditions_and_dead_letters_are_detected():
    """They are detected at rest."""
    fixture = Fixture(NothingStuck)
    fixture.claim("c1", "DisruptionReason")
    fixture.node("c1", taints=[TAINT])
    fixture.letters = ["{}"]
    fixture.checkers.check_at_rest()
    assert fixture.violations == [
        "NodeClaim c1 carries a DisruptionReason, without a command",
        "Node node-c1 is tainted, and is not replaced",
        "a message is in a dead-letter queue: {}",
    ]


@pytest.mark.parametrize(("dying", "step", "seen"), [(0, "terminate", 0), (-1, "terminate", 1), (0, "provision", 1)])
@pytest.mark.parametrize("cloud", CLOUDS.values(), ids=lambda cloud: cloud.name)
def test_a_dead_letter_is_allowed_if_every_receive_failed(cloud, dying, step, seen):
    """A fault must have hit each receive in the message's own step; `dying` is how many more faults than receives there are."""
    fixture = Fixture(NothingStuck, cloud=cloud.name)
    deaths = (
        CallFault(site="terminate: evict Pod", nth=nth, kind=FaultKind.CRASH_BEFORE)
        for nth in range(1, cloud.max_receives + dying + 1)
    )
    fixture.scenario = msgspec.structs.replace(fixture.scenario, faults=tuple(deaths))
    fixture.letters = [json.dumps({"step": step})]
    fixture.checkers.check_at_rest()
    assert len(fixture.violations) == seen


def test_a_dead_letter_of_the_function_that_waits_is_allowed_for_its_own_faults():
    """Its messages are for other steps."""
    fixture = Fixture(NothingStuck, cloud="huawei")
    deaths = (CallFault(site="delay: call", nth=nth, kind=FaultKind.CRASH_BEFORE) for nth in range(1, 5))
    fixture.letters = [json.dumps({"source": "delay", "messages": []})]
    fixture.checkers.check_at_rest()
    fixture.scenario = msgspec.structs.replace(fixture.scenario, faults=tuple(deaths))
    fixture.checkers.check_at_rest()
    assert len(fixture.violations) == 1


def test_the_number_of_receives_is_the_deployments():
    """The checker relies on it."""
    template = (Path(__file__).parents[2] / "template.yaml").read_text()
    assert template.count(f"maxReceiveCount: {CLOUDS['aws'].max_receives}") == template.count("maxReceiveCount: ")
    assert CLOUDS["alibaba"].max_receives == MAX_RECEIVES
    variables = {"cluster_name": "c", "cluster_id": "00000000-0000-4000-8000-000000000000"}
    stack = FgsStack(HuaweiAccount(VirtualClock(START)), read_description(), variables)
    configs = stack.module.resources("huaweicloud_fgs_async_invoke_configuration").values()
    retries = {each["max_async_retry_attempts"] for each in configs if "on_failure" in each}
    assert retries == {CLOUDS["huawei"].max_receives - 1}


@pytest.mark.parametrize(
    ("error", "expected", "result"),
    [("KeyError", False, True), ("ConflictError", True, False), ("InvariantError", True, True)],
)
def test_unexpected_errors_are_detected(error, expected, result):
    """A plan that verification refuses is never expected."""
    fixture = Fixture(OnlyExpectedErrors)
    fixture.checkers.check_error(RunError(at=START, run="sweep#1", error=error, message="m", expected=expected))
    assert bool(fixture.violations) == result


def static(replicas, **setup):
    return Fixture(StaticNodePoolsKeepReplicas, pools=(ScenarioPool(name="default", replicas=replicas),), **setup)


def test_a_surplus_node_of_a_static_nodepool_is_detected_at_creation():
    """Nodes that are deleted or disrupted may have a replacement beside them."""
    fixture = static(2)
    fixture.claim("c1")
    fixture.claim("c2", "DisruptionReason")
    fixture.claim("c3")
    assert fixture.violations == []
    fixture.claim("c4")
    assert fixture.violations == ["default gets 3 nodes, replicas is 2 (c1, c3, c4)"]


def test_a_surplus_node_is_no_violation_if_its_creation_was_paused():
    """The run counted the others before the pause; at rest there is no surplus."""
    pause = CallFault(site="provision: create NodeClaim", nth=1, kind=FaultKind.PAUSE, seconds=77)
    fixture = static(1, faults=(pause,))
    fixture.claim("c1")
    fixture.claim("c2")
    assert fixture.violations == []
    fixture.checkers.check_at_rest()
    assert fixture.violations == ["default has 2 nodes, replicas is 1 (c1, c2)"]


@pytest.mark.parametrize(("sweep", "violation"), [(True, True), (False, False)])
def test_a_static_nodepool_without_pods_is_filled_by_the_sweep(sweep, violation):
    """No message asks for its nodes."""
    fixture = static(1, sweep=sweep)
    fixture.checkers.check_at_rest()
    assert bool(fixture.violations) == violation


def test_a_static_nodepool_of_the_wrong_size_is_detected_at_rest():
    """Earlier replicas do not matter."""
    fixture = static(1)
    fixture.claim("c1")
    fixture.checkers.check_at_rest()
    assert fixture.violations == []
    fixture.server.patch(NODEPOOL, "default", {"spec": {"replicas": 2}})
    fixture.checkers.check_at_rest()
    assert fixture.violations == ["default has 1 nodes, replicas is 2 (c1)"]


@pytest.mark.parametrize(("node_repair", "objects"), [(True, True), (False, False)])
def test_a_node_unhealthy_for_too_long_is_detected_with_node_repair(node_repair, objects):
    """Ten minutes are tolerated of an accelerator, and some for the sweep."""
    fixture = Fixture(UnhealthyNodesReplaced, node_repair=node_repair)
    fixture.claim("c1")
    fixture.node("c1")
    conditions = [*READY, {"type": "AcceleratedHardwareReady", "status": "False"}]
    fixture.server.patch(NODE, "node-c1", {"status": {"conditions": conditions}}, subresource="status")
    for seconds in (600, 240, 60):
        assert fixture.violations == []
        fixture.clock.advance(seconds)
        fixture.checkers.check_every_minute()
    assert bool(fixture.violations) is objects


def test_an_eviction_of_a_temporarily_protected_pod_is_detected():
    """It is protected until the duration from its start has passed."""
    fixture = Fixture(PodsEvictedAsAllowed)
    leaving_node(fixture, annotations={"karpenter.sh/do-not-disrupt": "1h1m"})
    fixture.as_("terminate").evict("default", "p1")
    assert fixture.violations == ["journeyman/terminate evicted p1, which must not be disrupted"]
    other = Fixture(PodsEvictedAsAllowed)
    leaving_node(other, annotations={"karpenter.sh/do-not-disrupt": "59m"})
    other.as_("terminate").evict("default", "p1")
    assert other.violations == []


@pytest.mark.parametrize(("minutes_apart", "found"), [(4, 1), (6, 0)])
def test_a_thirteenth_nodeclaim_for_a_pod_in_an_hour_is_detected(minutes_apart, found):
    """A pod whose launches fail gets the next one ever later; other pods, and older NodeClaims, do not count."""
    assert (
        created(Fixture(LaunchesPerPodBounded), minutes_apart)
        == ["c12 is NodeClaim 13 for pod default/p in an hour, 12 allowed"] * found
    )


def test_each_offering_may_be_tried_once_where_stock_is_short():
    """Each attempt shows that one more offering is sold out."""
    shortage = OutOfStock(at_seconds=0, type=-1, zone=-1, capacity_type="", seconds=60)
    assert created(Fixture(LaunchesPerPodBounded, operations=(shortage,)), 0) == []


def created(fixture, minutes_apart):
    """Create thirteen NodeClaims for a pod; return the violations."""
    spec = {
        "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"},
        "requirements": [],
    }
    for number in range(13):
        annotations = {"journeyman.dev/planned-pods": f"default/p:1a,default/p{number}:2b"}
        metadata = {"name": f"c{number}", "annotations": annotations}
        fixture.as_("provision").create(NODECLAIM, {"metadata": metadata, "spec": spec})
        fixture.clock.advance(60 * minutes_apart)
    return fixture.violations


@pytest.mark.parametrize(("annotations", "found"), [({}, 1), ({"journeyman.dev/adopted": "aws:///a/c2"}, 0)])
def test_an_adopted_instance_may_exceed_the_replicas(annotations, found):
    """Its pods run on until a later run drains the surplus."""
    fixture = Fixture(StaticNodePoolsKeepReplicas, pools=(ScenarioPool(name="default", replicas=1),))
    fixture.claim("c1")
    reference = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}
    metadata = {"name": "c2", "labels": {"karpenter.sh/nodepool": "default"}, "annotations": annotations}
    body = {"metadata": metadata, "spec": {"nodeClassRef": reference, "requirements": []}}
    fixture.as_("terminate").create(NODECLAIM, body)
    assert len(fixture.violations) == found


# -- lost worlds, lying nodes and broken NodePools -------------------------------------------------------------------


def test_the_third_removal_for_inconsistency_in_an_hour_is_detected():
    """Each instance counts once; those of NodeClaims that were deleted, or that users terminate, do not."""
    fixture = Fixture(RemovalsForInconsistencyBounded)
    lost = [fixture.claim(f"c{n}") for n in range(4)]
    going = fixture.claim("deleted")
    fixture.server.delete(NODECLAIM, "deleted")
    fixture.server.wipe(NODECLAIM)
    fixture.happen("terminate", going)
    fixture.happen("terminate", lost[3], by="human")
    for instance in (lost[0], lost[0], lost[1]):
        fixture.happen("terminate", instance)
    assert fixture.violations == []

    fixture.happen("terminate", lost[2])
    (violation,) = fixture.violations
    assert violation.startswith("aws:///a/c2 is removal 3 for inconsistency in an hour, 2 allowed")


@pytest.mark.parametrize(
    ("states", "found"), [((), 1), (("stopping",), 0), (("stopping", "stopped"), 0), (("stopped", "running"), 1)]
)
def test_the_termination_of_an_instance_that_has_stopped_does_not_count_as_a_removal(states, found):
    """A user stopped it, or the cloud could not build it: its NodeClaim would not have kept it either. It may run again."""
    fixture = Fixture(RemovalsForInconsistencyBounded)
    lost = [fixture.claim(f"c{n}") for n in range(3)]
    fixture.server.wipe(NODECLAIM)
    for state in states:
        fixture.happen("state", replace(lost[0], state=state), by="human")
    for instance in lost:
        fixture.happen("terminate", instance)

    assert len(fixture.violations) == found


def test_removals_count_for_an_hour():
    """Two more are allowed after it."""
    fixture = Fixture(RemovalsForInconsistencyBounded)
    lost = [fixture.claim(f"c{n}") for n in range(4)]
    fixture.server.wipe(NODECLAIM)
    for instance in lost:
        fixture.happen("terminate", instance)
        fixture.clock.advance(2000)

    assert fixture.violations == []


def test_a_tenth_of_a_large_fleet_may_be_removed():
    """Three of thirty instances, but no fourth one."""
    fixture = Fixture(RemovalsForInconsistencyBounded)
    lost = [fixture.claim(f"c{n}") for n in range(30)]
    fixture.server.wipe(NODECLAIM)
    for instance in lost[:3]:
        fixture.happen("terminate", instance)
    assert fixture.violations == []
    fixture.happen("terminate", lost[3])
    assert len(fixture.violations) == 1


def test_the_deletion_of_nodeclaims_whose_node_is_missing_counts_as_well():
    """Their instances run."""
    fixture = Fixture(RemovalsForInconsistencyBounded)
    for n in range(3):
        fixture.claim(f"c{n}", "Registered")
        fixture.as_("terminate").delete(NODECLAIM, f"c{n}")

    assert len(fixture.violations) == 1


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (None, 1),
        ("its NodePool is gone", 0),
        ("it was draining", 0),
        ("another Node lies", 0),
        ("a run deleted it", 0),
        ("a user deleted it", 1),
        ("a user drains it", 0),
    ],
)
def test_an_eviction_from_a_node_that_lost_its_nodeclaim_is_detected(change, found):
    """It could have been adopted, unless its NodePool does not exist, a drain had begun, or two Nodes have its provider id.

    Without its finalizer, a deleted NodeClaim is gone at once; a run deletes it so that its node is drained.
    """
    fixture = Fixture(NodesWithoutClaimKeepPods)
    fixture.claim("c1", "Registered", finalizers=())
    fixture.fleet = [replace(i, tags={**i.tags, "karpenter.sh/nodepool": "default"}) for i in fixture.fleet]
    fixture.node("c1")
    fixture.pod("p1", "node-c1")
    if change == "it was draining":
        fixture.server.patch(NODE, "node-c1", {"spec": {"taints": [TAINT]}})
    if change == "its NodePool is gone":
        fixture.server.wipe(NODEPOOL)
    if change == "another Node lies":
        fixture.server.create(NODE, {"metadata": {"name": "forged"}, "spec": {"providerID": "aws:///a/c1"}})
    if change == "a run deleted it":
        fixture.as_("interrupt").delete(NODECLAIM, "c1")
    if change == "a user deleted it":
        fixture.server.delete(NODECLAIM, "c1")
    fixture.server.wipe(NODECLAIM)
    if change == "a user drains it":
        fixture.server.acting_as("human").patch(NODE, "node-c1", {"spec": {"taints": [TAINT]}})
    fixture.as_("terminate").evict("default", "p1")

    assert len(fixture.violations) == found


@pytest.mark.parametrize(("own", "found"), [(True, 0), (False, 2)])
def test_the_termination_and_the_adoption_of_another_clusters_instance_are_detected(own, found):
    """The tag has the UID of its kube-system."""
    fixture = Fixture(InstancesOfOthersUntouched)
    uid = fixture.server.get(NAMESPACE, "kube-system").metadata.uid if own else "another"
    fixture.claim("c1", launched=False, recorded=False)
    instance = CloudInstance(
        provider_id="aws:///a/c1",
        instance_type="m5.large",
        zone="a",
        capacity_type="on-demand",
        price=0.1,
        state="running",
        launched_at=START,
        tags={"journeyman.dev/cluster-uid": uid},
    )
    fixture.happen("launched", instance)
    fixture.say("c1", "Launched", provider_id="aws:///a/c1", by="terminate")
    fixture.happen("terminate", instance)

    assert len(fixture.violations) == found


@pytest.mark.parametrize(("reason", "cpu", "found"), [("Empty", "100m", 1), ("Underutilized", "500m", 0)])
def test_a_command_for_a_node_that_looks_empty_is_detected(reason, cpu, found):
    """Its pods run on the Node with another name, and they fit on the other machine."""
    fixture = Fixture(CommandsSeeMachines, operations=(ForgeNode(at_seconds=0, node=0),))
    for name in ("c1", "c2"):
        fixture.claim(name, "Registered")
        fixture.node(name)
    fixture.pod("p1", "node-c1", cpu=cpu)
    fixture.command("d1", ["c1"], phase="Proposed", reason=reason)

    assert len(fixture.violations) == found


@pytest.mark.parametrize(("cpu", "lies", "found"), [("1500m", True, 0), ("1900m", True, 1), ("1900m", False, 0)])
def test_a_command_that_counts_on_cpus_that_no_machine_has_is_detected(cpu, lies, found):
    """An m5.large has two CPUs, of which 300m are taken. Without lying nodes the product may know better."""
    operations = (Overstate(at_seconds=0, node=0),) if lies else ()
    fixture = Fixture(CommandsSeeMachines, operations=operations)
    for name in ("c1", "c2"):
        fixture.claim(name, "Registered")
        fixture.node(name)
    fixture.pod("p1", "node-c1", cpu=cpu)
    fixture.pod("p2", "node-c2", cpu="300m")
    fixture.command("d1", ["c1"], phase="Proposed")

    assert len(fixture.violations) == found


def test_a_command_may_count_on_a_machine_whose_claim_a_user_removed():
    """kube-scheduler still binds pods to its node."""
    fixture = Fixture(CommandsSeeMachines, operations=(ForgeNode(at_seconds=0, node=0),))
    for name in ("c1", "c2"):
        fixture.claim(name, "Registered")
        fixture.node(name)
    fixture.server.patch(NODECLAIM, "c2", {"metadata": {"finalizers": None}})
    fixture.server.delete(NODECLAIM, "c2")
    fixture.pod("p1", "node-c1", cpu="900m")
    fixture.command("d1", ["c1"], phase="Proposed")

    assert fixture.violations == []


@pytest.mark.parametrize(
    ("broken", "minutes", "found"), [("refuses", 8, 0), ("refuses", 10, 1), ("never-joins", 10, 0), ("", 30, 0)]
)
def test_a_pod_that_waits_behind_a_broken_nodepool_is_detected(broken, minutes, found):
    """Where nodes never join, it takes twice the registration timeout more to know that."""
    preferred = ScenarioPool(name="broken", weight=50, broken=broken)
    fixture = Fixture(HealthyPoolsServe, pools=(ScenarioPool(name="default"), preferred))
    fixture.pod("p1", "", phase="Pending")
    for _ in range(minutes):
        fixture.checkers.check_every_minute()
        fixture.clock.advance(60)

    assert bool(fixture.violations) == bool(found)


@pytest.mark.parametrize(
    ("operation", "ready", "found"),
    [
        (EndsEarly(at_seconds=0), "True", 0),
        (StopKubelet(at_seconds=0, node=0, seconds=3600), "Unknown", 0),
        (StopKubelet(at_seconds=0, node=0, seconds=3600), "True", 1),
    ],
)
def test_a_pod_may_wait_for_a_node_of_a_healthy_nodepool_that_does_not_get_ready(operation, ready, found):
    """The broken NodePool is not what it waits for, until the kubelet runs again."""
    pools = (ScenarioPool(name="default"), ScenarioPool(name="broken", weight=50, broken="ends"))
    fixture = Fixture(HealthyPoolsServe, pools=pools, operations=(operation,))
    fixture.node("c1")
    conditions = [{"type": "Ready", "status": ready}]
    fixture.server.patch(NODE, "node-c1", {"status": {"conditions": conditions}}, subresource="status")
    fixture.pod("p1", "", phase="Pending")
    for _ in range(10):
        fixture.checkers.check_every_minute()
        fixture.clock.advance(60)

    assert len(fixture.violations) == found
