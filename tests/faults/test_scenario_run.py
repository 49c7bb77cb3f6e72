"""Whole handwritten scenarios with the deployed functions."""

import os
import subprocess
import sys

import msgspec
import pytest

from journeyman.core.api.objects import NODE, NODECLAIM, POD
from journeyman_simulator.deployment_files import ROOT
from journeyman_simulator.faults.fault_scenario import (
    CallFault,
    ConsoleTerminate,
    DeleteClaim,
    Deploy,
    EndsEarly,
    FaultKind,
    FaultScenario,
    FunctionThrottle,
    MessageFault,
    MessageFaultKind,
    NeverJoins,
    OutOfStock,
    RefuseLaunches,
    Scale,
    ScenarioPool,
    ScenarioSetup,
    SetReplicas,
    StripFinalizer,
    Unprotect,
    from_json,
    to_json,
)
from journeyman_simulator.faults.invariants.checkers import InvariantChecker
from journeyman_simulator.faults.operation_generator import empty_nodes_early
from journeyman_simulator.faults.scenario_clouds import CLOUDS
from journeyman_simulator.faults.scenario_run import TOO_MANY_RUNS, run_scenario
from tests.helpers.sampling import aws_and_nightly

SIX = Deploy(at_seconds=0, app="a", replicas=6, cpu_millicores=900)


class Counted(InvariantChecker):
    """Records at rest the numbers of running pods, NodeClaims, nodes, and running and launched instances."""

    name = "counted"

    def __init__(self, view):
        super().__init__(view)
        self.launched = 0

    def check_cloud_event(self, event):
        self.launched += event.kind == "launched"
        return ()

    def check_at_rest(self):
        pods = sum(pod.status.phase == "Running" for pod in self.view.server.list(POD).items)
        claims, nodes = (len(self.view.server.list(kind).items) for kind in (NODECLAIM, NODE))
        instances = sum(instance.runs for instance in self.view.instances())
        yield f"{pods} pods, {claims} claims, {nodes} nodes, {instances} instances of {self.launched}"


def end_of(*operations, faults=(), setup=None):
    """Run a scenario; return (the counts at rest, the result)."""
    result = run_scenario(
        FaultScenario(seed=1, setup=setup or ScenarioSetup(), operations=operations, faults=faults), checkers=[Counted]
    )
    return result.violations[0].what, result


def wrong(kind, site, nth=1, seconds=0.0):
    return CallFault(site=site, nth=nth, kind=kind, seconds=seconds)


def happened(result, text):
    """Return whether an entry of the history contains the text."""
    return any(text in str(entry) for entry in result.history)


def test_a_scenario_without_faults_ends_with_the_needed_nodes():
    """Six pods get nodes; once four are deleted, so are the empty nodes."""
    how, result = end_of(SIX, Scale(at_seconds=100, app="a", replicas=2))
    assert how == "2 pods, 2 claims, 2 nodes, 2 instances of 3"
    assert result.coverage.fired == {}


@pytest.mark.parametrize(
    "kind",
    [FaultKind.FAIL_BEFORE, FaultKind.FAIL_AFTER, FaultKind.THROTTLE, FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER],
)
@pytest.mark.parametrize("cloud", CLOUDS.values(), ids=lambda cloud: cloud.name)
def test_a_failed_launch_ends_like_a_successful_one(cloud, kind):
    """Every NodeClaim has its instance, and no launch is repeated."""
    setup, launch = ScenarioSetup(cloud=cloud.name, types=cloud.large_types), f"provision: {cloud.launch}"
    how, result = end_of(SIX, faults=(wrong(kind, launch, 2),), setup=setup)
    assert how == "6 pods, 3 claims, 3 nodes, 3 instances of 3"
    assert result.coverage.fired == {launch: {kind.value: 1}}


def test_the_run_after_a_crash_starts_cold():
    """Caches are empty; without a crash they are used."""
    site = "provision: ec2 DescribeInstanceTypes"
    _, warm = end_of(SIX)
    _, cold = end_of(SIX, faults=(wrong(FaultKind.CRASH_AFTER, "provision: ec2 CreateFleet"),))
    assert (warm.coverage.calls[site], cold.coverage.calls[site]) == (1, 2)


def test_a_frozen_run_finds_its_lease_taken():
    """It resumes after its Lease and its message's visibility expired, and writes no more."""
    faults = (wrong(FaultKind.PAUSE, "provision: ec2 CreateFleet", 1, 215),)
    how, result = end_of(SIX, faults=faults, setup=ScenarioSetup(thaw=True))
    assert how == "6 pods, 3 claims, 3 nodes, 3 instances of 3"
    went_on = [entry for entry in result.history if entry.who == "provision#1" and entry.at.minute >= 3]
    assert went_on
    assert happened(result, "LeaseLostError")


def test_a_run_paused_beyond_its_timeout_is_killed():
    """Its message is received again."""
    how, result = end_of(SIX, faults=(wrong(FaultKind.PAUSE, "provision: ec2 CreateFleet", 1, 215),))
    assert how == "6 pods, 3 claims, 3 nodes, 3 instances of 3"
    assert not [entry for entry in result.history if entry.who == "provision#1" and entry.at.minute]


@pytest.mark.parametrize("kind", [MessageFaultKind.DROP, MessageFaultKind.DUPLICATE, MessageFaultKind.DELAY])
def test_a_lost_duplicate_or_late_message_changes_nothing_in_the_end(kind):
    """The sweep makes up for a lost one."""
    faults = (
        MessageFault(queue="provision", nth=1, kind=kind, seconds=30),
        MessageFault(queue="requeue", nth=2, kind=kind),
    )
    how, result = end_of(SIX, faults=faults)
    assert how == "6 pods, 3 claims, 3 nodes, 3 instances of 3"
    assert result.coverage.messages == {"provision": {kind.value: 1}, "requeue": {kind.value: 1}}


@pytest.mark.parametrize("kind", [MessageFaultKind.DROP, MessageFaultKind.DUPLICATE, MessageFaultKind.DELAY])
@pytest.mark.parametrize("name", ["alibaba", "huawei"])
def test_a_lost_duplicate_or_late_event_of_ecs_changes_nothing_in_the_end(name, kind):
    """It is passed to the function without a queue; the faults of messages to `interrupt` are those of events."""
    cloud = CLOUDS[name]
    setup = ScenarioSetup(cloud=cloud.name, types=cloud.large_types)
    fault = MessageFault(queue="interrupt", nth=1, kind=kind, seconds=30 * (kind is MessageFaultKind.DELAY))
    how, result = end_of(SIX, ConsoleTerminate(at_seconds=90, node=0), faults=(fault,), setup=setup)
    assert how == "6 pods, 3 claims, 3 nodes, 3 instances of 4"
    assert result.coverage.messages == {"interrupt": {kind.value: 1}}


ON_HUAWEI = ScenarioSetup(cloud="huawei", types=CLOUDS["huawei"].large_types)
WAIT = "delay: functiongraph AsyncInvokeFunction"


@pytest.mark.parametrize("kind", MessageFaultKind)
def test_lost_duplicate_or_late_delayed_messages_change_nothing_in_the_end(kind):
    """FunctionGraph has no delays, so all messages that are due later are lost with one invocation of the function that waits."""
    faults = (MessageFault(queue="delay", nth=1, kind=kind, seconds=30 * (kind is MessageFaultKind.DELAY)),)
    how, result = end_of(SIX, faults=faults, setup=ON_HUAWEI)
    assert how == "6 pods, 3 claims, 3 nodes, 3 instances of 3"
    assert result.coverage.messages == {"delay": {kind.value: 1}}


@pytest.mark.parametrize(
    "kind", [FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER, FaultKind.FAIL_BEFORE, FaultKind.FAIL_AFTER]
)
def test_messages_are_sent_although_the_function_that_waits_with_them_failed(kind):
    """FunctionGraph repeats its invocation; no sweep makes up for it."""
    setup = msgspec.structs.replace(ON_HUAWEI, sweep=False)
    how, result = end_of(SIX, faults=(wrong(kind, WAIT),), setup=setup)
    assert how == "6 pods, 3 claims, 3 nodes, 3 instances of 3"
    assert result.coverage.fired == {WAIT: {kind.value: 1}}


def test_a_second_node_of_a_frozen_run_is_terminated():
    """CreateNode has no client token: the run resumes after another one has created the node of its NodeClaim."""
    setup = msgspec.structs.replace(ON_HUAWEI, thaw=True)
    how, result = end_of(SIX, faults=(wrong(FaultKind.PAUSE, "provision: cce CreateNode", 2, 95),), setup=setup)
    assert how == "6 pods, 3 claims, 3 nodes, 3 instances of 4"
    assert happened(result, "LeaseLostError")


def test_machines_that_never_join_are_replaced():
    """The registration times out, and the pods get another node."""
    how, _ = end_of(SIX, NeverJoins(at_seconds=0))
    assert how == "6 pods, 3 claims, 3 nodes, 3 instances of 4"


def test_an_instance_terminated_in_the_console_is_replaced():
    """Its node is replaced, too."""
    how, _ = end_of(SIX, ConsoleTerminate(at_seconds=90, node=0))
    assert how == "6 pods, 3 claims, 3 nodes, 3 instances of 4"


def test_a_replacement_of_a_rolled_back_command_is_never_launched():
    """A frozen run creates its NodeClaim when it resumes."""
    big, small = (
        Deploy(at_seconds=0, app=app, replicas=1, cpu_millicores=cpu) for app, cpu in (("b", 3000), ("a", 500))
    )
    pool = ScenarioPool(name="default", capacity_types=("on-demand",), policy="WhenEmptyOrUnderutilized")
    how, result = end_of(
        small,
        big,
        Scale(at_seconds=60, app="b", replicas=0),
        faults=(wrong(FaultKind.PAUSE, "consolidate: create NodeClaim", 1, 400),),
        setup=ScenarioSetup(pools=(pool,), thaw=True),
    )
    assert happened(result, "delete NodeClaim")
    assert how == "1 pods, 1 claims, 1 nodes, 1 instances of 2"


def test_drains_are_unblocked_when_faults_end():
    """A budget and do-not-disrupt block a deleted NodeClaim until then."""
    held = Deploy(at_seconds=0, app="a", replicas=6, cpu_millicores=900, min_available=6, do_not_disrupt=True)
    how, result = end_of(held, DeleteClaim(at_seconds=90, claim=0))
    assert how == "6 pods, 3 claims, 3 nodes, 3 instances of 4"
    calm = next(entry.at for entry in result.history if entry.what == "faults end")
    ends = ("evict Pod", "delete Pod", "terminate aws:")
    ended = [entry.at for entry in result.history if entry.what.startswith(ends)]
    assert ended
    assert min(ended) >= calm


def test_pods_run_once_offerings_are_available_again():
    """They return when faults end, at the latest."""
    sold_out = OutOfStock(at_seconds=0, type=-1, zone=-1, capacity_type="", seconds=60)
    how, result = end_of(SIX, sold_out)
    assert how.startswith("6 pods")
    assert happened(result, "OutOfStock")


def test_requeues_suffice_without_a_sweep():
    """The messages of the forwarder and of the steps suffice."""
    how, result = end_of(SIX, setup=ScenarioSetup(sweep=False))
    assert how == "6 pods, 3 claims, 3 nodes, 3 instances of 3"
    assert not happened(result, "sweep#")


def test_a_scenario_may_end_with_an_empty_cluster():
    """Deployments and NodePools are deleted; then the product deletes its NodeClaims, nodes and instances."""
    result = run_scenario(FaultScenario(seed=1, setup=ScenarioSetup(ends_empty=True), operations=(SIX,)))
    assert result.violations == ()
    assert happened(result, "Deployments and NodePools are deleted")


def test_a_violation_ends_the_scenario():
    """The scenario ends immediately."""

    class NoClaims(InvariantChecker):
        name = "no claims"

        def check_write(self, write):
            if write.resource.kind == "NodeClaim":
                yield f"{write.user} wrote {write.name}"

    result = run_scenario(
        FaultScenario(seed=1, operations=(SIX, Scale(at_seconds=60, app="a", replicas=0))), checkers=[NoClaims]
    )
    assert [violation.invariant for violation in result.violations][:1] == ["no claims"]
    assert result.violations[0].what.startswith("journeyman/provision wrote default-")
    assert result.minutes == 0


def test_checkers_see_waiting_messages_and_paused_runs():
    """A paused run is busy."""
    seen = []

    class Looking(InvariantChecker):
        name = "looking"

        def check_every_minute(self):
            seen.append((self.view.active_runs(), {message.step.value for message in self.view.pending_messages()}))
            return ()

    fault = wrong(FaultKind.PAUSE, "provision: ec2 CreateFleet", 1, 100)
    run_scenario(FaultScenario(seed=1, operations=(SIX,), faults=(fault,)), checkers=[Looking])
    assert seen[0][0] == ("provision#1",)
    assert "terminate" in set().union(*(steps for _, steps in seen))

    seen.clear()  # a paused function that waits with messages runs no step
    waiting = (wrong(FaultKind.PAUSE, WAIT, 1, 60), MessageFault(queue="provision", nth=2, kind=MessageFaultKind.DROP))
    scenario = FaultScenario(seed=1, setup=ON_HUAWEI, operations=(SIX,), faults=waiting)
    assert run_scenario(scenario, checkers=[Looking]).coverage.fired == {WAIT: {"pause": 1}}
    assert (seen[0][0], seen[0][1] >= {"provision"}) == ((), True)


def test_scenarios_survive_json():
    """The scenario has every kind of operation and fault."""
    setup = ScenarioSetup(pools=(ScenarioPool(name="a", limit_cpus=8),), sweep=False)
    faults = (
        wrong(FaultKind.PAUSE, "sweep: list Pod", 2, 5),
        MessageFault(queue="requeue", nth=1, kind=MessageFaultKind.DROP),
    )
    scenario = FaultScenario(seed=7, setup=setup, operations=(SIX, NeverJoins(at_seconds=2.5)), faults=faults)
    assert from_json(to_json(scenario)) == scenario


def stormy(cloud):
    pools = (ScenarioPool(name="default", policy="WhenEmptyOrUnderutilized"),)
    return FaultScenario(
        seed=1,
        setup=ScenarioSetup(cloud=cloud.name, pools=pools, daemons=True),
        operations=(
            SIX,
            Deploy(at_seconds=20, app="b", replicas=3, spread_zones=True),
            Scale(at_seconds=120, app="a", replicas=1),
        ),
        faults=(
            wrong(FaultKind.PAUSE, "provision: patch NodeClaim/status", 2, 3),
            wrong(FaultKind.CRASH_AFTER, f"provision: {cloud.launch}", 4),
            wrong(FaultKind.TIMEOUT_AFTER, "consolidate: patch NodeDisruption/status", 1, 20),
            MessageFault(queue="terminate", nth=3, kind=MessageFaultKind.DUPLICATE),
        ),
    )


@pytest.mark.parametrize("name", aws_and_nightly(CLOUDS))
def test_a_scenario_has_the_same_history_in_every_process(tmp_path, name):
    """Every byte of every write is the same for any hash seed."""
    scenario = stormy(CLOUDS[name])
    path = tmp_path / "scenario.json"
    path.write_bytes(to_json(scenario))
    program = (
        "import pathlib, sys\n"
        "from journeyman_simulator.faults.scenario_run import TOO_MANY_RUNS, run_scenario\n"
        "from journeyman_simulator.faults.fault_scenario import from_json\n"
        "print(run_scenario(from_json(pathlib.Path(sys.argv[1]).read_bytes())).digest)\n"
    )
    hashing = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    elsewhere = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        env={**os.environ, "PYTHONHASHSEED": hashing, "PYTHONPATH": str(ROOT / "shared")},
        check=True,
        capture_output=True,
        text=True,
    )
    assert elsewhere.stdout.strip() == run_scenario(scenario).digest


def test_a_scenario_with_too_many_runs_is_ended_with_their_reasons():
    """The violation names the functions and their last triggers."""
    scenario = FaultScenario(seed=1, operations=(Deploy(at_seconds=0, app="a", replicas=6, cpu_millicores=900),))
    result = run_scenario(scenario, max_runs=3)

    (violation,) = result.violations
    assert violation.invariant == TOO_MANY_RUNS
    assert violation.what.startswith("more than 3 runs in 0 seconds: provision 1 times, last for pod default/a-")
    assert result.runs == 4


@pytest.mark.parametrize(("loops", "stops"), [("Allow", False), ("Terminate", False), ("Stopped", True)])
def test_chains_that_lambda_stops_are_continued_by_the_sweep(loops, stops):
    """A drain that a PodDisruptionBudget blocks is polled more often in a minute than Lambda allows a chain to be long."""
    blocked = Deploy(at_seconds=0, app="a", replicas=2, cpu_millicores=900, min_available=2)
    end = Scale(at_seconds=500, app="a", replicas=3)
    setup = ScenarioSetup(recursive_loops=loops, drain_poll_seconds=2)
    counts, result = end_of(blocked, DeleteClaim(at_seconds=200, claim=0), end, setup=setup)

    assert counts.startswith("3 pods")
    assert any("Lambda stopped" in str(entry) for entry in result.history) is stops


@pytest.mark.parametrize("step", ["provision", "terminate", "sweep"])
@pytest.mark.parametrize("cloud", CLOUDS)
def test_throttled_functions_do_their_work_later(cloud, step):
    """Their messages wait in the queues; on AWS their receives count."""
    throttle = FunctionThrottle(step=step, at_seconds=0, seconds=150)
    setup = ScenarioSetup(cloud=cloud, throttles=(throttle,))
    counts, _ = end_of(SIX, DeleteClaim(at_seconds=60, claim=0), setup=setup)

    assert counts.startswith("6 pods")


def test_a_crash_is_counted_by_the_phase_of_each_unfinished_command():
    """A command without a status is proposed; the next write of consolidate says that it is validated."""
    setup = ScenarioSetup(pools=(ScenarioPool(name="default"),))
    crashes = {}
    for site in ("consolidate: create NodeDisruption", "consolidate: patch NodeDisruption/status"):
        fault = CallFault(site=site, nth=1, kind=FaultKind.CRASH_AFTER)
        scenario = FaultScenario(seed=1, setup=setup, operations=empty_nodes_early(), faults=(fault,))
        crashes[site.partition(" ")[2]] = run_scenario(scenario).coverage.crashes
    assert crashes == {
        "create NodeDisruption": {"emptiness": {"Proposed": 1}},
        "patch NodeDisruption/status": {"emptiness": {"Validated": 1}},
    }


@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize(
    "broken",
    [EndsEarly(at_seconds=0, number=100), RefuseLaunches(at_seconds=0, number=5)],
    ids=["ends at boot", "refused"],
)
def test_broken_launches_are_repeated_ever_more_rarely(cloud, broken):
    """One pod waits ten minutes for instances that end at boot, or for launches that the cloud refuses: a handful is launched."""
    pod = Deploy(at_seconds=0, app="a", replicas=1, cpu_millicores=900)
    last = Unprotect(at_seconds=540)  # extends the phase with faults
    found, result = end_of(broken, pod, last, setup=ScenarioSetup(cloud=cloud))

    launched = int(found.rpartition(" ")[2])
    assert found.startswith("1 pods, 1 claims, 1 nodes, 1 instances")
    assert launched <= 8, result


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_static_node_pool_is_given_the_time_its_back_off_takes(cloud):
    """Four refused launches delay the next one by more than the minutes without changes after which a cluster is at rest."""
    pod = Deploy(at_seconds=0, app="a", replicas=1, cpu_millicores=900)
    refused = RefuseLaunches(at_seconds=120, number=4)
    setup = ScenarioSetup(cloud=cloud, pools=(ScenarioPool(name="static", replicas=1),))
    counts, result = end_of(pod, refused, SetReplicas(at_seconds=120, pool=0, replicas=2), setup=setup)

    assert counts == "1 pods, 2 claims, 2 nodes, 2 instances of 2", result.minutes


def test_a_cluster_is_at_rest_with_a_node_that_kubernetes_deleted_before_its_instance_was_adopted():
    """Nothing undoes the deletion of a Node: the finalizer keeps it, and its pods run on."""
    counts, result = end_of(SIX, StripFinalizer(at_seconds=90, claim=0))

    assert counts == "6 pods, 3 claims, 3 nodes, 3 instances of 3"
    assert happened(result, "NodeClaimAdopted")
