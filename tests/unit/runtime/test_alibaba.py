"""The adapters on Alibaba Cloud: their variables, their queues, and the clusters of interrupted instances."""

import json
from fractions import Fraction

import pytest

from journeyman.core.api.objects import ACS_ECSNODECLASS, ECSNODECLASS
from journeyman.core.lifecycle.interruption import InterruptionKind
from journeyman.core.plan import Step
from journeyman.errors import CloudUnavailableError, ConfigurationError
from journeyman.ports import Interruption, Message
from journeyman.runtime.alibaba import AlibabaAdapters, read_alibaba_environment
from journeyman.runtime.environment import read_environment
from journeyman.signing import Credentials
from journeyman_simulator.apiserver import ApiServer
from journeyman_simulator.clock import VirtualClock
from tests.helpers.builders import merge
from tests.unit.runtime.test_batch import NOW

SMQ = "https://1000000000000001.mns.cn-hangzhou.aliyuncs.com"
CLUSTERS = [
    {"name": "blue", "region": "cn-hangzhou", "access": {"kind": "ack", "clusterId": "blue-id"}},
    {"name": "green", "region": "cn-hangzhou", "access": {"kind": "ack", "clusterId": "green-id"}},
    {"name": "lab", "region": "cn-beijing", "access": {"kind": "kubeconfig"}, "kubernetesVersion": "1.33"},
    {"name": "eks", "region": "eu-west-1"},
]


class Account:
    """The OpenAPI of every region, with instances by id and the id of each one's cluster; and SMQ."""

    def __init__(self, **instances):
        self.instances, self.made, self.sent = instances, [], []

    def __call__(self, region):
        self.made.append(region)
        return self._answer

    def send(self, queue, messages):
        self.sent.append(queue)

    def _answer(self, call):
        wanted = json.loads(call.parameters.get("InstanceIds", "[]"))
        found = [
            {
                "InstanceId": id_,
                "InstanceType": "ecs.g7.large",
                "ZoneId": "cn-hangzhou-h",
                "Status": "Running",
                "CreationTime": "2026-11-02T08:00Z",
                "Tags": {"Tag": [{"TagKey": "ecs:ecs-cluster-id", "TagValue": self.instances[id_]}]},
            }
            for id_ in wanted
            if id_ in self.instances
        ]
        return {"Instances": {"Instance": found}}


def adapters_of(account, *names, clusters=CLUSTERS, credentials=None, **variables):
    chosen = [each for each in clusters if each["name"] in names]
    variables = {"JOURNEYMAN_CLUSTERS": json.dumps(chosen), "SMQ_ENDPOINT": SMQ, **variables}
    clock = VirtualClock(NOW)
    return AlibabaAdapters(
        read_environment(variables, has_sqs=False),
        read_alibaba_environment(variables),
        clock=clock,
        stores=lambda _: ApiServer(clock),
        open_api=account,
        smq=account,
        credentials=credentials,
    )


def test_missing_endpoint_of_the_queues_is_named():
    with pytest.raises(ConfigurationError, match="SMQ_ENDPOINT is not set") as caught:
        read_alibaba_environment({})

    assert caught.value.context["to_do"]


@pytest.mark.parametrize(
    ("variables", "service", "host", "speaks_tls"),
    [
        ({}, "ecs", "ecs.cn-hangzhou.aliyuncs.com", True),
        ({"ALIBABA_PRIVATE_ENDPOINTS": "false"}, "ecs", "ecs.cn-hangzhou.aliyuncs.com", True),
        ({"ALIBABA_PRIVATE_ENDPOINTS": "True"}, "ecs", "ecs-vpc.cn-hangzhou.aliyuncs.com", True),
        ({"ALIBABA_PRIVATE_ENDPOINTS": "true"}, "ram", "ram.aliyuncs.com", True),
        ({"ECS_ENDPOINT": "ecs.example"}, "ecs", "ecs.example", True),
        ({"ECS_ENDPOINT": "https://ecs.example"}, "ecs", "ecs.example", True),
        (
            {"ECS_ENDPOINT": "http://127.0.0.1:8080", "ALIBABA_PRIVATE_ENDPOINTS": "true"},
            "ecs",
            "127.0.0.1:8080",
            False,
        ),
        ({"ECS_ENDPOINT": "ecs.example"}, "cs", "cs.cn-hangzhou.aliyuncs.com", True),
    ],
)
def test_endpoint_is_the_regions_unless_a_variable_names_another(variables, service, host, speaks_tls):
    """Inside a VPC most services have one of their own."""
    environment = read_alibaba_environment({"SMQ_ENDPOINT": SMQ, **variables})

    assert environment.endpoint(service, "cn-hangzhou") == (host, speaks_tls)


@pytest.mark.parametrize(
    ("variables", "queue"),
    [({}, "journeyman-terminate"), ({"JOURNEYMAN_QUEUE_PREFIX": "team-"}, "team-terminate")],
)
def test_messages_go_to_the_queue_of_their_step(variables, queue):
    """Several deployments in one account have prefixes of their own."""
    account = Account()
    adapters_of(account, "blue", **variables).queue().send(
        [Message(cluster="blue", step=Step.TERMINATE, reason="test")]
    )

    assert account.sent == [queue]


def test_cluster_has_its_own_region_and_id():
    """The id of a cluster that is reached by kubeconfig is its name."""
    adapters = adapters_of(Account(), "blue", "lab", VM_MEMORY_OVERHEAD_PERCENT="0.01")
    blue, lab = (adapters.alibaba_settings(adapters.clusters[name]) for name in ("blue", "lab"))

    assert (blue.cluster_id, blue.region, blue.kubernetes_version) == ("blue-id", "cn-hangzhou", "")
    assert (lab.cluster_id, lab.region, lab.kubernetes_version) == ("lab", "cn-beijing", "1.33")
    assert lab.vm_memory_overhead_percent == Fraction(1, 100)


def cloud_of(adapters, name):
    settings = adapters.clusters.settings[name]
    return adapters.cloud(settings, adapters.store(settings))


def test_ack_issues_certificates_for_the_functions_own_access_key():
    """An older runtime passes it in the context, and the environment has none."""
    seen = []

    def credentials():
        seen.append("asked")
        return Credentials(access_key_id="AK", access_key_secret="SK")

    clusters = [merge(CLUSTERS[0], {"access": {"api": "http://127.0.0.1:9"}})]
    adapters = adapters_of(Account(), "blue", clusters=clusters, credentials=credentials)

    with pytest.raises(CloudUnavailableError):
        adapters.registry().connect("blue")
    assert seen == ["asked"]


def test_clusters_of_a_region_share_its_api():
    """It is made when the first of them needs it."""
    account = Account()
    adapters = adapters_of(account, "blue", "green", "lab")
    assert account.made == []
    clouds = [cloud_of(adapters, name) for name in ("blue", "green", "lab", "blue")]

    assert {cloud.name for cloud in clouds} == {"alibabacloud"}
    assert account.made == ["cn-hangzhou", "cn-beijing"]


def test_cluster_of_another_cloud_is_a_wrong_setting():
    with pytest.raises(ConfigurationError, match="'eks' cannot be launched from Alibaba Cloud"):
        cloud_of(adapters_of(Account(), "eks"), "eks")


@pytest.mark.parametrize(
    ("group", "resource"),
    [("", ECSNODECLASS), (ECSNODECLASS.group, ECSNODECLASS), (ACS_ECSNODECLASS.group, ACS_ECSNODECLASS), ("karpenter.k8s.aws", None)],
)  # fmt: skip
def test_node_classes_are_of_the_registered_group(group, resource):
    """Both of Karpenter's providers for Alibaba Cloud have such a kind; an unknown group is a wrong setting."""
    adapters = adapters_of(Account(), "blue", clusters=[{**CLUSTERS[0], "nodeClassGroup": group}])

    if resource is not None:
        assert cloud_of(adapters, "blue").node_class == resource
        return
    with pytest.raises(ConfigurationError, match=f"none of {ECSNODECLASS.group}, {ACS_ECSNODECLASS.group}"):
        cloud_of(adapters, "blue")


def test_instances_are_routed_by_the_id_of_their_cluster():
    """One that ECS does not list yet may belong to each cluster of its region."""
    adapters = adapters_of(Account(**{"i-1": "blue-id", "i-2": "foreign-id"}), "blue", "green", "lab")
    events = [
        Interruption(
            id=id_, cluster="*", reason="test", time=NOW, kind=InterruptionKind.SPOT_INTERRUPTED,
            instance_ids=(id_,), region="cn-hangzhou",
        )
        for id_ in ("i-1", "i-2", "i-3")
    ]  # fmt: skip

    assert adapters.clusters_of(events) == {
        "i-1": {"blue": ("i-1",)},
        "i-2": {},
        "i-3": {"blue": ("i-3",), "green": ("i-3",)},
    }
