"""Each kind of call fault, at the API server and at the cloud."""

from datetime import datetime, timedelta, timezone

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError, ReadTimeoutError

from journeyman.cloud.alibaba.open_api import ECS, ApiCall, OpenApiError
from journeyman.cloud.alibaba.smq_queue import SmqQueue
from journeyman.cloud.huawei.function_queue import FunctionQueue
from journeyman.cloud.huawei.rest_api import CCE, RestApiError, RestCall
from journeyman.core.api.objects import LEASE, NODE
from journeyman.core.plan import Step
from journeyman.errors import (
    CloudUnavailableError,
    ConflictError,
    KubeUnavailableError,
    NotFoundError,
    RateLimitedError,
    TooManyRequestsError,
)
from journeyman.ports import Message
from journeyman_simulator.alibaba_account.alibaba_account import AlibabaAccount, AlibabaClient
from journeyman_simulator.alibaba_account.smq import InProcessSmq, SimulatedSmq
from journeyman_simulator.apiserver import ApiServer
from journeyman_simulator.clock import VirtualClock
from journeyman_simulator.faults.alibaba_cloud import FaultyOpenApi, FaultySmq
from journeyman_simulator.faults.aws_cloud import FaultyClient
from journeyman_simulator.faults.call_sites import FaultCoverage, kinds_of
from journeyman_simulator.faults.cooperative_scheduler import CooperativeScheduler
from journeyman_simulator.faults.fault_injection import (
    FaultInjector,
    FunctionRun,
    ProcessCrashed,
    current_name,
    running,
)
from journeyman_simulator.faults.fault_scenario import CallFault, FaultKind
from journeyman_simulator.faults.faulty_adapters import TOUCHED, FaultyStore
from journeyman_simulator.faults.history import History
from journeyman_simulator.faults.huawei_cloud import FaultyRestApi
from journeyman_simulator.huawei_account.huawei_account import PROJECT_ID, HuaweiAccount, HuaweiClient
from journeyman_simulator.in_process_account.account import InProcessAccount
from journeyman_simulator.world import World

START = datetime(2026, 1, 5, 12, tzinfo=timezone.utc)
MINUTE = timedelta(minutes=1)


class Fixture:
    """A function's connections with injected faults, and one run of it."""

    def __init__(self, *faults, thaw=False):
        self.clock = VirtualClock(START)
        self.server = ApiServer(self.clock)
        self.account = InProcessAccount(self.clock)
        self.account.seed()
        self.coverage = FaultCoverage()
        self.history = History(self.clock, current_name)
        self.server.on_write(self.history.on_write)
        self.scheduler = CooperativeScheduler(self.clock)
        self.faults = FaultInjector(
            faults,
            clock=self.clock,
            scheduler=self.scheduler,
            coverage=self.coverage,
            on_fault=self.history.record,
            thaw=thaw,
        )
        self.store = FaultyStore(self.server, "provision", self.faults, self.history.version_at)
        self.ec2 = FaultyClient(self.account.client("ec2"), "ec2", "provision", self.faults)
        self.run = FunctionRun(step="provision", serial=1, ends_at=START + MINUTE)

    def do(self, call):
        """Return the outcome of a call inside the run."""
        with running(self.run):
            return call()

    def create(self, name="n"):
        return self.do(lambda: self.store.create(NODE, {"metadata": {"name": name}}))

    def nodes(self):
        return [node.metadata.name for node in self.server.list(NODE).items]


class AlibabaFixture:
    """A function's clients of Alibaba Cloud with injected faults, and one run of it."""

    def __init__(self, *faults):
        self.fixture = Fixture(*faults)
        self.account = AlibabaAccount(self.fixture.clock)
        self.account.seed()
        self.smq = SimulatedSmq(self.fixture.clock)
        self.smq.create("terminate")
        self.api = FaultyOpenApi(AlibabaClient(self.account, "me", None), "provision", self.fixture.faults)
        smq = FaultySmq(InProcessSmq(self.smq), "provision", self.fixture.faults)
        queues = {Step.TERMINATE: "terminate"}
        self.queue = SmqQueue(smq, self.fixture.clock, queues=queues, dead_letter_queue="dead")

    def launch(self):
        return self.account.instances.launch(
            instance_type="ecs.g7.large",
            vswitch_id=next(iter(self.account.network.vswitches)),
            image_id=next(iter(self.account.images.known)),
            security_groups=(),
            spot_strategy="NoSpot",
            tags={},
            settings={},
        )

    def call(self, action, **parameters):
        return self.fixture.do(lambda: self.api(ApiCall(service=ECS, action=action, parameters=parameters)))

    def send(self, message):
        self.fixture.do(lambda: self.queue.send([message]))


class HuaweiFixture:
    """A function's client of Huawei Cloud with injected faults, and one run of it."""

    def __init__(self, *faults):
        self.fixture = Fixture(*faults)
        self.account = HuaweiAccount(self.fixture.clock)
        self.cluster_id = self.account.seed().cluster_id
        self.invoked = []
        self.account.async_invocations = lambda urn, body: self.invoked.append((urn, body)) or "request"
        self.api = FaultyRestApi(HuaweiClient(self.account, "me", None), "provision", self.fixture.faults)
        functions = {Step.TERMINATE: "terminate"}
        self.queue = FunctionQueue(
            self.api, self.fixture.clock, project_id=PROJECT_ID, functions=functions, delay_function="delay"
        )

    def nodes(self):
        path = f"/api/v3/projects/{PROJECT_ID}/clusters/{self.cluster_id}/nodes"
        call = RestCall(service=CCE, operation="ListNodes", method="GET", path=path)
        return [node["metadata"]["name"] for node in self.fixture.do(lambda: self.api(call))["items"]]

    def create(self):
        path = f"/api/v3/projects/{PROJECT_ID}/clusters/{self.cluster_id}/nodes"
        spec = {
            "flavor": "c9.large.4",
            "az": "cn-north-4a",
            "os": "Huawei Cloud EulerOS 2.0",
            "login": {"sshKey": "KeyPair-demo"},
            "count": 1,
            "billingMode": 0,
            "rootVolume": {"size": 40, "volumetype": "SSD"},
            "dataVolumes": [{"size": 100, "volumetype": "SSD"}],
        }
        body = {"kind": "Node", "apiVersion": "v3", "metadata": {"name": "n"}, "spec": spec}
        call = RestCall(service=CCE, operation="CreateNode", method="POST", path=path, body=body)
        return self.fixture.do(lambda: self.api(call))

    def send(self, message):
        self.fixture.do(lambda: self.queue.send([message]))


def wrong(kind, site="provision: create Node", nth=1, seconds=0.0):
    return CallFault(site=site, nth=nth, kind=kind, seconds=seconds)


@pytest.mark.parametrize(
    ("kind", "error", "done"),
    [
        (FaultKind.FAIL_BEFORE, KubeUnavailableError, False),
        (FaultKind.FAIL_AFTER, KubeUnavailableError, True),
        (FaultKind.THROTTLE, TooManyRequestsError, False),
        (FaultKind.CRASH_BEFORE, ProcessCrashed, False),
        (FaultKind.CRASH_AFTER, ProcessCrashed, True),
    ],
)
def test_a_write_fails_before_or_after_its_effect(kind, error, done):
    """The caller sees an error in either case."""
    fixture = Fixture(wrong(kind))
    with pytest.raises(error):
        fixture.create()
    assert fixture.nodes() == (["n"] if done else [])
    assert fixture.coverage.fired == {"provision: create Node": {kind.value: 1}}


def test_only_the_nth_call_fails_and_none_after_faults_end():
    """Calls of a site are counted from the start."""
    fixture = Fixture(wrong(FaultKind.FAIL_BEFORE, nth=2), wrong(FaultKind.FAIL_BEFORE, nth=3))
    fixture.create("a")
    with pytest.raises(KubeUnavailableError):
        fixture.create("b")
    fixture.faults.enabled = False
    fixture.create("c")
    assert fixture.nodes() == ["a", "c"]


def test_only_a_waiting_fault_of_its_own_step_can_pause_a_run():
    """A run that cannot pause needs no thread."""
    fixture = Fixture(wrong(FaultKind.PAUSE, nth=2), wrong(FaultKind.FAIL_BEFORE, site="sweep: list Node"))
    fixture.create("a")
    assert [step for step in ("provision", "sweep") if fixture.faults.can_pause(step)] == ["provision"]
    fixture.scheduler.start(lambda: fixture.create("b"))
    assert not fixture.faults.can_pause("provision")


def test_a_crashed_run_makes_no_further_call():
    """That includes calls in its exception handlers."""
    fixture = Fixture(wrong(FaultKind.CRASH_BEFORE))
    with pytest.raises(ProcessCrashed):
        fixture.create("a")
    with pytest.raises(ProcessCrashed):
        fixture.create("b")
    with pytest.raises(ProcessCrashed):
        fixture.do(fixture.ec2.describe_subnets)
    assert fixture.nodes() == []


def test_conflicting_write_is_made_before_the_runs_own_write():
    """With a precondition the server refuses the run's write, without one both take effect."""
    fixture = Fixture(
        wrong(FaultKind.CONFLICT, "provision: patch Node"), wrong(FaultKind.CONFLICT, "provision: patch Node", 2)
    )
    version = fixture.create()["metadata"]["resourceVersion"]
    change = {"metadata": {"labels": {"a": "b"}}}
    guarded = {"metadata": {"labels": {"a": "b"}, "resourceVersion": version}}
    with pytest.raises(ConflictError):
        fixture.do(lambda: fixture.store.patch(NODE, "n", guarded))
    written = fixture.do(lambda: fixture.store.patch(NODE, "n", change))
    assert written["metadata"]["annotations"] == {TOUCHED: "2"}
    assert written["metadata"]["labels"] == {"a": "b"}


def test_a_stale_list_shows_the_cluster_as_it_was():
    """Uncached lists are stale only with a LAG fault."""
    fixture = Fixture(*(wrong(FaultKind.STALE, "provision: list Node", nth, 10) for nth in (1, 2)))
    fixture.create("a")
    fixture.clock.advance(11)
    fixture.create("b")
    fixture.server.delete(NODE, "a")

    def listed(**how):
        return [node.metadata.name for node in fixture.do(lambda: fixture.store.list(NODE, **how)).items]

    assert listed() == ["b"]
    assert listed(cached=True) == ["a"]
    assert listed(cached=True) == ["b"]


def test_an_uncached_list_may_lag():
    """A LAG fault makes it stale."""
    fixture = Fixture(wrong(FaultKind.LAG, "provision: list Node", seconds=10))
    fixture.clock.advance(11)
    fixture.create()
    assert fixture.do(lambda: fixture.store.list(NODE)).items == ()


def test_instances_are_described_as_they_were():
    """EC2 does not list an instance that was just launched, and answers NotFound for its id."""
    fixture = Fixture(*(wrong(FaultKind.STALE, "provision: ec2 DescribeInstances", nth, 5) for nth in (1, 2)))
    image = fixture.account.client("ec2").describe_images(Owners=["amazon"])["Images"][0]["ImageId"]
    made = fixture.account.client("ec2").run_instances(ImageId=image, InstanceType="c5.large", MinCount=1, MaxCount=1)
    id_ = made["Instances"][0]["InstanceId"]
    fixture.clock.advance(4)
    assert fixture.do(fixture.ec2.describe_instances)["Reservations"] == []
    with pytest.raises(ClientError, match=r"InvalidInstanceID\.NotFound"):
        fixture.do(lambda: fixture.ec2.describe_instances(InstanceIds=[id_]))
    pages = fixture.do(lambda: list(fixture.ec2.get_paginator("describe_instances").paginate(InstanceIds=[id_])))
    assert [i["InstanceId"] for page in pages for r in page["Reservations"] for i in r["Instances"]] == [id_]


@pytest.mark.parametrize(
    ("kind", "error", "done"),
    [
        (FaultKind.FAIL_BEFORE, ClientError, False),
        (FaultKind.FAIL_AFTER, ConnectionClosedError, True),
        (FaultKind.THROTTLE, ClientError, False),
    ],
)
def test_aws_faults_are_botocore_errors(kind, error, done):
    """The adapter translates them as on AWS."""
    fixture = Fixture(wrong(kind, "provision: ec2 CreateLaunchTemplate"))
    data = {"ImageId": "ami-1"}
    with pytest.raises(error):
        fixture.do(lambda: fixture.ec2.create_launch_template(LaunchTemplateName="t", LaunchTemplateData=data))
    templates = fixture.account.client("ec2").describe_launch_templates()["LaunchTemplates"]
    assert len(templates) == done


@pytest.mark.parametrize(
    ("kind", "code", "done"),
    [
        (FaultKind.FAIL_BEFORE, "InternalError", False),
        (FaultKind.FAIL_AFTER, "", True),
        (FaultKind.THROTTLE, "Throttling.User", False),
    ],
)
def test_faults_of_alibaba_cloud_are_the_errors_of_its_client(kind, code, done):
    """The adapter translates them as it does those of the service."""
    alibaba = AlibabaFixture(wrong(kind, "provision: ecs TagResources"))
    instance = alibaba.launch()
    tag = {"RegionId": alibaba.account.region, "ResourceType": "instance", "ResourceId": [instance.id]}
    with pytest.raises(OpenApiError) as raised:
        alibaba.call("TagResources", **tag, Tag=[{"Key": "a", "Value": "b"}])
    assert raised.value.code == code
    assert (instance.tags == {"a": "b"}) is done


def test_ecs_instances_are_described_as_they_were():
    """ECS does not list an instance that was just launched."""
    alibaba = AlibabaFixture(wrong(FaultKind.STALE, "provision: ecs DescribeInstances", seconds=5))
    instance = alibaba.launch()
    alibaba.fixture.clock.advance(4)
    pages = [alibaba.call("DescribeInstances", RegionId=alibaba.account.region) for _ in range(2)]
    assert [[i["InstanceId"] for i in page["Instances"]["Instance"]] for page in pages] == [[], [instance.id]]


@pytest.mark.parametrize(
    ("kind", "error"), [(FaultKind.FAIL_AFTER, CloudUnavailableError), (FaultKind.THROTTLE, RateLimitedError)]
)
def test_a_failed_request_to_smq_fails_each_time_that_it_is_repeated(kind, error):
    """The messages are sent in the next run."""
    alibaba = AlibabaFixture(wrong(kind, "provision: smq BatchSendMessage"))
    message = Message(cluster="demo", step=Step.TERMINATE, reason="test")
    with pytest.raises(error):
        alibaba.send(message)
    assert len(alibaba.smq.queues["terminate"].messages) == (3 if kind is FaultKind.FAIL_AFTER else 0)
    alibaba.send(message)
    assert alibaba.fixture.coverage.calls == {"provision: smq BatchSendMessage": 2}


@pytest.mark.parametrize(
    ("kind", "code", "done"),
    [
        (FaultKind.FAIL_BEFORE, "CCE.01500001", False),
        (FaultKind.FAIL_AFTER, "", True),
        (FaultKind.THROTTLE, "APIGW.0308", False),
    ],
)
def test_faults_of_huawei_cloud_are_the_errors_of_its_client(kind, code, done):
    """The adapter translates them as it does those of the services."""
    huawei = HuaweiFixture(wrong(kind, "provision: cce CreateNode"))
    with pytest.raises(RestApiError) as raised:
        huawei.create()
    assert raised.value.code == code
    assert huawei.nodes() == ["n"] * done


def test_cce_nodes_are_listed_as_they_were():
    """CCE does not list a node that was just created, and still lists one that was just deleted."""
    stale = (wrong(FaultKind.STALE, "provision: cce ListNodes", nth, seconds=5) for nth in (1, 3))
    huawei = HuaweiFixture(*stale)
    uid = huawei.create()["metadata"]["uid"]
    huawei.fixture.clock.advance(4)
    created = [huawei.nodes() for _ in range(2)]
    path = f"/api/v3/projects/{PROJECT_ID}/clusters/{huawei.cluster_id}/nodes/{uid}"
    huawei.account.rest_api()(RestCall(service=CCE, operation="DeleteNode", method="DELETE", path=path))
    huawei.fixture.clock.advance(13)
    huawei.account.act()

    assert created == [[], ["n"]]
    assert [huawei.nodes() for _ in range(2)] == [["n"], []]


@pytest.mark.parametrize(
    ("kind", "error", "invoked"),
    [
        (FaultKind.FAIL_AFTER, CloudUnavailableError, 3),
        (FaultKind.FAIL_BEFORE, CloudUnavailableError, 0),
        (FaultKind.THROTTLE, RateLimitedError, 0),
    ],
)
def test_an_invocation_without_an_answer_gets_none_each_time_that_it_is_repeated(kind, error, invoked):
    """The messages are sent in the next run."""
    huawei = HuaweiFixture(wrong(kind, "provision: functiongraph AsyncInvokeFunction"))
    message = Message(cluster="demo", step=Step.TERMINATE, reason="test")
    with pytest.raises(error):
        huawei.send(message)
    assert len(huawei.invoked) == invoked
    huawei.send(message)
    assert len(huawei.invoked) == invoked + 1
    assert huawei.fixture.coverage.calls == {"provision: functiongraph AsyncInvokeFunction": 2}


def test_a_run_that_sleeps_continues_when_its_time_has_come():
    """Other runs continue meanwhile; a crash ends the sleep at the function's timeout."""
    fixture = Fixture()
    slept = []

    def work(seconds):
        def sleep():
            fixture.do(lambda: fixture.faults.sleep(seconds))
            slept.append((fixture.clock.now() - START).seconds)

        return sleep

    fixture.scheduler.start(work(20))
    fixture.clock.advance(20)
    fixture.scheduler.act()
    assert slept == [20]
    fixture.scheduler.start(work(100))
    fixture.clock.advance(40)
    with pytest.raises(ProcessCrashed):
        fixture.scheduler.act()


def test_other_runs_continue_while_a_call_times_out():
    """Twenty seconds pass before the time-out is raised; the write took effect at their start."""
    fixture = Fixture(
        wrong(FaultKind.TIMEOUT_AFTER, seconds=20),
        wrong(FaultKind.TIMEOUT_BEFORE, "provision: ec2 DescribeSubnets", seconds=20),
    )
    raised = []

    def try_(call, error):
        with pytest.raises(error):
            fixture.do(call)
        raised.append((error, (fixture.clock.now() - START).seconds))

    def work():
        try_(lambda: fixture.store.create(NODE, {"metadata": {"name": "n"}}), KubeUnavailableError)
        try_(fixture.ec2.describe_subnets, ReadTimeoutError)

    fixture.scheduler.start(work)
    assert fixture.nodes() == ["n"]
    World(fixture.clock, [fixture.scheduler]).run_for(MINUTE)
    assert raised == [(KubeUnavailableError, 20), (ReadTimeoutError, 40)]


@pytest.mark.parametrize(("thaw", "nodes"), [(False, []), (True, ["n"])])
def test_a_run_paused_beyond_its_timeout_is_killed_or_resumed(thaw, nodes):
    """Lambda kills it; a frozen sandbox resumes it."""
    fixture = Fixture(wrong(FaultKind.PAUSE, seconds=90), thaw=thaw)

    def work():
        try:
            fixture.create()
        except ProcessCrashed:
            ended.append(fixture.clock.now() - START)

    ended = []
    fixture.scheduler.start(work)
    World(fixture.clock, [fixture.scheduler]).run_for(2 * MINUTE)
    assert fixture.nodes() == nodes
    assert ended == ([] if thaw else [MINUTE])


def test_paused_runs_crash_at_the_end_of_a_scenario():
    """No thread remains, and nothing more is written."""
    fixture = Fixture(wrong(FaultKind.PAUSE, seconds=20))
    died = []

    def work():
        try:
            fixture.create()
        except ProcessCrashed as error:
            died.append(str(error))

    fixture.scheduler.start(work)
    fixture.faults.end()
    fixture.scheduler.release()
    assert (len(died), fixture.nodes(), fixture.scheduler.paused) == (1, [], 0)


def test_possible_faults_depend_on_the_call():
    """Reads have no effect to lose; AWS calls have no conflicts."""
    assert FaultKind.FAIL_AFTER not in kinds_of("sweep: list Pod")
    assert {FaultKind.STALE, FaultKind.LAG} <= {*kinds_of("sweep: list Pod")}
    assert FaultKind.STALE not in kinds_of("terminate: get Lease")
    assert {FaultKind.CONFLICT, FaultKind.FAIL_AFTER} <= {*kinds_of("terminate: patch Node")}
    assert FaultKind.CONFLICT not in kinds_of("provision: create NodeClaim")
    assert FaultKind.STALE in kinds_of("provision: ec2 DescribeInstances")
    assert FaultKind.FAIL_AFTER not in kinds_of("provision: ec2 DescribeInstances")
    assert FaultKind.FAIL_AFTER in kinds_of("provision: ec2 CreateFleet")
    assert FaultKind.STALE in kinds_of("provision: ecs DescribeInstances")
    assert FaultKind.FAIL_AFTER not in kinds_of("provision: vpc DescribeVSwitches")
    assert FaultKind.FAIL_AFTER in kinds_of("provision: smq BatchSendMessage")


def test_a_store_without_faults_passes_every_verb_through():
    """The server sees the step's name as the user."""
    fixture = Fixture()
    users = []
    fixture.server.on_write(lambda write: users.append((write.verb, write.user)))
    fixture.create("a")
    fixture.do(lambda: fixture.store.patch(NODE, "a", {"status": {"phase": "x"}}, subresource="status"))
    lease = {"spec": {"holderIdentity": "me"}}
    fixture.do(lambda: fixture.store.apply(LEASE, "l", lease, manager="me", namespace="kube-system"))
    fixture.do(lambda: fixture.store.delete(NODE, "a"))
    with pytest.raises(NotFoundError):
        fixture.do(lambda: fixture.store.get(NODE, "a"))
    assert fixture.do(fixture.store.version) == fixture.server.version()
    assert users == [(verb, "journeyman/provision") for verb in ("create", "patch", "apply", "delete")]
