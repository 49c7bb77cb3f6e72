"""Lists of ECS instances beyond what DescribeInstances' filter by tag can list, and instances that cannot be deleted."""

import json

import pytest

from journeyman.cloud.alibaba.ecs_instances import EcsInstances, parse_time
from journeyman.cloud.alibaba.tags import cluster_tag
from journeyman.core.api import labels
from journeyman.errors import CloudProviderError
from tests.unit.cloud.alibaba.conftest import AckCluster


class LargeAccount:
    """An account with many instances of one cluster; DescribeInstances finds the first 1,000 of a tag only."""

    def __init__(self, number):
        self.ids = [f"i-bp1{i:05d}" for i in range(number)]
        self.actions = []

    def __call__(self, call):
        self.actions.append(call.action)
        start = int(call.parameters.get("NextToken") or 0)
        if call.action == "ListTagResources":
            rows = [{"ResourceId": id_, "TagKey": "k"} for id_ in self.ids[start : start + 50]]
            following = start + 50
            token = str(following) if following < len(self.ids) else ""
            return {"TagResources": {"TagResource": rows}, "NextToken": token}
        wanted = call.parameters.get("InstanceIds")
        found = json.loads(wanted) if wanted else self.ids[:1000]
        token = str(start + 100) if start + 100 < len(found) else ""
        return {"Instances": {"Instance": [self.entry(id_) for id_ in found[start : start + 100]]}, "NextToken": token}

    def entry(self, id_):
        return {
            "InstanceId": id_,
            "InstanceType": "ecs.g7.large",
            "ZoneId": "cn-hangzhou-h",
            "Status": "Running",
            "CreationTime": "2026-11-02T08:00Z",
            "Tags": {
                "Tag": [
                    {"TagKey": labels.NODEPOOL, "TagValue": "web"},
                    {"TagKey": cluster_tag("c1"), "TagValue": "owned"},
                ]
            },
        }


@pytest.mark.parametrize(("number", "lists_tags"), [(999, False), (1000, True), (1234, True)])
def test_large_cluster_is_listed_by_its_tags(number, lists_tags):
    """Up to the limit one filter is enough."""
    account = LargeAccount(number)
    found = EcsInstances(account, "cn-hangzhou", "c1").list()
    assert len(found) == number
    assert ("ListTagResources" in account.actions) is lists_tags


def test_cluster_of_an_instance_is_not_unknown_for_lack_of_permission():
    """Else an interruption would be dropped as that of a foreign instance."""
    ack = AckCluster()
    instances = EcsInstances(ack.account.open_api(), "cn-hangzhou", ack.seeded.cluster_id)
    ack.provider = type(ack.provider)(ack.account.open_api(), ack.settings, ack.clock)
    id_ = ack.launch(ack.node_class()).instance.provider_id.partition(".")[2]

    assert instances.clusters_of([id_, "i-bp1gone"]) == {id_: ack.seeded.cluster_id}
    assert instances.clusters_of(["i-bp1gone"]) == {}
    ack.account.deny("ecs:DescribeInstances")
    with pytest.raises(CloudProviderError, match="ecs:DescribeInstances"):
        instances.clusters_of([id_])


def test_protected_instance_cannot_be_deleted():
    """The error names the protection; a retry does not help."""
    ack = AckCluster()
    outcome = ack.launch(ack.node_class())
    assert outcome.instance.provider_id == "cn-hangzhou.i-bp1launched"
    instance = ack.account.instances.launch(
        instance_type="ecs.g7.large", vswitch_id=ack.seeded.vswitches["cn-hangzhou-h"], image_id="m-1",
        security_groups=[], spot_strategy="NoSpot", tags={}, settings={},
    )  # fmt: skip
    ack.clock.advance(60)
    ack.account.protect(instance.id)
    [(provider_id, error)] = ack.provider.delete_each([f"cn-hangzhou.{instance.id}"]).items()

    assert provider_id == f"cn-hangzhou.{instance.id}"
    assert "DeletionProtection" in str(error)
    assert error.context["provider_id"] == provider_id
    assert not error.retryable


@pytest.mark.parametrize("text", ["2026-11-02T08:00Z", "2026-11-02T08:00:30Z"])
def test_times_are_read_to_the_minute_or_second(text):
    assert parse_time(text).isoformat().startswith("2026-11-02T08:00")


def listed(**changes):
    account = LargeAccount(1)
    plain = account.entry
    account.entry = lambda id_: {**plain(id_), **changes}
    [found] = EcsInstances(account, "cn-hangzhou", "c1").list()
    return found


def locks(*reasons):
    return {"OperationLocks": {"LockReason": [{"LockReason": reason} for reason in reasons]}}


@pytest.mark.parametrize(
    ("status", "described", "reason"),
    [
        ("Stopped", locks("financial"), "AccountInArrears"),
        ("Stopping", locks("", "Recycling"), "SpotInterruption"),
        ("Stopped", locks("unheard-of"), None),
        ("Stopped", locks(), None),
        ("Stopped", {}, None),
        ("Stopped", {"OperationLocks": None}, None),
        ("Stopped", {"OperationLocks": {}}, None),
        ("Running", locks("financial"), None),
    ],
)
def test_locks_of_a_stopped_instance_say_why_it_ended(status, described, reason):
    """One that a user stopped has none, and one that runs has not ended."""
    found = listed(Status=status, **described)
    assert (None if found.failure is None else found.failure.reason) == reason
    assert found.state == status.lower()
