"""What EC2's own status checks find wrong with instances, and what AWS has planned for their hosts.

Restates: karpenter-provider-aws pkg/providers/instancestatus/instancestatus.go `List`.
Differs: every failed check is told, with since when; how long one must last is the caller's to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from journeyman.cloud.aws.errors import translated
from journeyman.cloud.aws.instances import provider_id_of
from journeyman.cloud.aws.settings import Clients
from journeyman.core.state import InstanceStatus

# EC2 joins filters of different names by AND, so each is a call of its own
_FILTERS: Final[Mapping[str, list[str]]] = {
    "instance-status.status": ["impaired"],
    "system-status.status": ["impaired"],
    "event.code": ["instance-reboot", "system-reboot", "system-maintenance", "instance-retirement", "instance-stop"],
}
_CHECKS: Final = ("InstanceStatus", "SystemStatus")
_FINISHED: Final = ("[Completed]", "[Canceled]")  # how the description of an event that is over begins


def failing_checks(clients: Clients) -> tuple[InstanceStatus, ...]:
    """Failed checks and planned events of all instances in the region, by provider id, category and name.

    Checks of attached EBS volumes are left out, as they do not tell the node's volumes from its pods'.

    Raises:
        CloudProviderError: EC2 could not be asked, or refused.
    """
    pages = clients.ec2.get_paginator("describe_instance_status")
    found: set[InstanceStatus] = set()
    with translated("ec2:DescribeInstanceStatus"):
        for name, values in _FILTERS.items():
            for page in pages.paginate(Filters=[{"Name": name, "Values": values}]):
                for entry in page["InstanceStatuses"]:
                    found.update(_failing(entry))
    return tuple(sorted(found, key=lambda s: (s.provider_id, s.category, s.name)))


def _failing(entry: Mapping[str, Any]) -> Iterator[InstanceStatus]:
    provider_id = provider_id_of(entry["AvailabilityZone"], entry["InstanceId"])
    for category in _CHECKS:
        for check in entry.get(category, {}).get("Details", ()):
            if check["Status"] == "failed":
                since = check.get("ImpairedSince")
                yield InstanceStatus(provider_id=provider_id, category=category, name=check["Name"], since=since)
    for event in entry.get("Events", ()):
        if not event.get("Description", "").startswith(_FINISHED):
            yield InstanceStatus(provider_id=provider_id, category="EventStatus", name=event["Code"])
