"""List, get and delete the ECS instances that carry this cluster's tags, and read their scheduled maintenance.

ECS answers a caller without permission as if there were no instances. So no instance counts as missing before a dry run has
shown that the caller may list instances (`_check_permission`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime, timezone
from itertools import islice
from typing import Any, Final

from journeyman.cloud.alibaba import tags
from journeyman.cloud.alibaba.alibaba_errors import IS_STARTING, LOCK_RULES, RELEASED, error_code, translated
from journeyman.cloud.alibaba.open_api import ECS, ApiCall, OpenApi, OpenApiError
from journeyman.cloud.instance_batches import batches, by_instance_id, delete_in_batches
from journeyman.cloud.launching import usable_and_oldest_first
from journeyman.core.api import labels
from journeyman.core.state import BuildFailure, InstanceStatus
from journeyman.errors import (
    CloudProviderError,
    CloudUnavailableError,
    NoInstanceIdError,
)
from journeyman.ports import Instance

_PAGE: Final = 100
_IDS: Final = 100  # of instances in one request
_HISTORIES: Final = 20  # instances whose events one call reads, one request each; they mostly have the same cause
_TAG_FILTER_LIMIT: Final = 1000  # DescribeInstances filters by tag among so many instances at most
_DRY_RUN_PASSED: Final = frozenset({"DryRunOperation", "DRYRUN.SUCCESS"})

# ports.Instance.state by InstanceStatus; an instance that was deleted is not listed any more
_STATES: Final[Mapping[str, str]] = {
    "Pending": "pending",
    "Starting": "pending",
    "Running": "running",
    "Stopping": "stopping",
    "Stopped": "stopped",
}
# the maintenance after which a node does not work as before
_MAINTENANCE: Final = tuple(
    f"{group}.{kind}"
    for group, kinds in (
        ("SystemMaintenance", ("Reboot", "Redeploy", "Stop", "RebootAndIsolateErrorDisk")),
        ("SystemFailure", ("Reboot", "Redeploy", "Stop", "Delete")),
    )
    for kind in kinds
)
_UNFINISHED: Final = ("Scheduled", "Inquiring", "Executing")


class EcsInstances:
    """The ECS instances of one cluster."""

    def __init__(self, call: OpenApi, region: str, cluster_id: str) -> None:
        self._call = call
        self._region = region
        self._cluster_id = cluster_id

    def list(self) -> tuple[Instance, ...]:
        """Return all instances of the cluster's NodePools that were not deleted, by provider id."""
        found = tuple(i for i in self._of_cluster() if labels.NODEPOOL in i.tags)
        if not found:
            self._check_permission()
        return tuple(sorted(found, key=lambda instance: instance.provider_id))

    def by_claim_uid(self, uids: Iterable[str]) -> dict[str, Instance]:
        """Return the instances that were launched for these NodeClaims, by claim UID.

        If a claim has two instances, the result holds one that is pending or running; of two such ones the older, and of
        two of the same age the lesser provider id. One list serves all NodeClaims, since a request filters by one value a tag.
        """
        wanted = set(uids)
        found: dict[str, Instance] = {}
        for instance in sorted(self.list() if wanted else (), key=usable_and_oldest_first):
            if instance.claim_uid in wanted:
                found.setdefault(instance.claim_uid, instance)
        return found

    def get_each(self, provider_ids: Iterable[str]) -> dict[str, Instance]:
        """Return the instances that were not deleted, by provider id. Raises CloudProviderError."""
        wanted, _ = by_instance_id(provider_ids, instance_id_from)
        found: dict[str, Instance] = {}
        for ids in batches(wanted, _IDS):
            found |= {instance_id_from(i.provider_id): i for i in self._describe({"InstanceIds": json.dumps(ids)})}
        if wanted and not found:
            self._check_permission()
        return {provider_id: found[id_] for id_, provider_id in wanted.items() if id_ in found}

    def delete_each(self, provider_ids: Iterable[str]) -> dict[str, CloudProviderError]:
        """Start deleting instances behind NodeClaims; safe to repeat.

        Returns:
            The error of each that ECS refused, by provider id: NodeClaimNotFoundError if it was deleted, and
            CloudUnavailableError if it is still starting, and can be deleted some seconds later.
        """
        return delete_in_batches(provider_ids, instance_id_from, self._delete, _IDS)

    def _delete(self, ids: Mapping[str, str]) -> dict[str, CloudProviderError]:
        """Delete instances, given as provider id by instance id, in one request, which ECS refuses if it refuses one of them.

        Raises:
            CloudProviderError: ECS refused the request.
        """
        parameters = {"RegionId": self._region, "InstanceId": list(ids), "Force": True}
        context = {"provider_id": next(iter(ids.values()))} if len(ids) == 1 else {"instances": len(ids)}
        try:
            with translated("ecs:DeleteInstances", **context):
                self._call(ApiCall(service=ECS, action="DeleteInstances", parameters=parameters))
        except CloudProviderError as error:
            if len(ids) == 1 and error_code(error) in IS_STARTING:
                text = f"the instance is still starting, and is deleted some seconds later: {error.message}"
                raise CloudUnavailableError(text, **error.context) from error
            raise
        return {}

    def clusters_of(self, instance_ids: Iterable[str]) -> dict[str, str]:
        """Return the cluster id in each instance's tag by instance id, empty without the tag; unknown instances are missing.

        Raises:
            CloudProviderError: ECS did not respond, or the caller lacks ecs:DescribeInstances.
        """
        found: dict[str, str] = {}
        remaining = iter(sorted(set(instance_ids)))
        while ids := list(islice(remaining, _IDS)):
            for instance in self._describe({"InstanceIds": json.dumps(ids)}):
                found[instance_id_from(instance.provider_id)] = instance.tags.get(tags.ACK_CLUSTER_ID, "")
        if not found:
            self._check_permission()
        return found

    def statuses(self) -> tuple[InstanceStatus, ...]:
        """Return the unfinished maintenance of all instances in the region, sorted by provider id and name."""
        found: set[InstanceStatus] = set()
        parameters = {
            "RegionId": self._region,
            "InstanceEventType": _MAINTENANCE,
            "InstanceEventCycleStatus": _UNFINISHED,
        }
        for page in self._pages("DescribeInstanceHistoryEvents", parameters, page_number=True):
            events = (page.get("InstanceSystemEventSet") or {}).get("InstanceSystemEventType") or ()
            for event in events:
                name = str((event.get("EventType") or {}).get("Name", ""))
                provider_id = provider_id_of(self._region, event["InstanceId"])
                found.add(InstanceStatus(provider_id=provider_id, category="EventStatus", name=name))
            if len(events) < _PAGE:
                break
        return tuple(sorted(found, key=lambda status: (status.provider_id, status.name)))

    def end_reasons(self, provider_ids: Collection[str]) -> dict[str, BuildFailure]:
        """Return why ECS released these instances, as its system events say. Raises CloudProviderError."""
        found: dict[str, BuildFailure] = {}
        by_instance = {id_.rpartition(".")[2]: id_ for id_ in sorted(provider_ids)[:_HISTORIES] if "." in id_}
        for instance_id, provider_id in by_instance.items():
            parameters = {
                "RegionId": self._region,
                "InstanceId": instance_id,
                "InstanceEventType": ["SystemFailure.Delete"],
                "PageNumber": 1,
                "PageSize": _PAGE,
            }
            with translated("ecs:DescribeInstanceHistoryEvents", provider_id=provider_id):
                page = self._call(ApiCall(service=ECS, action="DescribeInstanceHistoryEvents", parameters=parameters))
            events = (page.get("InstanceSystemEventSet") or {}).get("InstanceSystemEventType") or ()
            if events:
                words = str(events[0].get("Reason") or "system event SystemFailure.Delete")
                found[provider_id] = RELEASED.build_failure(words)
        return found

    def _of_cluster(self) -> Iterator[Instance]:
        tag = [{"Key": tags.cluster_tag(self._cluster_id), "Value": "owned"}]
        found = list(self._describe({"Tag": tag}))
        return self._of_large_cluster(tag) if len(found) >= _TAG_FILTER_LIMIT else iter(found)

    def _of_large_cluster(self, tag: Any) -> Iterator[Instance]:
        """Yield the instances of a cluster that DescribeInstances' filter by tag cannot list."""
        parameters = {"RegionId": self._region, "ResourceType": "instance", "Tag": tag}
        ids = {
            resource["ResourceId"]
            for page in self._pages("ListTagResources", parameters)
            for resource in (page.get("TagResources") or {}).get("TagResource") or ()
        }
        remaining = iter(sorted(ids))
        while some := list(islice(remaining, _IDS)):
            yield from self._describe({"InstanceIds": json.dumps(some)})

    def _describe(self, filters: Mapping[str, Any], **context: Any) -> Iterator[Instance]:
        parameters = {"RegionId": self._region, "MaxResults": _PAGE, **filters}
        for page in self._pages("DescribeInstances", parameters, **context):
            for entry in (page.get("Instances") or {}).get("Instance") or ():
                yield _instance(entry, self._region)

    def _pages(
        self, action: str, parameters: Mapping[str, Any], *, page_number: bool = False, **context: Any
    ) -> Iterator[Mapping[str, Any]]:
        """Yield pages; those with numbers go on until the caller stops, those with tokens until there is none."""
        more: dict[str, Any] = {"PageNumber": 1, "PageSize": _PAGE} if page_number else {}
        while True:
            with translated(f"ecs:{action}", **context):
                page = self._call(ApiCall(service=ECS, action=action, parameters={**parameters, **more}))
            yield page
            if page_number:
                more["PageNumber"] += 1
            elif token := page.get("NextToken"):
                more = {"NextToken": token}
            else:
                return

    def _check_permission(self) -> None:
        """Raise CloudProviderError if an empty answer may mean that the caller lacks ecs:DescribeInstances.

        Each empty answer needs a check of its own, since a permission can be revoked between two requests.
        """
        try:
            with translated("ecs:DescribeInstances"):
                parameters = {"RegionId": self._region, "DryRun": True}
                self._call(ApiCall(service=ECS, action="DescribeInstances", parameters=parameters))
        except CloudProviderError as error:
            cause = error.__cause__
            if not isinstance(cause, OpenApiError) or cause.code not in _DRY_RUN_PASSED:
                raise


def _instance(entry: Mapping[str, Any], region: str) -> Instance:
    return Instance(
        provider_id=provider_id_of(region, entry["InstanceId"]),
        instance_type=entry["InstanceType"],
        zone=entry["ZoneId"],
        # preemptible instances are paid by use as well, so only the strategy distinguishes them
        capacity_type=labels.ON_DEMAND if entry.get("SpotStrategy", "NoSpot") == "NoSpot" else labels.SPOT,
        state=_STATES.get(entry["Status"], entry["Status"].lower()),
        launched_at=parse_time(entry["CreationTime"]),
        image_id=entry.get("ImageId", ""),
        subnet_id=(entry.get("VpcAttributes") or {}).get("VSwitchId", ""),
        security_group_ids=tuple(sorted((entry.get("SecurityGroupIds") or {}).get("SecurityGroupId") or ())),
        tags=tags.from_response(entry),
        failure=_failure(entry),
    )


def _failure(entry: Mapping[str, Any]) -> BuildFailure | None:
    """Return why ECS stopped the instance, from its locks; None if it runs, or has none that is known."""
    if entry["Status"] not in ("Stopping", "Stopped"):
        return None
    locks = (entry.get("OperationLocks") or {}).get("LockReason") or ()
    names = [str(lock.get("LockReason") or "") for lock in locks]
    known = ((name, LOCK_RULES[name]) for name in names if name in LOCK_RULES)
    return next((rule.build_failure(f"OperationLocks: {name}") for name, rule in known), None)


def parse_time(text: str) -> datetime:
    """Return a time as ECS writes it, to the minute or to the second, in UTC."""
    pattern = "%Y-%m-%dT%H:%MZ" if text.count(":") == 1 else "%Y-%m-%dT%H:%M:%SZ"
    return datetime.strptime(text, pattern).replace(tzinfo=timezone.utc)


def provider_id_of(region: str, instance_id: str) -> str:
    """Return the provider id as ACK's cloud controller writes it into `Node.spec.providerID`."""
    return f"{region}.{instance_id}"


def instance_id_from(provider_id: str) -> str:
    """Return the instance id in a provider id.

    Raises:
        NoInstanceIdError: It is not a provider id of Alibaba Cloud.
    """
    region, _, instance_id = provider_id.removeprefix("alicloud://").partition(".")
    if not region or not instance_id.startswith("i-"):
        raise NoInstanceIdError(
            "not an Alibaba Cloud provider id, expected <region>.<instance id>", provider_id=provider_id
        )
    return instance_id
