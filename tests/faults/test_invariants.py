"""The checkers: each is seen to object to a breach made by hand, and to nothing beside it."""

import json
from datetime import datetime, timezone
from pathlib import Path

import msgspec
import pytest

from journeyman.core.api.objects import NODE, NODE_DISRUPTION, NODECLAIM, NODEPOOL, PDB, POD
from journeyman.core.plan import Step
from journeyman_simulator.apiserver import ApiServer
from journeyman_simulator.apiserver.server import Write
from journeyman_simulator.clock import VirtualClock
from journeyman_simulator.faults.fault_scenario import (
    CallFault,
    FaultKind,
    FaultScenario,
    ScenarioBudget,
    ScenarioPool,
    ScenarioSetup,
)
from journeyman_simulator.faults.invariants import ALL_CHECKERS
from journeyman_simulator.faults.invariants.checkers import InvariantCheckers
from journeyman_simulator.faults.invariants.disruption_invariants import (
    ConsolidationLowersPrice,
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
    StaticNodePoolsKeepReplicas,
)
from journeyman_simulator.faults.invariants.pod_invariants import PodsEvictedAsAllowed, SchedulablePodsRun
from journeyman_simulator.faults.invariants.progress_invariants import (
    MOST_RECEIVES,
    NothingStuck,
    OnlyExpectedErrors,
    UnfinishedWorkHasARequeue,
)
from journeyman_simulator.faults.manifests import initial_manifests
from journeyman_simulator.faults.scenario_view import CloudEvent, CloudInstance, RunError, WaitingMessage

START = datetime(2026, 1, 5, 12, tzinfo=timezone.utc)
TAINT = {"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}
READY = [{"type": "Ready", "status": "True"}]
TYPES = ("m5.large", "m5.xlarge")


class Fixture:
    """A scene that is put up by hand: a real API server, and whatever else is said."""

    def __init__(self, invariant, **setup):
        faults = setup.pop("faults", ())
        self.scenario = FaultScenario(seed=0, setup=ScenarioSetup(types=TYPES, **setup), faults=faults)
        self.clock = VirtualClock(START)
        self.server = ApiServer(self.clock)
        self.server.load(initial_manifests(self.scenario.setup))
        self.quiet = False
        self.fleet, self.messages, self.letters = [], [], []
        self.checkers = InvariantCheckers(self, [invariant])
        self.server.on_write(self.checkers.check_write)

    def instances(self):
        return tuple(self.fleet)

    def waiting(self):
        return tuple(self.messages)

    def busy(self):
        return ()

    def dead_letters(self):
        return tuple(self.letters)

    @property
    def violations(self):
        return [violation.what for violation in self.checkers.violations]

    def as_(self, step):
        return self.server.acting_as(f"journeyman/{step}")

    def claim(self, name, *true, command="", grace=None, finalizers=("karpenter.sh/termination",), launched=True):
        """A claim whose conditions of these types are True, and its instance."""
        metadata = {"name": name, "labels": {"karpenter.sh/nodepool": "default"}, "finalizers": list(finalizers)}
        if command:
            metadata["annotations"] = {"journeyman.dev/node-disruption": command}
        reference = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}
        spec = {"nodeClassRef": reference, "requirements": []}
        if grace:
            spec["terminationGracePeriod"] = grace
        self.as_("provision").create(NODECLAIM, {"metadata": metadata, "spec": spec})
        self.say(name, *true, provider_id=f"aws:///a/{name}")
        return self.launch(name) if launched else None

    def say(self, name, *true, provider_id="", by="provision"):
        """These conditions are True from now on, and no others."""
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

    def node(self, claim, *, taints=()):
        body = {
            "metadata": {"name": f"node-{claim}", "finalizers": ["karpenter.sh/termination"]},
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

    def command(self, name, candidates, replacements=(), phase="Executing", reason="Underutilized"):
        body = {
            "metadata": {"name": name},
            "spec": {
                "reason": reason,
                "decision": "replace" if replacements else "delete",
                "method": "single-node",
                "candidates": [{"nodeClaim": c} for c in candidates],
                "replacements": [{"name": r} for r in replacements],
            },
        }
        self.as_("consolidate").create(NODE_DISRUPTION, body)
        self.as_("consolidate").patch(NODE_DISRUPTION, name, {"status": {"phase": phase}}, subresource="status")


def leaving_node(stage, *, annotations=None, **claim):
    """A claim on its way out, its tainted node, and a pod on it."""
    instance = stage.claim("c1", "Registered", **claim)
    stage.node("c1", taints=[TAINT])
    stage.pod("p1", "node-c1", annotations=annotations)
    stage.as_("terminate").delete(NODECLAIM, "c1")
    return instance


def test_there_are_fourteen_rules_of_different_names():
    """Two of them tell of what is stuck: one under way, one at rest."""
    assert len({*ALL_CHECKERS}) == 14
    assert all(invariant.name for invariant in ALL_CHECKERS)


def test_a_second_instance_of_one_claim_is_seen():
    """By the UID it is tagged with, whatever became of the first."""
    stage = Fixture(OneInstancePerNodeClaim)
    stage.claim("c1")
    assert stage.violations == []
    stage.launch("c1", suffix="-again")
    assert stage.violations == ["aws:///a/c1-again is instance 2 of NodeClaim c1, by journeyman/provision"]


def test_an_instance_without_a_claim_is_seen_at_rest_and_after_ten_minutes():
    """In the storm there is time to find it."""
    stage = Fixture(NoOrphanedInstance)
    stage.claim("c1", finalizers=())
    stage.server.delete(NODECLAIM, "c1")
    stage.checkers.check_every_minute()
    stage.clock.advance(600)
    stage.checkers.check_every_minute()
    assert stage.violations == []
    stage.clock.advance(60)
    stage.checkers.check_every_minute()
    stage.checkers.check_at_rest()
    assert stage.violations == [
        "aws:///a/c1 has run without a NodeClaim since 12:00:00",
        "aws:///a/c1 (c1) runs without a NodeClaim",
    ]


def test_a_claim_without_instance_node_or_finalizer_is_seen_at_rest():
    """One to one to one."""
    stage = Fixture(NoOrphanedInstance)
    stage.claim("good")
    stage.node("good")
    stage.claim("homeless", launched=False)
    stage.claim("nodeless", finalizers=())
    stage.checkers.check_at_rest()
    assert stage.violations == [
        "NodeClaim homeless has no running instance (aws:///a/homeless)",
        "NodeClaim nodeless has no Node",
        "NodeClaim nodeless has no termination finalizer",
    ]


def test_an_eviction_against_a_budget_is_seen_even_if_a_server_lets_it_pass():
    """The checker counts healthy pods itself."""
    stage = Fixture(PodsEvictedAsAllowed)
    leaving_node(stage)
    budget = {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}}
    stage.server.create(PDB, {"metadata": {"name": "b"}, "spec": budget}, namespace="default")
    evicted = Write(
        verb="evict",
        resource=POD,
        namespace="default",
        name="p1",
        subresource="eviction",
        body={},
        result=msgspec.to_builtins(stage.server.get(POD, "p1", namespace="default")),
        version=1,
        user="journeyman/terminate",
    )
    stage.checkers.check_write(evicted)
    assert stage.violations == ["journeyman/terminate evicted p1 against PodDisruptionBudget b"]


def test_an_eviction_of_a_protected_pod_is_seen():
    """Not one of a pod that anybody may disrupt."""
    stage = Fixture(PodsEvictedAsAllowed)
    leaving_node(stage, annotations={"karpenter.sh/do-not-disrupt": "true"})
    stage.pod("free", "node-c1")
    stage.as_("terminate").evict("default", "free")
    assert stage.violations == []
    stage.as_("terminate").evict("default", "p1")
    assert stage.violations == ["journeyman/terminate evicted p1, which must not be disrupted"]


def test_a_protection_that_a_late_run_cannot_know_of_is_no_breach():
    """A run that stood still for a minute read the pod before that."""
    pause = CallFault(site="terminate: evict Pod", nth=1, kind=FaultKind.PAUSE, seconds=60)
    stage = Fixture(PodsEvictedAsAllowed, faults=(pause,))
    leaving_node(stage, annotations={"karpenter.sh/do-not-disrupt": "true"})
    stage.clock.advance(59)
    stage.as_("terminate").evict("default", "p1")
    assert stage.violations == []


def test_an_eviction_from_a_node_that_stays_is_seen():
    """Nobody has deleted it or its claim."""
    stage = Fixture(PodsEvictedAsAllowed)
    stage.claim("c1")
    stage.node("c1")
    stage.pod("p1", "node-c1")
    stage.as_("terminate").evict("default", "p1")
    assert stage.violations == ["journeyman/terminate evicted p1 from node-c1, which is not disrupted"]


@pytest.mark.parametrize(("seconds", "violation"), [(59, True), (60, False)])
def test_force_before_the_nodes_end_is_seen(seconds, violation):
    """Ninety seconds from the claim's deletion, less the thirty that the pod wants."""
    stage = Fixture(PodsEvictedAsAllowed)
    leaving_node(stage, grace="90s")
    stage.clock.advance(seconds - 1)
    stage.as_("terminate").delete(POD, "p1", namespace="default", grace_period_seconds=1)
    assert bool(stage.violations) == violation


def test_an_instance_that_is_ended_under_its_pods_is_seen():
    """Once they are gone it may be."""
    stage = Fixture(InstancesDrainedFirst)
    instance = leaving_node(stage)
    stage.happen("terminate", instance, by="someone")
    assert stage.violations == []
    stage.happen("terminate", instance)
    assert stage.violations == ["journeyman/terminate terminated aws:///a/c1 (c1) with running pods p1"]
    stage.server.delete(POD, "p1", namespace="default", grace_period_seconds=0)
    stage.happen("terminate", instance)
    assert len(stage.violations) == 1


@pytest.mark.parametrize(
    ("nodes", "taken", "violation"), [("1", 1, False), ("1", 2, True), ("50%", 2, False), ("30%", 2, True)]
)
def test_more_nodes_taken_than_the_budget_allows_are_seen(nodes, taken, violation):
    """Of three nodes; shares are rounded up."""
    stage = Fixture(
        DisruptionBudgetsHold, pools=(ScenarioPool(name="default", budgets=(ScenarioBudget(nodes=nodes),)),)
    )
    names = ("c1", "c2", "c3")
    for name in names:
        stage.claim(name, "Initialized")
    for name in names[:taken]:
        stage.say(name, "Initialized", "DisruptionReason", by="consolidate")
    assert bool(stage.violations) == violation


def test_a_budget_of_another_reason_counts_for_nothing():
    """Drift may take none, what is empty may go."""
    budget = ScenarioBudget(nodes="0", reasons=("Drifted",))
    stage = Fixture(DisruptionBudgetsHold, pools=(ScenarioPool(name="default", budgets=(budget,)),))
    stage.claim("c1", "Initialized")
    stage.say("c1", "Initialized", "DisruptionReason", by="consolidate")
    assert stage.violations == []


def test_a_launch_beyond_the_limit_is_seen_unless_the_other_node_goes():
    """Two and two vCPUs of three; one that is on its way out does not count."""
    stage = Fixture(NodePoolLimitsHold, pools=(ScenarioPool(name="default", limit_cpus=3),))
    stage.claim("c1", "Registered")
    stage.as_("terminate").delete(NODECLAIM, "c1")
    stage.claim("c2", "Registered")
    assert stage.violations == []
    stage.claim("c3")
    assert stage.violations == ["default has 4 vCPUs with m5.large c3, the limit is 3"]


def test_a_candidate_that_goes_before_its_replacement_is_ready_is_seen():
    """And one that no command takes any more."""
    stage = Fixture(ReplacementsInitializedFirst)
    for name in ("old", "new", "other"):
        stage.claim(name, "Launched")
    stage.claim("withdrawn")
    stage.command("d", ["old"], ["new"])
    stage.as_("consolidate").delete(NODECLAIM, "withdrawn")
    stage.as_("consolidate").delete(NODECLAIM, "old")
    stage.as_("consolidate").delete(NODECLAIM, "other")
    assert stage.violations == [
        "NodeClaim old was deleted before new of d was initialized",
        "NodeClaim other was deleted, and no executing command has it as candidate",
    ]


def test_a_candidate_may_go_once_its_replacement_was_ready():
    """Whatever the replacement is by then."""
    stage = Fixture(ReplacementsInitializedFirst)
    stage.claim("old", "Launched")
    stage.claim("new", "Initialized")
    stage.say("new")
    stage.command("d", ["old"], ["new"])
    stage.as_("consolidate").delete(NODECLAIM, "old")
    assert stage.violations == []


@pytest.mark.parametrize(
    ("reason", "price", "violation"),
    [("Underutilized", 0.1, True), ("Underutilized", 0.09, False), ("Drifted", 0.2, False)],
)
def test_a_replacement_that_costs_as_much_is_seen(reason, price, violation):
    """Drift may cost more, consolidation may not."""
    stage = Fixture(ConsolidationLowersPrice)
    stage.claim("old")
    stage.command("d", ["old"], ["new"], reason=reason)
    stage.claim("new", command="d", launched=False)
    stage.launch("new", price=price)
    assert bool(stage.violations) == violation


@pytest.mark.parametrize(
    ("limit", "cpu", "result"), [(0, "1500m", True), (3, "1500m", False), (0, "3900m", False), (0, "3000m", True)]
)
def test_a_pod_that_would_fit_and_does_not_run_is_seen(limit, cpu, result):
    """Limits that are used up and pods that are too large are excuses."""
    stage = Fixture(SchedulablePodsRun, pools=(ScenarioPool(name="default", limit_cpus=limit),))
    stage.claim("c1")
    stage.pod("p1", "", cpu=cpu, phase="Pending")
    stage.checkers.check_at_rest()
    assert bool(stage.violations) == result


@pytest.mark.parametrize(
    ("sweep", "minutes", "result"), [(True, 4, False), (True, 5, True), (False, 0, False), (False, 1, True)]
)
def test_an_unfinished_claim_that_nobody_is_told_of_is_seen(sweep, minutes, result):
    """The sweep has some minutes to find it; where there is none a message must be there."""
    stage = Fixture(UnfinishedWorkHasARequeue, sweep=sweep)
    stage.claim("c1")
    for _ in range(minutes + 1):
        stage.checkers.check_every_minute()
        stage.clock.advance(60)
    assert bool(stage.violations) == result


def test_a_message_on_its_way_is_enough():
    """To the right step."""
    stage = Fixture(UnfinishedWorkHasARequeue, sweep=False)
    stage.claim("c1")
    stage.messages = [WaitingMessage(step=Step.PROVISION, at=START)]
    stage.checkers.check_every_minute()
    stage.clock.advance(60)
    stage.checkers.check_every_minute()
    assert stage.violations == []


def test_marks_and_messages_that_are_left_behind_are_seen():
    """A taint, a reason, a dead letter."""
    stage = Fixture(NothingStuck)
    stage.claim("c1", "DisruptionReason")
    stage.node("c1", taints=[TAINT])
    stage.letters = ["{}"]
    stage.checkers.check_at_rest()
    assert stage.violations == [
        "NodeClaim c1 carries a DisruptionReason, without a command",
        "Node node-c1 is tainted, and is not replaced",
        "a message is in a dead-letter queue: {}",
    ]


@pytest.mark.parametrize(("dying", "step", "seen"), [(4, "terminate", 0), (3, "terminate", 1), (4, "provision", 1)])
def test_a_message_may_be_given_up_if_each_run_that_had_it_came_to_nothing(dying, step, seen):
    """So often as it is handed out, and in its own step."""
    stage = Fixture(NothingStuck)
    deaths = (
        CallFault(site="terminate: evict Pod", nth=nth, kind=FaultKind.CRASH_BEFORE) for nth in range(1, dying + 1)
    )
    stage.scenario = msgspec.structs.replace(stage.scenario, faults=tuple(deaths))
    stage.letters = [json.dumps({"step": step})]
    stage.checkers.check_at_rest()
    assert len(stage.violations) == seen


def test_a_message_is_handed_out_as_often_as_the_template_says():
    """Else the checker would count on others."""
    template = (Path(__file__).parents[2] / "template.yaml").read_text()
    assert template.count(f"maxReceiveCount: {MOST_RECEIVES}") == template.count("maxReceiveCount: ")


@pytest.mark.parametrize(
    ("error", "expected", "result"),
    [("KeyError", False, True), ("ConflictError", True, False), ("InvariantError", True, True)],
)
def test_errors_that_are_not_foreseen_are_seen(error, expected, result):
    """A plan that its own check refuses is never foreseen."""
    stage = Fixture(OnlyExpectedErrors)
    stage.checkers.check_error(RunError(at=START, run="sweep#1", error=error, message="m", expected=expected))
    assert bool(stage.violations) == result


def static(replicas):
    return Fixture(StaticNodePoolsKeepReplicas, pools=(ScenarioPool(name="default", replicas=replicas),))


def test_a_node_too_many_for_a_static_pool_is_seen_as_it_is_opened():
    """One that is leaving, or that a command takes, may have its successor beside it."""
    stage = static(2)
    stage.claim("c1")
    stage.claim("c2", "DisruptionReason")
    stage.claim("c3")
    assert stage.violations == []
    stage.claim("c4")
    assert stage.violations == ["default gets 3 nodes, replicas is 2 (c1, c3, c4)"]


def test_a_static_pool_that_is_not_as_large_as_it_asks_is_seen_at_rest():
    """Whatever it asked for before."""
    stage = static(1)
    stage.claim("c1")
    stage.checkers.check_at_rest()
    assert stage.violations == []
    stage.server.patch(NODEPOOL, "default", {"spec": {"replicas": 2}})
    stage.checkers.check_at_rest()
    assert stage.violations == ["default has 1 nodes, replicas is 2 (c1)"]


@pytest.mark.parametrize(("node_repair", "objects"), [(True, True), (False, False)])
def test_a_node_that_is_ill_for_too_long_is_seen_where_nodes_are_repaired(node_repair, objects):
    """Ten minutes are tolerated of an accelerator, and the sweep needs some to find it."""
    stage = Fixture(UnhealthyNodesReplaced, node_repair=node_repair)
    stage.claim("c1")
    stage.node("c1")
    ill = [*READY, {"type": "AcceleratedHardwareReady", "status": "False"}]
    stage.server.patch(NODE, "node-c1", {"status": {"conditions": ill}}, subresource="status")
    for seconds in (600, 240, 60):
        assert stage.violations == []
        stage.clock.advance(seconds)
        stage.checkers.check_every_minute()
    assert bool(stage.violations) is objects


def test_an_eviction_of_a_pod_that_is_protected_for_some_time_yet_is_seen():
    """From its start on; afterwards it may go."""
    stage = Fixture(PodsEvictedAsAllowed)
    leaving_node(stage, annotations={"karpenter.sh/do-not-disrupt": "1h1m"})
    stage.as_("terminate").evict("default", "p1")
    assert stage.violations == ["journeyman/terminate evicted p1, which must not be disrupted"]
    other = Fixture(PodsEvictedAsAllowed)
    leaving_node(other, annotations={"karpenter.sh/do-not-disrupt": "59m"})
    other.as_("terminate").evict("default", "p1")
    assert other.violations == []
