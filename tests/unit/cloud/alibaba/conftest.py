"""Fixtures for tests of the Alibaba Cloud adapter: an account in process whose launch requests are recorded."""

from datetime import datetime, timezone
from typing import Any

import pytest

from journeyman.cloud.alibaba.alibaba_settings import AlibabaSettings
from journeyman.cloud.alibaba.open_api import ApiCall, OpenApiError
from journeyman.cloud.alibaba.provider import AlibabaCloudProvider
from journeyman.core.api.ecs_settings import ACS_API, ECS_API
from journeyman.core.state import NodeClassState
from journeyman.ports import LaunchRequest
from journeyman_simulator.alibaba_account import AlibabaAccount
from journeyman_simulator.alibaba_account.ecs_types import SMALL_SELECTION
from journeyman_simulator.clock import VirtualClock
from tests.unit.cloud.conftest import a_claim

START = datetime(2026, 11, 2, 8, 0, tzinfo=timezone.utc)
FOUND = [{"tags": {"karpenter.sh/discovery": "demo"}}]
GROUP, INSTANCES = "CreateAutoProvisioningGroup", "RunInstances"
REQUIRED = {"vSwitchSelectorTerms": FOUND, "securityGroupSelectorTerms": FOUND}
DEFAULTS = {
    ECS_API: {**REQUIRED, "imageSelectorTerms": [{"alias": "AlibabaCloudLinux3@latest"}]},
    ACS_API: {**REQUIRED, "imageSelectorTerms": [{"imageFamily": "acs:alibaba_cloud_linux_3_2104_lts_x64"}]},
}


class RecordingApi:
    """The account's OpenAPI. It answers launches without the account, and records them and the requests for attach scripts."""

    def __init__(self, account: AlibabaAccount) -> None:
        self._send = account.open_api()
        self.calls: list[ApiCall] = []
        self.launches: list[tuple[str, dict[str, Any]]] = []
        self.image_searches: list[Any] = []
        self.refusal = ""  # the error code of launches
        self.answers: dict[str, Any] = {}  # by action, instead of the account's

    def __call__(self, call: ApiCall) -> Any:
        """Return the answer of a request."""
        self.calls.append(call)
        if call.action == "DescribeClusterAttachScripts":
            self.launches.append((call.action, dict(call.body)))
        if call.action == "DescribeImages":
            self.image_searches.append(call.parameters)
        if call.action in self.answers:
            return self.answers[call.action]
        if call.action not in (GROUP, INSTANCES):
            return self._send(call)
        self.launches.append((call.action, dict(call.parameters)))
        if self.refusal:
            raise OpenApiError(self.refusal, "refused by the test", status=403)
        if call.action == INSTANCES:
            return {"InstanceIdSets": {"InstanceIdSet": ["i-bp1launched"]}}
        config = call.parameters["LaunchTemplateConfig"][0]
        result = {"InstanceIds": {"InstanceId": ["i-bp1launched"]}, "InstanceType": config["InstanceType"]}
        return {"LaunchResults": {"LaunchResult": [{**result, "ZoneId": "cn-hangzhou-h"}]}}

    @property
    def launch(self) -> dict[str, Any]:
        """The parameters of the latest launch."""
        return self.launches[-1][1]


class AckCluster:
    """An account with one cluster, and the provider of one API group's NodeClasses."""

    def __init__(self, api=ECS_API, *, network="terway-eniip", types=SMALL_SELECTION, **settings) -> None:
        self.api = api
        self.clock = VirtualClock(START)
        self.account = AlibabaAccount(self.clock, types=types)
        self.seeded = self.account.seed(network=network)
        self.open_api = RecordingApi(self.account)
        self.settings = AlibabaSettings(
            cluster_id=self.seeded.cluster_id,
            region=self.seeded.region,
            max_parallel_launches=1,
            parallel_reads=False,
            **settings,
        )
        self.provider = AlibabaCloudProvider(self.open_api, self.settings, self.clock, api)

    def node_class(self, **spec):
        """Return a NodeClass with its status; a field given as None is omitted."""
        metadata = {"name": "default", "uid": "u", "generation": 1, "creationTimestamp": "2026-11-02T07:00:00Z"}
        given = {key: value for key, value in {**DEFAULTS[self.api], **spec}.items() if value is not None}
        body = {
            "apiVersion": self.api.resource.api_version,
            "kind": "ECSNodeClass",
            "metadata": metadata,
            "spec": given,
        }
        return {**body, "status": self.provider.resolve(body, self.clock.now())}

    def launch(self, body, claim=None):
        """Launch a NodeClaim, on demand with any type by default, and return the outcome."""
        state = NodeClassState(
            name="default", uid="u", kind="ECSNodeClass", group=self.api.resource.group, generation=1, ready=True,
            raw=body,
        )  # fmt: skip
        request = LaunchRequest(
            claim=claim or a_claim(), node_class=state, instance_types=self.provider.get_instance_types(body)
        )
        [outcome] = self.provider.launch([request])
        return outcome

    def requested(self, claim=None, **spec):
        """Return the parameters of the launch request of a NodeClass."""
        self.launch(self.node_class(**spec), claim)
        return self.open_api.launch


@pytest.fixture
def ack():
    return AckCluster()


@pytest.fixture
def acs():
    return AckCluster(ACS_API)
