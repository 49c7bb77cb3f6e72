"""The composition root on AWS reads nothing at import, creates each part once, and lets tests replace every part."""

import io
import json
from datetime import datetime, timezone
from fractions import Fraction
from types import SimpleNamespace

import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from journeyman.core.lifecycle.interruption import InterruptionKind
from journeyman.core.plan import Step
from journeyman.errors import ConfigurationError
from journeyman.kube.lease import KubeLease
from journeyman.observe.logs import json_logger
from journeyman.ports import Interruption, RequeueDue
from journeyman.runtime import lambda_entry
from journeyman.runtime.aws import AwsAdapters
from journeyman.runtime.composition import Runtime, current, installed
from journeyman.runtime.environment import read_environment
from journeyman.runtime.lambda_entry import entry_point
from journeyman_simulator.apiserver import ApiServer
from journeyman_simulator.clock import VirtualClock
from journeyman_simulator.in_process_account.account import InProcessAccount
from tests.unit.runtime.test_environment import MINIMAL

START = datetime(2026, 11, 21, 9, 0, tzinfo=timezone.utc)
DESCRIBED = {
    "name": "dev",
    "status": "ACTIVE",
    "endpoint": "https://api.dev.example",
    "version": "1.33",
    "certificateAuthority": {"data": "Q0E="},
    "kubernetesNetworkConfig": {"serviceIpv4Cidr": "172.20.0.0/16", "ipFamily": "ipv4"},
}


class Clients:
    """Fake boto3 clients that record their creation; EKS describes a cluster."""

    def __init__(self):
        self.made, self.described = [], 0

    def __call__(self, service, region):
        self.made.append((service, region))
        return SimpleNamespace(describe_cluster=self.describe, meta=SimpleNamespace(region_name=region))

    def describe(self, *, name):
        self.described += 1
        return {"cluster": {**DESCRIBED, "name": name}}


@pytest.fixture
def clients():
    return Clients()


@pytest.fixture
def adapters(clients):
    clock = VirtualClock(START)
    return AwsAdapters(read_environment(MINIMAL), clock=clock, stores=lambda _: ApiServer(clock), clients=clients)


def a_trigger(cluster="dev"):
    return RequeueDue(id="m-1", cluster=cluster, step=Step.TERMINATE, reason="drain", time=START)


CONTEXT = SimpleNamespace(aws_request_id="req-1", get_remaining_time_in_millis=lambda: 10_000)
LAMBDA_CONTEXT = SimpleNamespace(
    aws_request_id="req-9", function_name="sweep", memory_limit_in_mb=512,
    invoked_function_arn="arn:aws:lambda:us-east-1:123456789012:function:sweep",
)  # fmt: skip


def test_first_run_creates_its_clusters_clients_and_describes_the_cluster(adapters, clients):
    """A request in each run would cost time; other clusters' clients are not created."""
    runtime = Runtime(adapters.environment.settings, adapters)
    assert clients.made == []

    with runtime.invocation(a_trigger(), CONTEXT) as first:
        assert (first.cluster, first.settings.cluster_name, first.request_id) == ("dev", "dev", "req-1")
        assert (first.deadline - START).total_seconds() == 10
        assert isinstance(first.lease, KubeLease)
    with runtime.invocation(a_trigger(), CONTEXT) as second:
        assert second.store is first.store

    assert {region for _, region in clients.made} == {"eu-west-1"}
    assert clients.described == 1


NO_STORE = SimpleNamespace()


def test_node_settings_come_from_describe_cluster(adapters, clients):
    settings = adapters.aws_settings(adapters.environment.clusters["dev"], NO_STORE)

    assert (settings.cluster_endpoint, settings.cluster_ca) == ("https://api.dev.example", "Q0E=")
    assert (settings.kubernetes_version, settings.service_cidr, settings.ipv6) == ("1.33", "172.20.0.0/16", False)


@pytest.mark.parametrize(("given", "used"), [({}, "0.075"), ({"VM_MEMORY_OVERHEAD_PERCENT": "0"}, "0")])
def test_memory_overhead_may_be_none(clients, given, used):
    """An explicit 0 is not taken for a missing setting."""
    adapters = AwsAdapters(read_environment({**MINIMAL, **given}), clock=VirtualClock(START), clients=clients)

    settings = adapters.aws_settings(adapters.environment.clusters["dev"], NO_STORE)
    assert settings.vm_memory_overhead_percent == Fraction(used)


@pytest.mark.parametrize(
    ("network", "address"),
    [
        ({"serviceIpv4Cidr": "10.100.0.0/16", "ipFamily": "ipv4"}, "10.100.0.10"),
        ({"serviceIpv4Cidr": "192.168.7.0/24", "ipFamily": "ipv4"}, "192.168.7.10"),
        ({"serviceIpv6Cidr": "fd30:1c53:5f8a::/108", "ipFamily": "ipv6"}, "fd30:1c53:5f8a::a"),
        ({"serviceIpv4Cidr": "not a CIDR"}, ""),
        ({}, ""),
    ],
)
def test_cluster_dns_is_the_tenth_address_of_the_service_cidr(network, address):
    """EKS gives it to the Service kube-dns, whose address Karpenter writes into the kubelet's settings."""
    facts = {"cluster": {**DESCRIBED, "kubernetesNetworkConfig": network}}
    eks = SimpleNamespace(describe_cluster=lambda name: facts, meta=SimpleNamespace(region_name="eu-west-1"))
    adapters = AwsAdapters(read_environment(MINIMAL), clock=VirtualClock(START), clients=lambda _service, _region: eks)

    assert adapters.aws_settings(adapters.environment.clusters["dev"], NO_STORE).cluster_dns == address


@pytest.mark.parametrize(("registered", "used"), [({}, "1.31"), ({"kubernetesVersion": "1.32"}, "1.32")])
def test_version_of_a_cluster_by_kubeconfig_is_the_api_servers(clients, registered, used):
    """It selects the images of aliases; EKS is not asked, and no version is assumed."""
    access = {"kind": "kubeconfig", "path": "/nowhere"}
    lab = {"name": "lab", "region": "eu-west-1", "endpoint": "https://lab", "access": access, **registered}
    variables = {**MINIMAL, "JOURNEYMAN_CLUSTERS": json.dumps([lab])}
    adapters = AwsAdapters(read_environment(variables), clock=VirtualClock(START), clients=clients)
    store = SimpleNamespace(version=lambda: (1, 31))

    settings = adapters.aws_settings(adapters.environment.clusters["lab"], store)
    assert settings.kubernetes_version == used
    assert clients.described == 0


def test_cluster_role_is_assumed_in_the_clusters_region(clients):
    """Instances are in the cluster's account, queues in the functions' account."""
    role = "arn:aws:iam::111122223333:role/journeyman-ohio"
    more = f'[{{"name": "ohio", "region": "us-east-2", "access": {{"kind": "eks", "roleArn": "{role}"}}}}]'
    with mock_aws(), pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "example")
        adapters = AwsAdapters(read_environment({**MINIMAL, "JOURNEYMAN_MORE_CLUSTERS": more}), clients=clients)
        sts = adapters.clients_for(adapters.environment.clusters["ohio"])("sts", "us-east-2")

        assert sts.get_caller_identity()["Arn"] == "arn:aws:sts::111122223333:assumed-role/journeyman-ohio/journeyman"
        assert sts.meta.region_name == "us-east-2"
        pricing = adapters.clients_for(adapters.environment.clusters["ohio"])("pricing", "us-east-1")
        assert pricing.meta.region_name == "us-east-1"  # the Pricing API is served in few regions
        assert adapters.clients_for(adapters.environment.clusters["dev"]) is clients


@pytest.mark.parametrize("group", ["", "windows"])
def test_windows_have_entries_in_a_schedule_group(clients, group):
    """Without one the sweep finds the edges of windows."""
    arns = {
        "JOURNEYMAN_SCHEDULE_ROLE_ARN": "arn:aws:iam::1:role/w",
        "JOURNEYMAN_SCHEDULE_DEAD_LETTERS_ARN": "arn:aws:sqs:eu-west-1:1:dead",
    }
    environment = read_environment({**MINIMAL, **arns, "JOURNEYMAN_SCHEDULE_GROUP": group})
    schedules = AwsAdapters(environment, clients=clients).window_schedules(environment.settings["dev"])

    assert (schedules is not None) == bool(group)
    assert [service for service, _ in clients.made] == (["scheduler"] if group else [])


def test_lines_of_a_run_and_of_the_process_go_to_the_given_logger(clients):
    lines = io.StringIO()
    clock = VirtualClock(START)
    adapters = AwsAdapters(
        read_environment(MINIMAL), clock=clock, clients=clients, log_to=json_logger(service="test", stream=lines)
    )
    adapters.log("info", "of the process")
    adapters.telemetry(ApiServer(clock), {"cluster": "dev"}).log("info", "of the run")

    written = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert [(line["message"], line.get("cluster")) for line in written] == [
        ("of the process", None),
        ("of the run", "dev"),
    ]


def test_cluster_of_another_cloud_is_a_configuration_error():
    """Its API server can be reached, so without the error the only symptom would be pending pods."""
    more = '[{"name": "hangzhou", "region": "cn-hangzhou", "access": {"kind": "ack", "clusterId": "c1"}}]'
    environment = read_environment({**MINIMAL, "JOURNEYMAN_MORE_CLUSTERS": more})
    clock = VirtualClock(START)
    adapters = AwsAdapters(environment, clock=clock, stores=lambda _: ApiServer(clock))

    with pytest.raises(ConfigurationError, match="nodes of cluster 'hangzhou' cannot be launched from AWS"):
        adapters.cloud(environment.settings["hangzhou"], ApiServer(clock))


def test_installed_runtime_replaces_the_process_runtime(adapters):
    """The demo runs the deployed handlers with other adapters; the runtime installed last is used."""
    own, one, two = (Runtime({}, adapters) for _ in range(3))
    with installed(one):
        with installed(two):
            assert current(lambda: own) is two
        assert current(lambda: own) is one


def test_entry_point_logs_lambdas_context_and_the_correlation_id():
    """One id finds all log lines of an event."""
    seen = {}

    @entry_point
    def handler(event, context):
        seen["event"] = event
        return "answer"

    from journeyman.runtime.adapters import logger

    lines, handler_of_lines = io.StringIO(), logger().registered_handler
    previous, handler_of_lines.stream = handler_of_lines.stream, lines  # an earlier test may have closed it
    try:
        assert handler({"id": "evt-1"}, LAMBDA_CONTEXT) == "answer"
        logger().info("hello")
    finally:
        handler_of_lines.stream = previous

    line = json.loads(lines.getvalue())
    assert seen["event"] == {"id": "evt-1"}
    assert (line["correlation_id"], line["function_request_id"], line["message"]) == ("evt-1", "req-9", "hello")


@pytest.mark.parametrize(
    ("variables", "is_traced"),
    [
        ({"LAMBDA_TASK_ROOT": "/var/task"}, True),
        ({"LAMBDA_TASK_ROOT": "/var/task", "POWERTOOLS_TRACE_DISABLED": "false"}, True),
        ({"LAMBDA_TASK_ROOT": "/var/task", "POWERTOOLS_TRACE_DISABLED": "True"}, False),
        ({"LAMBDA_TASK_ROOT": "/var/task", "POWERTOOLS_TRACE_DISABLED": "1"}, False),
        ({}, False),
    ],
)
def test_handler_is_traced_on_lambda_unless_a_variable_disables_it(monkeypatch, variables, is_traced):
    """X-Ray's SDK takes a third of a second to import."""
    traced = []

    class Tracer:
        def __init__(self, **_):
            """Import no SDK."""

        def capture_lambda_handler(self, handler, **_):
            traced.append(handler)
            return handler

    for name in ("LAMBDA_TASK_ROOT", "POWERTOOLS_TRACE_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(lambda_entry, "Tracer", Tracer)

    assert entry_point(lambda event, _context: event["id"])({"id": "evt-1"}, LAMBDA_CONTEXT) == "evt-1"
    assert bool(traced) is is_traced


OHIO = [
    {"name": "ohio", "region": "us-east-2"},
    {"name": "theirs", "region": "us-east-1", "access": {"kind": "eks", "roleArn": "arn:aws:iam::999999999999:role/j"}},
]


def an_event(number, *instances, account="123456789012", region="us-east-1"):
    return Interruption(
        id=f"e{number}",
        cluster="*",
        reason="test",
        time=START,
        kind=InterruptionKind.SPOT_INTERRUPTED,
        instance_ids=instances,
        account=account,
        region=region,
    )


@pytest.fixture
def routed():
    """Return adapters with three clusters, the account of two of them, and instances of both and of another one."""
    clock = VirtualClock(START)
    account = InProcessAccount(clock)
    more = [{"name": "prod", "region": "us-east-1"}, *OHIO]
    clusters = json.loads(MINIMAL["JOURNEYMAN_CLUSTERS"])
    environment = {
        **MINIMAL,
        "JOURNEYMAN_CLUSTERS": json.dumps([{**clusters[0], "name": "dev", "region": "us-east-1"}]),
        "JOURNEYMAN_MORE_CLUSTERS": json.dumps(more),
    }
    adapters = AwsAdapters(
        read_environment(environment),
        clock=clock,
        stores=lambda _: ApiServer(clock),
        clients=lambda service, region: account.client(service),
    )
    ids = {}
    image = account.seed().images.popitem()[1]
    for name in ("dev", "prod", "foreign", ""):
        tags = [{"Key": "eks:eks-cluster-name", "Value": name}] if name else [{"Key": "Name", "Value": "web"}]
        reply = account.client("ec2").run_instances(
            ImageId=image,
            InstanceType="m5.large",
            MinCount=1,
            MaxCount=1,
            TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
        )
        ids[name] = reply["Instances"][0]["InstanceId"]
    return adapters, account, ids


def test_instances_are_routed_by_their_cluster_tag(routed):
    """One DescribeInstances serves a batch and later events; foreign instances and those without the tag concern none."""
    adapters, account, ids = routed
    events = [an_event(1, ids["dev"]), an_event(2, ids["foreign"]), an_event(3, ids[""]), an_event(4, *ids.values())]
    before = account.calls().get("DescribeInstances", 0)

    assert adapters.clusters_of(events) == {
        "e1": {"dev": (ids["dev"],)},
        "e2": {},
        "e3": {},
        "e4": {"dev": (ids["dev"],), "prod": (ids["prod"],)},
    }
    assert adapters.clusters_of(events[:1]) == {"e1": {"dev": (ids["dev"],)}}
    assert account.calls()["DescribeInstances"] - before == 1


def test_unknown_instance_may_belong_to_each_cluster_of_its_account_and_region(routed):
    """EC2 lists an instance some seconds after its launch; other regions and accounts cannot have it.

    While EC2 does not answer, each cluster looks for any instance itself.
    """
    adapters, account, ids = routed
    unknown = "i-0123456789abcdef0"
    found = adapters.clusters_of([an_event(1, unknown), an_event(2, unknown, region="eu-west-1")])

    assert found == {"e1": {"dev": (unknown,), "prod": (unknown,)}, "e2": {}}
    account.fail_next("DescribeInstances", "UnauthorizedOperation", 3)
    foreign = (ids["foreign"],)
    assert adapters.clusters_of([an_event(1, *foreign)]) == {"e1": {"dev": foreign, "prod": foreign}}


class Upgraded(Clients):
    """EKS whose description of the cluster changes; it throttles while `throttled`."""

    def __init__(self):
        super().__init__()
        self.changes, self.throttled = {}, False

    def describe(self, *, name):
        if self.throttled:
            raise ClientError({"Error": {"Code": "ThrottlingException"}}, "DescribeCluster")
        reply = super().describe(name=name)
        return {"cluster": {**reply["cluster"], **self.changes}}


@pytest.fixture
def upgraded():
    clock, eks = VirtualClock(START), Upgraded()
    adapters = AwsAdapters(read_environment(MINIMAL), clock=clock, stores=lambda _: ApiServer(clock), clients=eks)
    return Runtime(adapters.environment.settings, adapters), clock, eks


def provider_after(runtime, clock, *, minutes):
    clock.advance(minutes * 60)
    with runtime.invocation(a_trigger(), CONTEXT) as run:
        return run.store, run.memory


@pytest.mark.parametrize(
    ("change", "is_another"),
    [
        ({"version": "1.34"}, True),
        ({"endpoint": "https://other.example"}, True),
        ({"certificateAuthority": {"data": "T3RoZXI="}}, True),
        ({"kubernetesNetworkConfig": {"serviceIpv4Cidr": "10.0.0.0/16"}}, True),
        ({"status": "UPDATING"}, False),
    ],
)
def test_changed_cluster_is_connected_again_within_five_minutes(upgraded, change, is_another):
    """An upgrade selects other images, and new nodes need the current endpoint and CA. It is described once per period.

    One that EKS does not describe keeps its facts: throttling stops no run.
    """
    runtime, clock, eks = upgraded
    first = provider_after(runtime, clock, minutes=0)
    eks.changes = change
    assert provider_after(runtime, clock, minutes=4)[0] is first[0]
    assert eks.described == 1

    again = provider_after(runtime, clock, minutes=1)
    assert [new is not old for new, old in zip(again, first, strict=True)] == [is_another] * 2
    assert eks.described == 2
    eks.throttled = True
    assert provider_after(runtime, clock, minutes=6)[0] is again[0]
