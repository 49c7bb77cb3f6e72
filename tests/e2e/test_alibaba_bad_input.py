"""What is wrong in an Alibaba Cloud account or an ECSNodeClass becomes a condition with its remedy, and leaves nothing behind.

The official SDK calls the simulated account over HTTP. Once the mistake is corrected, the waiting pods run.
"""

from datetime import datetime, timedelta, timezone

import pytest
import yaml

from journeyman.core.api.objects import ECSNODECLASS, NODECLAIM, POD
from journeyman_simulator.alibaba_account.local_alibaba import LocalAlibabaDeployment
from journeyman_simulator.deployment_files import deployment_file
from journeyman_simulator.workload_controllers import DEPLOYMENT

pytestmark = pytest.mark.slow

START = datetime(2026, 3, 3, 20, tzinfo=timezone.utc)
LAUNCH = "CreateAutoProvisioningGroup"


class Cluster:
    """A deployment with three pods that wait for nodes."""

    def __init__(self, deployment, logs):
        self.deployment, self.logs = deployment, logs
        self.account, self.server, self.world = deployment.account, deployment.server, deployment.world
        self.events = []
        self.server.on_write(lambda write: self.events.append(write) if write.resource.kind == "Event" else None)
        for name in ("alibaba-cluster", "inflate"):
            self.server.load(yaml.safe_load_all(deployment_file("docs", "examples", f"{name}.yaml").read_text()))

    def scale(self, replicas):
        self.server.patch(DEPLOYMENT, "inflate", {"spec": {"replicas": replicas}}, namespace="default")

    def run(self, minutes):
        self.world.run_for(timedelta(minutes=minutes))

    def until_running(self, number, minutes=20):
        def done():
            pods = [p for p in self.server.list(POD).items if p.metadata.labels.get("app") == "inflate"]
            return sum(p.status.phase == "Running" for p in pods) == number

        self.world.run_until(done, within=timedelta(minutes=minutes), waiting_for=f"{number} running pods")

    def edit_node_class(self, **spec):
        self.server.patch(ECSNODECLASS, "default", {"spec": spec})

    def said_by_node_class(self):
        """Return the messages of the NodeClass's conditions that are False."""
        status = self.server.get(ECSNODECLASS, "default").get("status") or {}
        return [f"{c['reason']}: {c['message']}" for c in status.get("conditions", ()) if c["status"] == "False"]

    def said_by_claims(self):
        """Return reason and message of the Launched condition of each NodeClaim that is not launched."""
        found = (c for claim in self.server.list(NODECLAIM).items for c in claim.status.conditions)
        return [f"{c.reason}: {c.message}" for c in found if c.type == "Launched" and c.status != "True"]

    def said_by_events(self):
        """Return the messages of all Kubernetes Events."""
        return [write.body.get("message", "") for write in self.events]

    def logged(self):
        """Return the messages of warnings and errors, with their remedies."""
        levels = {"WARNING", "ERROR"}
        return [f"{line['message']} {line.get('to_do', '')}" for line in self.logs if line["level"] in levels]

    def vswitches(self):
        return sorted(self.account.network.vswitches)


@pytest.fixture
def cluster():
    """Return a cluster whose pods wait; afterwards, the cluster is emptied and nothing may be left."""
    logs = []
    with LocalAlibabaDeployment(start=START, on_log=logs.append) as deployment:
        opened = Cluster(deployment, logs)
        opened.scale(3)
        yield opened
        opened.until_running(3)
        opened.scale(0)
        opened.world.run_until(
            lambda: not deployment.leftovers(), within=timedelta(minutes=90), waiting_for="an empty cluster"
        )
        assert deployment.leftovers() == ()


def test_unknown_image_alias_names_the_known_versions(cluster):
    """ImagesReady is False; the launch waits, and starts once the alias is corrected."""
    cluster.edit_node_class(imageSelectorTerms=[{"alias": "AlibabaCloudLinux3@19990101"}])
    cluster.run(3)

    assert any(
        "AlibabaCloudLinux3@19990101" in said and "AlibabaCloudLinux3@latest" in said
        for said in cluster.said_by_node_class()
    )
    assert not cluster.account.calls().get(LAUNCH)
    cluster.edit_node_class(imageSelectorTerms=[{"alias": "AlibabaCloudLinux3@latest"}])


def test_vswitch_selector_without_matches_says_so(cluster):
    """VSwitchesReady is False until the selector matches."""
    cluster.edit_node_class(vSwitchSelectorTerms=[{"id": "vsw-000"}])
    cluster.run(3)

    assert any(said.startswith("VSwitchesNotFound") for said in cluster.said_by_node_class())
    cluster.edit_node_class(vSwitchSelectorTerms=[{"tags": {"karpenter.sh/discovery": "demo"}}])


def test_full_vswitch_is_skipped_for_another_zone(cluster):
    """Zone i has no free address, so nodes start in zone j, and the offerings of zone i are unavailable."""
    by_zone = {vswitch.zone: vswitch.id for vswitch in cluster.account.network.vswitches.values()}
    cluster.account.set_free_addresses(by_zone["cn-hangzhou-i"], 0)
    cluster.until_running(3)

    zones = {claim.metadata.labels["topology.kubernetes.io/zone"] for claim in cluster.server.list(NODECLAIM).items}
    assert zones == {"cn-hangzhou-j"}
    cluster.account.set_free_addresses(by_zone["cn-hangzhou-i"], 200)


def test_full_vswitches_everywhere_are_reported(cluster):
    """No NodeClaim and no instance stays, and the log says what ECS refused."""
    for id_ in cluster.vswitches():
        cluster.account.set_free_addresses(id_, 0)
    cluster.run(4)

    assert cluster.deployment.price_per_hour == 0
    assert any(
        "PrivateIpAddress" in said or "IpNotEnough" in said for said in cluster.logged() + cluster.said_by_claims()
    )
    for id_ in cluster.vswitches():
        cluster.account.set_free_addresses(id_, 200)


def test_no_stock_anywhere_is_reported_until_there_is_some(cluster):
    """The pods wait; each offering is skipped for minutes, and then launched."""
    until = cluster.deployment.clock.now() + timedelta(minutes=10)
    for name in cluster.account.catalogue.types:
        for zone in cluster.account.zones:
            for kind in ("spot", "on-demand"):
                cluster.account.out_of_stock(name, zone, kind, until)
    cluster.run(5)

    assert cluster.deployment.price_per_hour == 0
    assert any("NoStock" in said for said in cluster.said_by_events()), cluster.said_by_events()
    cluster.until_running(3, minutes=90)


@pytest.mark.parametrize(
    ("code", "reason", "remedy"),
    [
        ("Account.Arrearage", "AccountInArrears", "overdue payment; pay it"),
        ("QuotaExceed.ElasticQuota", "VCPULimitExceeded", "request a higher one"),
        ("Forbidden.RAM", "Unauthorized", "grant ecs:CreateAutoProvisioningGroup"),
        ("Throttling.User", "", "throttles ecs:CreateAutoProvisioningGroup"),
        ("InternalError", "InternalError", "internal error"),
    ],
)
def test_refused_launch_has_a_condition_with_the_remedy(cluster, code, reason, remedy):
    """The Launched condition says what to do; once the account is in order, the same NodeClaim is launched."""
    cluster.account.fail_next(LAUNCH, code, times=30)
    cluster.run(0.5)

    said = cluster.said_by_claims()
    assert any(text.startswith(reason) and remedy in text for text in said), said


def test_account_in_arrears_launches_once_it_is_paid(cluster):
    """ECS itself refuses while the account is in arrears."""
    cluster.account.in_arrears = True
    cluster.run(2)
    assert any("pay it" in said for said in cluster.said_by_claims())

    cluster.account.in_arrears = False


def test_missing_permission_to_list_instances_terminates_no_node(cluster):
    """ECS answers with an empty list, which is not taken for nodes that are gone."""
    cluster.until_running(3)
    before = {claim.metadata.name for claim in cluster.server.list(NODECLAIM).items}
    cluster.account.deny("ecs:DescribeInstances")
    cluster.run(15)

    assert {claim.metadata.name for claim in cluster.server.list(NODECLAIM).items} == before
    assert any("grant ecs:DescribeInstances" in said for said in cluster.logged())
    cluster.account.allow("ecs:DescribeInstances")


def test_wrong_region_is_named_with_the_remedy():
    """Nothing is launched; the log and the Event say which region is unknown."""
    logs = []
    settings = {"JOURNEYMAN_REGION": "cn-nowhere"}
    with LocalAlibabaDeployment(start=START, settings=settings, on_log=logs.append) as deployment:
        cluster = Cluster(deployment, logs)
        cluster.scale(3)
        cluster.run(5)

        said = cluster.logged() + cluster.said_by_node_class()
        assert any("cn-nowhere" in text or "InvalidRegionId" in text for text in said), said
        assert deployment.price_per_hour == 0
