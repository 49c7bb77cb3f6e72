"""Bad input, end to end: the application reports each mistake once, skips it, and continues all other work.

The whole deployed application (template, queues, handlers) runs on the in-memory API server and moto, in virtual time.
After each test no NodeClaim and no instance may be left.
"""

import json
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from journeyman.core.api.objects import EC2NODECLASS, NODE, NODECLAIM, NODEPOOL, OFFERING_STATE, is_true
from journeyman_simulator.lambda_functions import InvocationOutcome
from journeyman_simulator.local_aws import LocalAwsDeployment
from journeyman_simulator.local_deployment import ACTOR
from journeyman_simulator.workload_controllers import DEPLOYMENT
from tests.helpers.deployed_application import FEW_FAMILIES, INSTANCE_TYPE, DeployedApplication, SandboxCrashes

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("moto")]

START = datetime(2026, 3, 2, 9, 0, 20, tzinfo=timezone.utc)
SAMPLES = Path(__file__).parents[2] / "events" / "eventbridge"


@pytest.fixture(scope="module")
def deployed() -> Iterator[DeployedApplication]:
    """Deploy the application once for all tests; reading the catalogue takes longer than any of them."""
    logs: list = []
    crashes = SandboxCrashes()
    with LocalAwsDeployment(start=START, families=FEW_FAMILIES, on_log=logs.append) as deployment:
        application = DeployedApplication(deployment, logs, crashes)
        with application.cold():
            yield application


@pytest.fixture
def application(deployed: DeployedApplication) -> Iterator[DeployedApplication]:
    """Return the application with an empty cluster, and check afterwards that it can be emptied."""
    yield deployed
    deployed.crashes.reset()
    deployed.clear()
    assert set(deployed.instances_by_claim().values()) <= {1}
    assert not [
        i for f in ("Provision", "Sweep") for i in deployed.invocations(f) if i.outcome is InvocationOutcome.FAILED
    ]


@pytest.fixture
def usual(application: DeployedApplication) -> DeployedApplication:
    """Return the application with a valid NodeClass and NodePool."""
    application.node_class()
    application.pool()
    return application


def pending(**fields):
    """Return a message as the forwarder sends it."""
    body = {"version": "1", "source": "forwarder", "id": "m-1", "time": START.isoformat(), "cluster": "demo"}
    return body | {"reason": "3 pods are pending"} | fields


def test_invalid_messages_reach_the_dead_letter_queue_and_block_no_other(usual):
    """The valid message of the batch is handled; each invalid one logs one line; later messages do not wait."""
    malformed, unknown = '{"version": "1", "source": "forwarder", "cluster"', json.dumps(pending(cluster="elsewhere"))
    bad = [usual.send(malformed), usual.send(unknown)]
    usual.send(pending())
    usual.deploy("web", 3)

    waited = usual.until_running("web", 3)
    usual.deploy("later", 3, cpu="2")
    waited_later = usual.until_running("later", 3)

    first = next(i for i in usual.invocations("Provision") if bad[0] in [r["messageId"] for r in i.event["Records"]])
    assert len(first.event["Records"]) >= 3
    assert first.response["batchItemFailures"] == []
    assert waited <= 90
    assert waited_later <= 90
    assert usual.take_dead_letters() == [malformed, unknown]
    lines = usual.lines("error")
    assert Counter(line["error"] for line in lines) == {"MalformedEventError": 1, "UnknownClusterError": 1}
    assert all(line["to_do"] for line in lines)


BROKEN = {
    "at noon": {
        "disruption": {"consolidateAfter": "0s", "budgets": [{"nodes": "1", "schedule": "at noon", "duration": "1h"}]}
    },
    "kubernetes.io/hostname": {"requirements": [("kubernetes.io/hostname", "mine")]},
    "many": {"limits": {"cpu": "many"}},
}
"""An invalid schedule, a restricted label and an invalid quantity, each with the message of the NodePool's Event."""


def test_invalid_nodepools_report_why_and_the_others_serve(usual):
    """One condition has the reason and the invalid value; the pods run on nodes of the valid NodePool."""
    for number, spec in enumerate(BROKEN.values()):
        usual.pool(f"broken-{number}", *spec.get("requirements", ()), weight=50, **_without(spec, "requirements"))
    usual.deploy("web", 3)

    usual.until_running("web", 3)

    for number, said in enumerate(BROKEN):
        refused = usual.condition(NODEPOOL, f"broken-{number}", "ValidationSucceeded")
        assert (refused["status"], refused["reason"]) == ("False", "NodePoolValidationFailed")
        assert said in refused["message"]
        assert usual.condition(NODEPOOL, f"broken-{number}", "Ready")["status"] == "False"
        assert said in usual.lines("warning", NodePool={"name": f"broken-{number}"})[0]["message"]
    assert usual.condition(NODEPOOL, "default", "Ready")["status"] == "True"
    assert {claim.metadata.labels["karpenter.sh/nodepool"] for claim in usual.claims()} == {"default"}


def _without(spec, key):
    return {name: value for name, value in spec.items() if name != key}


def test_pod_with_an_invalid_quantity_gets_an_event(usual):
    """The other pods run. An API server rejects such a pod, but one that is stored anyway must not stop provisioning."""
    container = {"name": "c", "image": "pause", "resources": {"requests": {"cpu": "1 core"}}}
    unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "odd", "namespace": "default"},
        "spec": {"containers": [container], "schedulerName": "another"},
        "status": {"phase": "Pending", "conditions": [unschedulable]},
    }
    usual.server.load([body])
    usual.deploy("web", 3)

    usual.until_running("web", 3)
    usual.run(minutes=2)

    (message,) = usual.events("FailedScheduling", "odd")
    assert "'1 core' is not a quantity" in message
    assert usual.running("web") == 3
    assert not usual.lines("error")


def test_unknown_instance_types_are_named_and_block_no_other_pool(usual):
    """A NodePool and a pod that require unknown types, and a NodeClaim and a node whose type no longer exists."""
    usual.pool("dreams", (INSTANCE_TYPE, "m5.imaginary"))
    usual.deploy("web", 3)
    usual.deploy("choosy", 1, nodeSelector={INSTANCE_TYPE: "m5.imaginary"})
    usual.deploy("dreamy", 1, nodeSelector={"karpenter.sh/nodepool": "dreams"})
    usual.until_running("web", 3)
    (node,) = usual.server.list(NODE).items
    gone = {"metadata": {"labels": {INSTANCE_TYPE: "m1.gone"}}}
    for resource, name in ((NODE, node.metadata.name), (NODECLAIM, usual.claims()[0].metadata.name)):
        usual.server.patch(resource, name, gone)
    usual.create_claim("stray", "m1.gone")

    usual.deploy("later", 3, cpu="2")
    usual.until_running("later", 3)
    usual.run(minutes=2)

    assert (usual.running("web"), usual.running("choosy"), usual.running("dreamy")) == (3, 0, 0)
    (choosy,), (dreamy,) = usual.events("FailedScheduling", "choosy"), usual.events("FailedScheduling", "dreamy")
    assert "m5.imaginary" in choosy
    assert "NodePool dreams: nodepool requirements filtered out all available instance types" in dreamy
    assert "m5.imaginary" in usual.events("NoCompatibleInstanceTypes", "dreams")[0]
    assert "stray" not in {claim.metadata.name for claim in usual.claims()}
    assert "instance types" in usual.events("InsufficientCapacityError", "stray")[0]
    assert not usual.lines("error")


def test_failed_launch_is_retried_with_back_off_and_never_doubled(usual):
    """The NodeClaim stays, each attempt logs one line, and the back-off grows; then it gets exactly one instance."""
    codes = ["RequestLimitExceeded", "InternalError", "InternalError"]
    for code in codes:
        usual.aws.fail_next("CreateFleet", code)
    usual.deploy("web", 3)

    events = []
    for reason in dict.fromkeys(codes):
        usual.until(lambda reason=reason: usual.launch_reason() == ("Unknown", reason), reason, minutes=2)
        events.append(usual.clock.now())
    waited = usual.until_running("web", 3)

    (claim,) = usual.claims()
    assert is_true(claim.status.conditions, "Launched")
    assert usual.instances_by_claim()[claim.metadata.name] == 1
    lines = usual.lines(NodeClaim={"name": claim.metadata.name})
    assert [line["code"] for line in lines] == codes
    assert all(
        f"failed to launch NodeClaim {claim.metadata.name}, launching it again" in line["message"] for line in lines
    )
    assert events[1] - events[0] >= timedelta(seconds=5)
    assert waited <= 120


def test_throttled_cold_start_requeues_the_step(usual):
    """DescribeInstanceTypes fails in a cold process; the pods run once AWS responds again."""
    with usual.cold():
        usual.aws.fail_next("DescribeInstanceTypes", "RequestLimitExceeded", 1)
        usual.deploy("web", 3)
        waited = usual.until_running("web", 3)

    throttled = [line for line in usual.lines("warning") if "DescribeInstanceTypes" in json.dumps(line)]
    assert len(throttled) == 1
    assert waited <= 65  # a retry after the throttling, the boot, and the nomination window


def test_unavailable_offering_is_recorded_and_another_one_used(usual):
    """The OfferingState records it, so that later runs skip it."""
    cheaper, dearer = "c5.xlarge", "m5.xlarge"
    usual.pool("default", (INSTANCE_TYPE, cheaper, dearer), ("karpenter.sh/capacity-type", "on-demand"))
    for zone in usual.zones:
        usual.aws.out_of_stock(cheaper, zone, "on-demand", usual.clock.now() + timedelta(hours=1))
    usual.deploy("web", 3)

    waited = usual.until_running("web", 3)

    assert waited <= 75
    (node,) = usual.server.list(NODE).items
    assert node.metadata.labels[INSTANCE_TYPE] == dearer
    (state,) = usual.server.list(OFFERING_STATE).items
    avoided = state["status"]["unavailable"]
    assert {o["instanceType"] for o in avoided} == {cheaper}
    assert not usual.lines("error")


def test_pods_wait_with_a_reason_until_offerings_are_available_again(usual):
    """The pod gets an Event about unavailable offerings; no instance and no NodeClaim is left until capacity returns."""
    types = ["m5.large", "c5.large"]
    usual.pool("default", (INSTANCE_TYPE, *types))
    until = usual.clock.now() + timedelta(minutes=4)
    for name in types:
        for zone in usual.zones:
            for capacity_type in ("spot", "on-demand"):
                usual.aws.out_of_stock(name, zone, capacity_type, until)
    usual.deploy("web", 1)

    usual.run(minutes=3)
    events = usual.events("FailedScheduling", "web")
    assert usual.running("web") == 0
    assert not usual.deployment.leftovers()
    usual.run(minutes=1)
    waited = usual.until_running("web", 1, minutes=6)

    assert "out of stock until" in events[0]
    assert "Smallest change: wait until" in events[0]
    assert waited <= 360  # retries after three minutes and six minutes later; capacity returns at four


def test_notices_about_foreign_instances_are_only_counted(usual):
    """Their messages are acknowledged and counted; the function logs no error and writes nothing."""
    usual.deploy("web", 1)
    usual.until_running("web", 1)
    usual.run(minutes=1)
    writes: list = []
    usual.server.on_write(lambda write: writes.append(write) if write.user == ACTOR else None)
    before = len(usual.invocations("Interrupt"))

    for sample in ("ec2-spot-interruption/terminate", "ec2-state-change/terminated"):
        event = json.loads((SAMPLES / f"{sample}.json").read_text())
        usual.send(event, queue="Interrupt")
    usual.world.settle()

    (invocation,) = usual.invocations("Interrupt")[before:]
    assert len(invocation.event["Records"]) == 2
    assert invocation.outcome is InvocationOutcome.SUCCEEDED
    assert invocation.response == {"batchItemFailures": []}
    assert not writes
    assert not usual.lines()
    assert len([x for x in usual.lines("info", "debug", controller="interrupt") if "not ours" in x["message"]]) == 2
    assert usual.running("web") == 1


def test_selectors_without_a_match_are_reported_until_corrected(application):
    """NodeClass, NodePool and pods report the reason; the sweep notices the corrected NodeClass by itself."""
    application.node_class(subnets="nowhere")
    application.pool()
    application.deploy("web", 3)

    application.run(minutes=3)

    lacking = application.condition(EC2NODECLASS, "default", "SubnetsReady")
    assert (lacking["status"], lacking["reason"]) == ("False", "SubnetsNotFound")
    assert application.condition(NODEPOOL, "default", "NodeClassReady")["status"] == "False"
    assert lacking["message"] in application.condition(NODEPOOL, "default", "NodeClassReady")["message"]
    events = application.events("FailedScheduling", "web")
    assert len(events) == 3
    assert f"EC2NodeClass default is not ready: SubnetsReady: {lacking['message']}" in events[0]
    assert not application.claims()

    right = [{"tags": {"karpenter.sh/discovery": "demo"}}]
    application.server.patch(EC2NODECLASS, "default", {"spec": {"subnetSelectorTerms": right}})
    waited = application.until_running("web", 3)

    assert waited <= 120
    assert application.condition(NODEPOOL, "default", "Ready")["status"] == "True"
    assert not application.lines("error")


DEATHS = {
    "opening": (("before", "create NodeClaim"), ("before", "CreateFleet"), ("after", "CreateFleet")),
    "joining": (("after", "patch NodeClaim"), ("before", "patch Node"), ("after", "patch Node")),
    "reporting": (("before", "SendMessageBatch"), ("after", "create Event"), ("before", "patch NodePool")),
    "leaving": (("after", "delete NodeClaim"), ("before", "TerminateInstances"), ("after", "TerminateInstances")),
}


@pytest.mark.parametrize("deaths", DEATHS.values(), ids=DEATHS)
def test_crashed_runs_leave_no_duplicates_and_no_leftovers(usual, deaths):
    """From zero to running pods and back: one NodeClaim, one instance, nothing left, and no requeue message."""
    functions = usual.deployment.stack.functions
    before = {name: len(function.invocations) for name, function in functions.items()}
    usual.crashes.reset(*deaths)

    usual.deploy("web", 3)
    usual.until_running("web", 3, minutes=10)
    claims = usual.claims()
    usual.server.patch(DEPLOYMENT, "web", {"spec": {"replicas": 0}}, namespace="default")
    usual.until(lambda: not usual.claims() and not usual.deployment.leftovers(), "an empty cluster", minutes=20)

    ends = [run.outcome for name, function in functions.items() for run in function.invocations[before[name] :]]
    assert ends.count(InvocationOutcome.CRASHED) == len(deaths)
    assert [usual.instances_by_claim()[claim.metadata.name] for claim in claims] == [1]
    assert not usual.server.list(NODE).items
