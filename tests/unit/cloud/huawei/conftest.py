"""Fixtures for tests of the Huawei Cloud adapter: an account in process whose requests are recorded."""

from datetime import datetime, timezone
from typing import Any

import pytest

from journeyman.cloud.huawei.huawei_settings import HuaweiSettings
from journeyman.cloud.huawei.provider import HuaweiCloudProvider
from journeyman.cloud.huawei.rest_api import RestCall
from journeyman.core.api.objects import CCENODECLASS
from journeyman.core.state import NodeClassState
from journeyman.ports import LaunchRequest
from journeyman_simulator.clock import VirtualClock
from journeyman_simulator.huawei_account.flavor_data import SMALL_SELECTION
from journeyman_simulator.huawei_account.huawei_account import HuaweiAccount
from tests.unit.cloud.conftest import a_claim

START = datetime(2026, 11, 2, 8, 0, tzinfo=timezone.utc)
DEFAULTS = {
    "subnetSelectorTerms": [{"name": "demo"}],
    "imsSelector": {"imsFamily": "Huawei Cloud EulerOS 2.0"},
    "blockDeviceMappings": {"root": {"volumeSize": 40, "volumeType": "SSD"}},
    "login": {"sshKey": "demo"},
}


class RecordingApi:
    """The account's API in process; it records the requests."""

    def __init__(self, account: HuaweiAccount) -> None:
        self._send = account.rest_api()
        self.calls: list[RestCall] = []
        self.answers: dict[str, Any] = {}  # by operation, instead of the account's

    def __call__(self, call: RestCall) -> Any:
        """Return the answer of a request."""
        self.calls.append(call)
        answer = self.answers.get(call.operation)
        return self._send(call) if answer is None else answer

    def bodies(self, operation: str) -> list[Any]:
        return [call.body for call in self.calls if call.operation == operation]


class CceCluster:
    """An account with one cluster, and its provider."""

    def __init__(self, *, network_mode="vpc-router", types=SMALL_SELECTION, **settings) -> None:
        self.clock = VirtualClock(START)
        self.account = HuaweiAccount(self.clock, types=types)
        self.seeded = self.account.seed(cluster="demo")
        cluster_id = self.seeded.cluster_id
        if network_mode != "vpc-router":
            added = self.account.clusters.add(
                name="turbo", kubernetes_version=self.seeded.kubernetes_version, network_mode=network_mode
            )
            cluster_id = added.id
        self.api = RecordingApi(self.account)
        self.settings = HuaweiSettings(
            cluster_id=cluster_id,
            project_id=self.seeded.project_id,
            region=self.seeded.region,
            domain_id=self.seeded.domain_id,
            max_parallel_launches=1,
            parallel_reads=False,
            **settings,
        )
        self.provider = HuaweiCloudProvider(self.api, self.settings, self.clock)

    def wait(self, seconds):
        """Let time pass, and make the account's transitions."""
        self.clock.advance(seconds)
        self.account.act()

    def node_class(self, **spec):
        """Return a NodeClass with its status; a field given as None is omitted."""
        given = {**DEFAULTS, "login": {"sshKey": self.seeded.key_pair}, **spec}
        body = {
            "apiVersion": CCENODECLASS.api_version,
            "kind": "CCENodeClass",
            "metadata": {"name": "default", "uid": "u", "generation": 1, "creationTimestamp": "2026-11-02T07:00:00Z"},
            "spec": {key: value for key, value in given.items() if value is not None},
        }
        return {**body, "status": self.provider.resolve(body, self.clock.now())}

    def launch(self, body, claim=None):
        """Launch a NodeClaim, on demand with any type by default, and return the outcome."""
        group = CCENODECLASS.group
        state = NodeClassState(
            name="default", uid="u", kind="CCENodeClass", group=group, generation=1, ready=True, raw=body
        )
        types = self.provider.get_instance_types(body)
        [outcome] = self.provider.launch(
            [LaunchRequest(claim=claim or a_claim(), node_class=state, instance_types=types)]
        )
        return outcome

    def created(self, claim=None, **spec):
        """Return the spec in the CreateNode request for a NodeClass."""
        self.launch(self.node_class(**spec), claim)
        return self.api.bodies("CreateNode")[-1]["spec"]


@pytest.fixture
def cce():
    return CceCluster()
