"""The adapters on Huawei Cloud: their variables, the functions as queues, and the clusters of interrupted servers."""

import json
from fractions import Fraction

import pytest

from journeyman.cloud.huawei.huawei_settings import DEFAULT_SPOT_PRICE_PERCENT
from journeyman.cloud.huawei.rest_api import RestApiError
from journeyman.core.lifecycle.interruption import InterruptionKind
from journeyman.core.plan import Step
from journeyman.errors import CloudProviderError, CloudUnavailableError, ConfigurationError
from journeyman.kube.clusters import ClusterRegistry, read_clusters
from journeyman.ports import Interruption, Message
from journeyman.runtime.access_providers import own_access_providers
from journeyman.runtime.environment import read_environment
from journeyman.runtime.huawei import VARIABLES, HuaweiAdapters, read_huawei_environment
from journeyman.signing import Credentials
from journeyman_simulator.apiserver import ApiServer
from journeyman_simulator.clock import VirtualClock
from tests.helpers.builders import merge
from tests.unit.runtime.test_batch import NOW

PREFIX = "urn:fss:cn-north-4:functions-project:function:default:journeyman-"
CCE = {"kind": "cce", "projectId": "nodes-project"}
CLUSTERS = [
    *(
        {"name": name, "region": "cn-north-4", "access": {**CCE, "clusterId": f"{name}-id"}}
        for name in ("blue", "green")
    ),
    {"name": "lab", "region": "cn-south-1", "access": {"kind": "kubeconfig"}},
    {"name": "eks", "region": "eu-west-1"},
]
NODE = "0f5b6a7c-9d8e-4f10-a1b2-c3d4e5f6071{}"
SERVER = "6c1f4a52-3b8d-4f0e-9a7c-5d2e1b0f9a8{}"


class Project:
    """The REST API of every project: CCE lists one node of each cluster, unless the cluster is `down`."""

    def __init__(self):
        self.calls, self.made, self.down = [], [], set()

    def __call__(self, region, project_id):
        self.made.append((region, project_id))
        return self._answer

    def _answer(self, call):
        self.calls.append(call)
        if call.operation != "ListNodes":
            return {"request_id": "r"}
        cluster = call.path.split("/")[6]
        if cluster in self.down:
            raise RestApiError("CCE.01500001", "internal", status=500, request_id="r")
        number = ["blue-id", "green-id", "lab"].index(cluster) + 1
        node = {
            "metadata": {"uid": NODE.format(number), "name": "n"},
            "spec": {},
            "status": {"serverId": SERVER.format(number)},
        }
        return {"kind": "List", "items": [node], "pageInfo": {"currentCount": 1}}


@pytest.fixture
def project():
    return Project()


def adapters_of(project, *names, **variables):
    """Return the adapters of a deployment for these clusters."""
    variables = {
        "JOURNEYMAN_CLUSTERS": json.dumps([each for each in CLUSTERS if each["name"] in names]),
        "JOURNEYMAN_FUNCTION_URN_PREFIX": PREFIX,
        "RUNTIME_PROJECT_ID": "functions-project",
        **variables,
    }
    clock = VirtualClock(NOW)
    return HuaweiAdapters(
        read_environment(variables, has_sqs=False),
        read_huawei_environment(variables),
        clock=clock,
        stores=lambda _: ApiServer(clock),
        rest_api=project,
        credentials=lambda: Credentials(access_key_id="AK", access_key_secret="SK"),
    )


def interrupted(*servers, region=""):
    return Interruption(
        id="-".join(servers),
        cluster="*",
        reason="test",
        time=NOW,
        kind=InterruptionKind.SPOT_INTERRUPTED,
        instance_ids=tuple(SERVER.format(each) for each in servers),
        region=region,
    )


def test_cluster_has_its_own_project_region_and_id(project):
    """A cluster that is reached by kubeconfig is in the project of the functions, and its id is its name."""
    adapters = adapters_of(project, "blue", "lab", HUAWEICLOUD_SDK_DOMAIN_ID="account", SPOT_PRICE_PERCENT="0.3")
    blue, lab = (adapters.huawei_settings(adapters.clusters[name]) for name in ("blue", "lab"))

    assert (blue.cluster_id, blue.project_id, blue.region) == ("blue-id", "nodes-project", "cn-north-4")
    assert (lab.cluster_id, lab.project_id, lab.region) == ("lab", "functions-project", "cn-south-1")
    assert (blue.domain_id, blue.spot_price_percent) == ("account", Fraction(3, 10))
    more = adapters_of(project, "lab", HUAWEICLOUD_SDK_PROJECT_ID="third", VM_MEMORY_OVERHEAD_PERCENT="0.01")
    settings = more.huawei_settings(more.clusters["lab"])
    assert (settings.project_id, settings.vm_memory_overhead_percent) == ("third", Fraction(1, 100))


def test_cluster_of_another_cloud_is_a_wrong_setting(project):
    """Its nodes are launched by a deployment on its own cloud."""
    adapters = adapters_of(project, "eks")

    with pytest.raises(ConfigurationError, match="'eks' cannot be launched from Huawei Cloud"):
        adapters.cloud(adapters.clusters.settings["eks"], ApiServer(VirtualClock(NOW)))


def test_cloud_of_a_cluster_is_its_region_and_project(project):
    """One API serves the clusters of a project."""
    adapters = adapters_of(project, "blue", "green", "lab")
    for name in ("blue", "green", "lab"):
        settings = adapters.clusters.settings[name]
        assert adapters.cloud(settings, adapters.store(settings)).name == "huaweicloud"

    assert sorted(project.made) == [("cn-north-4", "nodes-project"), ("cn-south-1", "functions-project")]


def test_messages_go_to_the_functions_own_project(project):
    """It may differ from the nodes'."""
    adapters = adapters_of(project, "blue")
    adapters.queue().send([Message(cluster="blue", step=Step.TERMINATE, reason="test")])

    (call,) = project.calls
    assert call.path == f"/v2/functions-project/fgs/functions/{PREFIX}terminate/invocations-async"
    assert project.made == [("cn-north-4", "functions-project")]


def test_servers_are_translated_to_the_nodes_of_their_clusters(project):
    """NodeClaims have the ids of CCE nodes; a server that is no node of a cluster concerns none."""
    adapters = adapters_of(project, "blue", "green", "lab")

    assert adapters.clusters_of([interrupted("1"), interrupted("2", "3"), interrupted("9")]) == {
        "1": {"blue": (NODE.format(1),)},
        "2-3": {"green": (NODE.format(2),), "lab": (NODE.format(3),)},
        "9": {},
    }
    assert [call.operation for call in project.calls] == ["ListNodes"] * 3
    assert adapters.clusters_of([interrupted("3", region="cn-north-4")]) == {"3": {}}


def test_interruption_is_not_lost_while_a_cluster_cannot_be_read(project):
    """No cluster could find the server by ECS's id; a server that another cluster has is handled at once."""
    adapters = adapters_of(project, "blue", "green")
    project.down = {"green-id"}

    assert adapters.clusters_of([interrupted("1")]) == {"1": {"blue": (NODE.format(1),)}}
    with pytest.raises(CloudProviderError):
        adapters.clusters_of([interrupted("1"), interrupted("2")])
    project.down = set()
    assert adapters.clusters_of([interrupted("2")]) == {"2": {"green": (NODE.format(2),)}}


def test_cce_issues_certificates_for_the_functions_own_access_key():
    """FunctionGraph passes it in the context, and the environment has none."""
    seen = []

    def credentials():
        seen.append("asked")
        return Credentials(access_key_id="AK", access_key_secret="SK")

    clusters = read_clusters(json.dumps([merge(CLUSTERS[0], {"access": {"api": "http://127.0.0.1:9"}})]))
    registry = ClusterRegistry({"blue": clusters[0]}, own_access_providers(VirtualClock(NOW), {}, cce=credentials))

    with pytest.raises(CloudUnavailableError):
        registry.connect("blue")
    assert seen == ["asked"]
    by_variables = ClusterRegistry({"blue": clusters[0]}, own_access_providers(VirtualClock(NOW), {}))
    with pytest.raises(ConfigurationError, match="access key is missing"):
        by_variables.connect("blue")


@pytest.mark.parametrize(
    ("variables", "names"),
    [
        ({"JOURNEYMAN_FUNCTION_URN_PREFIX": ""}, "JOURNEYMAN_FUNCTION_URN_PREFIX is not set"),
        ({"JOURNEYMAN_FUNCTION_URN_PREFIX": "journeyman-"}, "not the start of a function's URN"),
        ({"JOURNEYMAN_FUNCTION_URN_PREFIX": PREFIX.replace("urn:", "arn:")}, "not the start of a function's URN"),
        ({"JOURNEYMAN_FUNCTION_URN_PREFIX": "urn:fss:cn-north-4:p:function"}, "not the start of a function's URN"),
        ({"SPOT_PRICE_PERCENT": "0"}, "SPOT_PRICE_PERCENT"),
        ({"SPOT_PRICE_PERCENT": "1.01"}, "SPOT_PRICE_PERCENT"),
        ({"SPOT_PRICE_PERCENT": "cheap"}, "SPOT_PRICE_PERCENT"),
        ({"SPOT_PRICE_PERCENT": "40"}, "SPOT_PRICE_PERCENT"),
        ({"SPOT_PRICE_PERCENT": "1/0"}, "SPOT_PRICE_PERCENT"),
    ],
)
def test_wrong_variable_is_named_with_what_to_do(variables, names):
    """The first invocation fails with it."""
    with pytest.raises(ConfigurationError, match=names) as caught:
        read_huawei_environment({"JOURNEYMAN_FUNCTION_URN_PREFIX": PREFIX, **variables})

    assert caught.value.context["to_do"]


@pytest.mark.parametrize(
    ("variables", "project", "currency", "share"),
    [
        ({}, "functions-project", "CNY", Fraction(DEFAULT_SPOT_PRICE_PERCENT)),
        ({"RUNTIME_PROJECT_ID": "p", "HUAWEICLOUD_CURRENCY": "USD", "SPOT_PRICE_PERCENT": "1"}, "p", "USD", 1),
        (
            {"RUNTIME_PROJECT_ID": "p", "HUAWEICLOUD_SDK_PROJECT_ID": "q"},
            "q",
            "CNY",
            Fraction(DEFAULT_SPOT_PRICE_PERCENT),
        ),
    ],
)
def test_nodes_are_in_the_project_of_the_functions_by_default(variables, project, currency, share):
    """FunctionGraph says which that is, and so do the functions' URNs; prices are in yuan, as on the Chinese site."""
    read = set()

    class Recording(dict):
        def get(self, name, default=None):
            read.add(name)
            return super().get(name, default)

    huawei = read_huawei_environment(Recording(JOURNEYMAN_FUNCTION_URN_PREFIX=PREFIX, **variables))
    assert (huawei.project_id, huawei.currency, huawei.spot_price_percent) == (project, currency, share)
    assert read - {"RUNTIME_PROJECT_ID"} == {variable.name for variable in VARIABLES}, "docs/settings.md has them all"


def test_list_of_a_clusters_nodes_serves_events_for_ten_seconds(project):
    """Many servers end at the same time; a node that was launched since then is found after that."""
    adapters = adapters_of(project, "blue")
    lists = []
    for server, seconds in (("1", 0), ("8", 9), ("9", 1)):
        adapters.clock.advance(seconds)
        adapters.clusters_of([interrupted(server)])
        lists.append(len(project.calls))

    assert lists == [1, 1, 2]


def test_endpoints_are_the_regions_unless_a_variable_names_another():
    """BSS has one for all regions, and another one on the international site."""
    defaults = read_huawei_environment({"JOURNEYMAN_FUNCTION_URN_PREFIX": PREFIX})
    given = read_huawei_environment(
        {"JOURNEYMAN_FUNCTION_URN_PREFIX": PREFIX, "BSS_ENDPOINT": "https://bss-intl.example/", "CCE_ENDPOINT": ""}
    )

    assert defaults.endpoint("cce", "cn-south-1") == "https://cce.cn-south-1.myhuaweicloud.com"
    assert defaults.endpoint("bss", "cn-south-1") == "https://bss.myhuaweicloud.com"
    assert given.endpoint("bss", "cn-south-1") == "https://bss-intl.example"
    assert given.endpoint("cce", "cn-south-1") == defaults.endpoint("cce", "cn-south-1")
