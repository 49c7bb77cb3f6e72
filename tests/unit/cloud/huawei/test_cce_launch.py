"""Launches by CreateNode: its request, refused offerings, and nodes that CCE cannot build."""

import base64
from datetime import timedelta

import pytest

from journeyman.cloud.huawei.cce_launch import LISTED_WITHIN
from journeyman.core.api import labels
from journeyman.core.api.launch_faults import FaultScope
from journeyman.core.api.objects import OfferingKey
from journeyman.errors import CreateError, InsufficientCapacityError, NodeClassNotReadyError
from journeyman.ports import Launched, LaunchFailed
from tests.unit.cloud.conftest import a_claim, condition
from tests.unit.cloud.huawei.conftest import CceCluster

HOUR = 3600
CHEAP, NEXT = "c7.large.2", "c9.large.4"


def dry(cce, name=CHEAP, kinds=("on-demand",), *, in_job=False):
    """Take the stock of a flavor in all zones for an hour."""
    until = cce.clock.now() + cce.clock.now().resolution * HOUR * 1_000_000
    for zone in cce.account.zones:
        for kind in kinds:
            (cce.account.fails_in_job if in_job else cce.account.out_of_stock)(name, zone, kind, until)


def test_request_has_all_settings_where_cce_expects_them(cce):
    """The published provider's request, with a name, tags and labels."""
    taints = [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]
    startup = [{"key": "node.kubernetes.io/network-unavailable", "effect": "NoSchedule"}]
    claim = a_claim("web-1", spec={"taints": taints, "startupTaints": startup}, instance_type=CHEAP)
    spec = cce.created(
        claim,
        kubelet={"maxPods": 60, "kubeReserved": {"cpu": "200m", "memory": "1Gi"}, "systemReserved": {"pid": "1000"}},
        tags={"team": "web"},
        preInstall="echo hello",
        metadataOptions={"httpTokens": "required"},
        runtimeConfiguration={"type": "docker"},
    )

    assert (spec["flavor"], spec["az"], spec["count"], spec["billingMode"]) == (CHEAP, "cn-north-4a", 1, 0)
    assert (spec["os"], spec["runtime"]) == ("Huawei Cloud EulerOS 2.0", {"name": "docker"})
    assert spec["rootVolume"] == {"size": 40, "volumetype": "SSD"}
    assert spec["dataVolumes"] == [{"size": 100, "volumetype": "SSD"}]
    assert spec["storage"]["storageSelectors"][0]["matchLabels"] == {"size": "100", "volumeType": "SSD", "count": "1"}
    assert spec["nodeNicSpec"]["primaryNic"]["subnetId"] == cce.seeded.subnets["demo"]
    assert spec["taints"] == [
        {"key": "gpu", "effect": "NoSchedule", "value": "yes"},
        {"key": "karpenter.sh/unregistered", "effect": "NoExecute"},
    ]
    assert spec["k8sTags"]["team"] == "web"
    assert spec["k8sTags"][labels.NODEPOOL] == "default"
    assert not any("kubernetes.io/" in key for key in spec["k8sTags"])
    assert {"key": "karpenter-nodeclaim", "value": "web-1"} in spec["userTags"]
    assert {"key": "team", "value": "web"} in spec["userTags"]
    assert base64.b64decode(spec["extendParam"].pop("alpha.cce/preInstall")) == b"echo hello"
    assert spec["extendParam"] == {
        "maxPods": 60,
        "kubeReservedCpu": 200,
        "kubeReservedMem": 1024,
        "systemReservedPid": 1000,
        "serverMetadataHttpTokens": "required",
    }
    name = cce.api.bodies("CreateNode")[-1]["metadata"]["name"]
    assert name.startswith("web-1-")


def test_node_gets_as_many_labels_as_cce_accepts_and_always_the_uid(cce):
    """CreateNode accepts twenty; the others are added at registration. CCE chooses a runtime that the NodeClass leaves open."""
    claim = a_claim()
    claim.metadata.labels.update({f"label-{n:02}": "x" for n in range(25)})
    sent = cce.created(claim, runtimeConfiguration={})
    assert len(sent["k8sTags"]) == 20
    assert sent["k8sTags"]["karpenter.k8s.huawei/nodeclaim-uid"] == "default-abc-uid"
    assert "runtime" not in sent


def test_subnets_with_most_free_addresses_come_first(cce):
    """The status lists them for launches; without one there are no types."""
    cce.account.set_free_addresses(cce.seeded.subnets["demo"], 7)
    cce.account.set_free_addresses(cce.seeded.subnets["demo-2"], 9)
    body = cce.node_class(subnetSelectorTerms=[{"name": "demo"}, {"name": "demo-2"}])
    assert [s["id"] for s in body["status"]["subnets"]] == [cce.seeded.subnets[name] for name in ("demo-2", "demo")]
    with pytest.raises(NodeClassNotReadyError):
        cce.provider.get_instance_types({**body, "status": {}})


def test_spot_node_has_the_users_limit_as_its_price(cce):
    """Without a limit, CCE uses the on-demand price. Above it there is no offering: a launch would wait for a lower price."""
    spot = a_claim("spot", capacity_type="spot", instance_type=NEXT)
    assert cce.created(spot)["extendParam"] == {"marketType": "spot"}
    limited = a_claim("limited", capacity_type="spot", instance_type=NEXT)
    assert cce.created(limited, spotPriceLimit=0.5)["extendParam"] == {"marketType": "spot", "spotPrice": "0.5"}
    assert all(instance.capacity_type == "spot" for instance in cce.provider.list())
    types = cce.provider.get_instance_types(cce.node_class(spotPriceLimit=0.001))
    assert {o.capacity_type for t in types for o in t.offerings} == {"on-demand"}


def test_offerings_are_tried_from_the_cheapest_on(cce):
    dry(cce)
    outcome = cce.launch(cce.node_class(), a_claim(arch="amd64"))

    assert isinstance(outcome, Launched)
    assert outcome.instance.instance_type == NEXT
    assert outcome.unavailable == tuple(OfferingKey(CHEAP, zone, "on-demand") for zone in cce.account.zones)
    assert {refusal.reason for refusal in outcome.refusals} == {"NoStock"}
    assert len(cce.provider.list()) == 1


def test_launch_stops_at_a_refusal_that_concerns_every_offering(cce):
    """A quota; the condition says what to do."""
    cce.account.server_quota = 0
    outcome = cce.launch(cce.node_class())

    assert isinstance(outcome, LaunchFailed)
    assert isinstance(outcome.error, CreateError)
    assert outcome.error.condition_reason == "QuotaExceeded"
    assert "Request a higher one" in outcome.error.message
    assert len(cce.api.bodies("CreateNode")) == 1


def test_node_that_cce_cannot_build_says_why(cce):
    """CreateNode accepted it; the job found no stock. A repeated launch reports the offering, and the node can be deleted."""
    dry(cce, in_job=True)
    outcome = cce.launch(cce.node_class(), a_claim(instance_type=CHEAP))
    assert isinstance(outcome, Launched)
    assert not outcome.is_confirmed
    cce.wait(60)

    [failed] = cce.provider.list()
    assert failed.state == "stopped"
    assert (failed.failure.reason, failed.failure.is_capacity) == ("NoStock", True)
    assert "stock" in failed.failure.message
    again = cce.launch(cce.node_class(), a_claim(instance_type=CHEAP))
    assert isinstance(again.error, InsufficientCapacityError)
    assert "stock" in again.error.message
    assert again.unavailable == (OfferingKey(CHEAP, failed.zone, "on-demand"),)
    cce.provider.delete_each([failed.provider_id])
    cce.wait(60)
    assert cce.provider.list() == ()


def test_subnets_without_addresses_make_all_zones_unavailable(cce):
    """A subnet serves every zone; another subnet of the NodeClass is tried by the next launch."""
    both = [{"name": "demo"}, {"name": "demo-2"}]
    body = cce.node_class(subnetSelectorTerms=both)
    for name in ("demo", "demo-2"):
        cce.account.set_free_addresses(cce.seeded.subnets[name], 0)
    first, second = cce.launch(body, a_claim("a")), cce.launch(body, a_claim("b"))

    assert isinstance(second.error, InsufficientCapacityError)
    assert first.unavailable == ()
    assert {key.instance_type for key in second.unavailable} == {"*"}
    assert {key.zone for key in second.unavailable} == set(cce.account.zones)


@pytest.mark.parametrize("is_lost", [True, False])
def test_undecided_launch_is_repeated_once_lists_show_its_node(cce, is_lost):
    """CreateNode has no client token: a launch before ListNodes shows the first node would create a second one."""
    if is_lost:
        cce.account.lose_next_answer("CreateNode")
    else:
        cce.account.fail_next("CreateNode", "CCE.01500001")
    failed = cce.launch(cce.node_class())

    assert isinstance(failed, LaunchFailed)
    assert (type(failed.error), failed.answered, failed.retry_after) == (CreateError, False, LISTED_WITHIN)

    cce.wait(10)  # the failure could not be recorded, and lists lag behind
    cce.account.list_lag_seconds = 20
    early = cce.launch(cce.node_class())
    assert (early.retry_after, len(cce.api.bodies("CreateNode"))) == (LISTED_WITHIN - timedelta(seconds=10), 1)
    cce.wait(20)
    assert isinstance(cce.launch(cce.node_class()), Launched)
    assert len(cce.account.nodes.nodes) == 1


def test_node_that_could_not_be_recorded_is_adopted_before_lists_show_it(cce):
    """CreateNode has no client token. Another process would create a second node, which garbage collection deletes."""
    cce.account.list_lag_seconds = 20
    first, again = (cce.launch(cce.node_class()) for _ in range(2))
    other = cce.launch(cce.node_class(), a_claim("other"))
    assert isinstance(again, Launched)
    assert again.instance.provider_id == first.instance.provider_id != other.instance.provider_id
    assert len(cce.api.bodies("CreateNode")) == 2


def test_node_id_comes_from_the_job_if_the_answer_lacks_it(cce):
    """A job that does not say it yet ends the launch; the next run finds the node by its name."""
    first = cce.launch(cce.node_class())
    cce.api.answers["CreateNode"] = {"metadata": {}, "status": {"jobID": "job-1"}}
    vm_job = {"spec": {"type": "CreateNodeVM", "resourceID": first.instance.provider_id}, "status": {}}
    cce.api.answers["ShowJob"] = {"spec": {"type": "CreateNode", "subJobs": [vm_job]}, "status": {"phase": "Running"}}
    found = cce.launch(cce.node_class(), a_claim("found"))
    cce.api.answers["ShowJob"] = {"spec": {"type": "CreateNode"}, "status": {"phase": "Initializing"}}
    unknown = cce.launch(cce.node_class(), a_claim("unknown"))

    assert found.instance.provider_id == first.instance.provider_id
    assert isinstance(unknown, LaunchFailed)
    assert not unknown.answered
    assert "finds it by its name" in unknown.error.message


def test_turbo_cluster_gets_only_flavors_with_sub_interfaces():
    plain, turbo = CceCluster(types=None), CceCluster(network_mode="eni", types=None)
    offered = [{t.name for t in c.provider.get_instance_types(c.node_class())} for c in (plain, turbo)]
    assert offered[1] < offered[0]
    assert isinstance(turbo.launch(turbo.node_class()), Launched)


def test_settings_that_cce_refuses_are_a_condition(cce):
    """The CRD admits large disks, as the published one does; CCE would refuse each node in a subnet of another VPC."""
    cce.account.network.add_subnet("elsewhere", "10.1.0.0/24", vpc_id="11111111-2222-4333-8444-555555555555")
    body = cce.node_class(blockDeviceMappings={"root": {"volumeSize": 2000, "volumeType": "SSD"}})
    status, reason, message = condition(body, "ValidationSucceeded")
    assert (status, reason, "2000" in message, "1024" in message) == ("False", "NodeRefused", True, True)
    assert (condition(body, "Ready")[0], condition(body, "SubnetsReady")[0]) == ("False", "True")
    status, reason, message = condition(cce.node_class(subnetSelectorTerms=[{"name": "elsewhere"}]), "SubnetsReady")
    assert (status, reason) == ("False", "SubnetsNotInVPC")
    assert cce.seeded.vpc in message


def test_missing_disks_of_the_node_classs_type_do_not_concern_other_node_classes(cce):
    """CCE has no EVS disks of the type: the CCENodeClass is at fault, and its offerings are unavailable for it alone."""
    body = cce.node_class()
    cce.account.fail_next("CreateNode", "CCE.01400022", times=20)
    outcome = cce.launch(body, a_claim(spec={"nodeClassRef": {"name": "default"}}))

    assert outcome.unavailable == ()
    assert outcome.unavailable_for_class
    [fault] = outcome.faults
    assert (fault.scope, fault.name) == (FaultScope.NODE_CLASS, "default")
    assert "CCE.01400022" in fault.message
    assert "volumeType" in fault.remedy
