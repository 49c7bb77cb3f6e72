"""Each cloud operates on its instances, records them, and sends its events to the functions."""

from datetime import datetime, timedelta, timezone

import pytest

from journeyman.cloud.huawei.rest_api import CCE, RestCall
from journeyman.core.api.labels import NODECLAIM_TAG, NODECLAIM_UID_TAG
from journeyman_simulator.clock import VirtualClock
from journeyman_simulator.faults.alibaba_cloud import AlibabaCloud
from journeyman_simulator.faults.aws_cloud import AwsCloud
from journeyman_simulator.faults.fault_scenario import CAPACITY_TYPES, ScenarioSetup
from journeyman_simulator.faults.huawei_cloud import HuaweiCloud
from journeyman_simulator.faults.scenario_clouds import CLOUDS


class AwsFixture:
    """An account on AWS; a Spot instance ends two minutes after its notice."""

    stoppable_spot = False
    maintenance = "instance-retirement"
    notice = 120
    reclaimed = "shutting-down"
    user_terminated = ("shutting-down", "terminated")
    stopped = "stopping"

    def __init__(self):
        self.clock = VirtualClock(datetime(2026, 1, 5, 12, tzinfo=timezone.utc))
        self.events = []
        self.cloud = self.new_cloud()

    def new_cloud(self):
        return AwsCloud(self.clock, ScenarioSetup(), self.events.append)

    def _launch(self, *, spot):
        account = self.cloud.account
        return account.instances.launch(
            instance_type="m5.large",
            architecture="x86_64",
            subnet_id=next(iter(account.network.subnets)),
            image_id="ami-1",
            spot=spot,
            tags={"a": "1", "b": "2"},
        )

    def launch(self, *, spot=False):
        """Return the provider id of a running instance."""
        self._launch(spot=spot)
        self.let_pass(60)
        return self.cloud.operations.launched()[-1]

    def let_pass(self, seconds):
        self.clock.advance(seconds)
        self.cloud.account.act()

    def state(self):
        return self.cloud.records.instances()[-1].state

    def announced(self, provider_id):
        """Return what is announced of an instance once it may be maintained."""
        self.cloud.operations.announce_maintenance(provider_id)
        instance = (provider_id.rpartition("/")[2], "zone")
        (status,) = self.cloud.account.instances.checks.statuses([instance], filters=())
        return [event["Code"] for event in status["Events"]]


class AlibabaFixture(AwsFixture):
    """An account on Alibaba Cloud; a Spot instance ends five minutes after its notice."""

    stoppable_spot = True
    maintenance = "SystemMaintenance.Redeploy"
    notice = 300

    def new_cloud(self):
        return AlibabaCloud(self.clock, ScenarioSetup(cloud="alibaba"), self.events.append)

    def _launch(self, *, spot):
        account = self.cloud.account
        return account.instances.launch(
            instance_type="ecs.g7.large",
            vswitch_id=next(iter(account.network.vswitches)),
            image_id="m-1",
            security_groups=(),
            spot_strategy="SpotAsPriceGo" if spot else "NoSpot",
            tags={"a": "1", "b": "2"},
            settings={},
        )

    def announced(self, provider_id):
        seen = []
        self.cloud.account.bus.subscribers.append(seen.append)
        self.cloud.operations.announce_maintenance(provider_id)
        return [event["data"]["eventType"] for event in seen]


class HuaweiFixture(AwsFixture):
    """An account on Huawei Cloud; a Spot server ends five minutes after its notice."""

    stoppable_spot = True
    maintenance = "instance-redeploy"
    notice = 300
    reclaimed = "terminated"
    user_terminated = ("stopped", "stopped")  # CCE keeps the node
    stopped = "running"

    def new_cloud(self):
        return HuaweiCloud(self.clock, ScenarioSetup(cloud="huawei"), self.events.append)

    def _launch(self, *, spot):
        facts, account = CLOUDS["huawei"].node_class_spec, self.cloud.account
        (cluster,) = account.clusters.known
        volumes = facts["blockDeviceMappings"]
        spec = {
            "flavor": "c9.large.4",
            "az": self.cloud.zones[0],
            "os": facts["imsSelector"]["imsFamily"],
            "login": facts["login"],
            "count": 1,
            "billingMode": 0,
            "rootVolume": {"size": volumes["root"]["volumeSize"], "volumetype": volumes["root"]["volumeType"]},
            "dataVolumes": [{"size": volumes["k8s"]["volumeSize"], "volumetype": volumes["k8s"]["volumeType"]}],
            "userTags": [{"key": "a", "value": "1"}, {"key": "b", "value": "2"}],
            **({"extendParam": {"marketType": "spot"}} if spot else {}),
        }
        path = f"/api/v3/projects/{account.project_id}/clusters/{cluster}/nodes"
        body = {"kind": "Node", "apiVersion": "v3", "metadata": {"name": "n"}, "spec": spec}
        account.rest_api()(RestCall(service=CCE, operation="CreateNode", method="POST", path=path, body=body))

    def announced(self, provider_id):
        self.cloud.operations.announce_maintenance(provider_id)
        return [event.type for event in self.cloud.account.events.scheduled.values()]


@pytest.fixture(params=[AwsFixture, AlibabaFixture, HuaweiFixture], ids=["aws", "alibaba", "huawei"])
def fixture(request):
    return request.param()


def test_launches_are_recorded_with_offering_and_price(fixture):
    """The event of a launch comes first, and is the cloud's without a run."""
    provider_id = fixture.launch(spot=True)
    (instance,) = fixture.cloud.records.instances()

    assert [event.kind for event in fixture.events] == ["launched", *["state"] * (len(fixture.events) - 1)]
    assert {event.by for event in fixture.events} == {"cloud"}
    assert (instance.provider_id, instance.capacity_type, instance.state) == (provider_id, "spot", "running")
    assert (instance.zone in fixture.cloud.zones, instance.price > 0, instance.tags["a"]) == (True, True, "1")


def test_an_interrupted_spot_instance_ends_after_its_notice(fixture):
    """Then it is no longer billed; an on-demand instance is not interrupted."""
    fixture.cloud.operations.interrupt(fixture.launch(spot=True))
    fixture.let_pass(fixture.notice - 1)
    before = fixture.state()
    fixture.let_pass(1)
    after = fixture.state()
    fixture.cloud.operations.interrupt(fixture.launch())
    fixture.let_pass(600)

    assert (before, after, fixture.state()) == ("running", fixture.reclaimed, "running")


def test_users_terminate_instances(fixture):
    """The event names the user; the instance is not billed while it shuts down. A node of CCE has no server then."""
    fixture.cloud.operations.terminate(fixture.launch())
    state = fixture.state()
    by = fixture.events[-1].by
    fixture.let_pass(60)

    assert by == "human"
    assert (state, fixture.state()) == fixture.user_terminated


@pytest.mark.parametrize("spot", [False, True])
def test_users_stop_instances(fixture, spot):
    """EC2 rejects this for Spot instances. ECS of Huawei Cloud shows no state in between."""
    fixture.cloud.operations.stop(fixture.launch(spot=spot))
    stops = not spot or fixture.stoppable_spot
    state = fixture.state()
    fixture.let_pass(60)

    assert state == (fixture.stopped if stops else "running")
    assert fixture.state() == ("stopped" if stops else "running")


def test_users_edit_tags_but_not_those_of_the_launch(fixture):
    """Checkers see the tags at the launch."""
    provider_id = fixture.launch()
    fixture.cloud.operations.edit_tags(provider_id, {"a": None, "b": "3"})

    assert dict(fixture.cloud.operations.tags(provider_id)) == {"b": "3"}
    assert dict(fixture.cloud.records.instances()[0].tags) == {"a": "1", "b": "2"}


def test_operations_on_an_unknown_instance_have_no_effect(fixture):
    """A user may have written the provider id into a NodeClaim."""
    unknown = fixture.launch()[:-1] + "!"
    operations = fixture.cloud.operations
    for operation in (operations.interrupt, operations.stop, operations.terminate, operations.recommend_rebalance):
        operation(unknown)

    assert (fixture.state(), operations.tags(unknown)) == ("running", {})


def test_an_instance_that_never_joins_is_known(fixture):
    """Only the next launch is affected."""
    fixture.cloud.operations.prevent_next_from_joining()
    first = fixture.launch()
    fixture.launch()

    assert fixture.cloud.records.never_joining() == (first,)


def test_maintenance_is_announced(fixture):
    """Nothing happens to the instance yet."""
    announced = fixture.announced(fixture.launch())
    fixture.let_pass(timedelta(days=1).total_seconds())

    assert announced == [fixture.maintenance]
    assert fixture.state() == "running"


def test_keys_of_servers_tags_are_translated():
    """ECS of Huawei Cloud allows neither dots nor slashes in them."""
    fixture = HuaweiFixture()
    provider_id = fixture.launch()
    fixture.cloud.operations.edit_tags(provider_id, {NODECLAIM_TAG: "c1", NODECLAIM_UID_TAG: "u1"})
    (server,) = fixture.cloud.account.instances.known.values()

    assert server.tags == {"a": "1", "b": "2", "karpenter-nodeclaim": "c1", "karpenter-nodeclaim-uid": "u1"}
    expected = {"a": "1", "b": "2", NODECLAIM_TAG: "c1", NODECLAIM_UID_TAG: "u1"}
    assert dict(fixture.cloud.operations.tags(provider_id)) == expected


def test_cce_refuses_some_offerings_and_cannot_build_others():
    """Each offering fails in one of the two ways until it is available again."""
    fixture = HuaweiFixture()
    stock, zones = fixture.cloud.account.catalogue, fixture.cloud.zones
    pools = [(name, zone, kind) for name in CLOUDS["huawei"].types for zone in zones for kind in CAPACITY_TYPES]
    fixture.cloud.operations.set_unavailable(pools, unavailable=True)
    refused = {pool for pool in pools if not stock.has_stock(*pool)}
    unbuilt = {pool for pool in pools if stock.fails_in_job(*pool)}

    assert min(len(refused), len(unbuilt)) > len(pools) / 4
    assert (refused | unbuilt, refused & unbuilt) == ({*pools}, set())
    fixture.cloud.operations.set_unavailable(pools, unavailable=False)
    assert all(stock.has_stock(*pool) and not stock.fails_in_job(*pool) for pool in pools)
