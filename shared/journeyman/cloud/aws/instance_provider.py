"""List, get and terminate the EC2 instances that carry this cluster's tags, and read their status checks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import timezone
from typing import Any, Final

from journeyman.cloud.aws import tags
from journeyman.cloud.aws.aws_errors import launch_rule, translated
from journeyman.cloud.aws.aws_settings import Clients
from journeyman.cloud.instance_batches import batches, by_instance_id, delete_in_batches
from journeyman.cloud.launching import usable_and_oldest_first
from journeyman.core.api import labels
from journeyman.core.state import BuildFailure, InstanceStatus
from journeyman.errors import CloudProviderError, NodeClaimNotFoundError, NoInstanceIdError
from journeyman.ports import Instance

# instance.go `instanceStateFilter`: all states but terminated
_LIVE: Final = ["pending", "running", "stopping", "stopped", "shutting-down"]
_PAGE: Final = 1000
_FILTER_VALUES: Final = 200  # EC2's limit of values in one filter
_MOST_TERMINATED: Final = 500  # in one request, as Karpenter's batcher


class InstanceProvider:
    """The EC2 instances of one cluster."""

    def __init__(self, clients: Clients, cluster: str) -> None:
        self._clients = clients
        self._cluster = cluster

    def list(self) -> tuple[Instance, ...]:
        """Return all instances that are not terminated, by provider id.

        Restates: karpenter-provider-aws pkg/providers/instance/instance.go `List`.
        """
        filters = _filters({f"tag:{tags.CLUSTER}": [self._cluster], "instance-state-name": _LIVE})
        # one filter per tag key, since instances must carry both tags
        filters += [{"Name": "tag-key", "Values": [key]} for key in (labels.NODEPOOL, tags.NODE_CLASS)]
        return tuple(sorted(self._describe(filters), key=lambda instance: instance.provider_id))

    def by_claim_uid(self, uids: Iterable[str]) -> dict[str, Instance]:
        """Return the instances that were launched for these NodeClaims, by claim UID, also those that ended.

        If a claim has two instances, the result holds one that is pending or running; of two such ones the older, and of
        two of the same age the lesser provider id. EC2 lists a terminated instance for about an hour.
        """
        found: dict[str, Instance] = {}
        unique_uids = sorted(set(uids))
        for start in range(0, len(unique_uids), _FILTER_VALUES):
            filters = {
                f"tag:{tags.CLAIM_UID}": unique_uids[start : start + _FILTER_VALUES],
                f"tag:{tags.CLUSTER}": [self._cluster],
            }
            for instance in sorted(self._describe(_filters(filters)), key=usable_and_oldest_first):
                found.setdefault(instance.tags[tags.CLAIM_UID], instance)
        return found

    def get_each(self, provider_ids: Iterable[str]) -> dict[str, Instance]:
        """Return the instances that are not terminated, by provider id. Raises CloudProviderError.

        Filters find them: a request that names an instance EC2 does not know fails for all others as well.
        """
        wanted, _ = by_instance_id(provider_ids, instance_id_from)
        found = (i for ids in batches(wanted, _FILTER_VALUES) for i in self._describe(_filters({"instance-id": ids})))
        by_id = {instance_id_from(i.provider_id): i for i in found if i.state != "terminated"}
        return {provider_id: by_id[id_] for id_, provider_id in wanted.items() if id_ in by_id}

    def delete_each(self, provider_ids: Iterable[str]) -> dict[str, CloudProviderError]:
        """Start terminating instances behind NodeClaims; safe to repeat.

        Returns:
            The error of each that EC2 refused, by provider id: NodeClaimNotFoundError if it is terminated; `retryable` is
            whether the next run should try again.

        Restates: karpenter-provider-aws pkg/providers/instance/instance.go `Delete`, pkg/batcher/terminateinstances.go.
        Differs: no read before; the reply has the previous state.
        """
        return delete_in_batches(provider_ids, instance_id_from, self._terminate, _MOST_TERMINATED)

    def _terminate(self, ids: Mapping[str, str]) -> dict[str, CloudProviderError]:
        """Terminate instances, given as provider id by instance id, in one request, which EC2 refuses if it refuses one of them.

        Raises:
            CloudProviderError: EC2 refused the request.
        """
        one = next(iter(ids.values())) if len(ids) == 1 else ""
        context = {"provider_id": one, "zone": zone_from(one)} if one else {"instances": len(ids)}
        with translated("ec2:TerminateInstances", **context):
            reply = self._clients.ec2.terminate_instances(InstanceIds=list(ids))
        ended = [e["InstanceId"] for e in reply["TerminatingInstances"] if e["PreviousState"]["Name"] == "terminated"]
        return {ids[i]: NodeClaimNotFoundError("the instance is terminated", provider_id=ids[i]) for i in ended}

    def end_reasons(self, provider_ids: Collection[str]) -> dict[str, BuildFailure]:
        """Return why these instances ended; EC2 says so for about an hour. Raises CloudProviderError."""
        ids = sorted({id_.rpartition("/")[2] for id_ in provider_ids if id_.startswith("aws://")})
        by_id: dict[str, BuildFailure] = {}
        for start in range(0, len(ids), _FILTER_VALUES):
            for instance in self._describe(_filters({"instance-id": ids[start : start + _FILTER_VALUES]})):
                if instance.failure is not None:
                    by_id[instance_id_from(instance.provider_id)] = instance.failure
        found = ((id_, by_id.get(id_.rpartition("/")[2])) for id_ in provider_ids)
        return {id_: failure for id_, failure in found if failure is not None}

    def name(self, provider_id: str, name: str) -> None:
        """Set the tag `Name`. Raises NodeClaimNotFoundError if EC2 does not know the instance, and CloudProviderError."""
        with translated("ec2:CreateTags", provider_id=provider_id):
            self._clients.ec2.create_tags(
                Resources=[instance_id_from(provider_id)], Tags=tags.to_aws({tags.NAME: name})
            )

    def statuses(self) -> tuple[InstanceStatus, ...]:
        """Return the failing checks of all instances in the region (`failing_checks`). Raises CloudProviderError."""
        return failing_checks(self._clients)

    def _describe(self, filters: Sequence[Mapping[str, Any]]) -> Iterator[Instance]:
        pages = self._clients.ec2.get_paginator("describe_instances")
        with translated("ec2:DescribeInstances", cluster=self._cluster):
            for page in pages.paginate(Filters=filters, PaginationConfig={"PageSize": _PAGE}):
                yield from _instances(page)


def _filters(values: Mapping[str, list[str]]) -> list[dict[str, Any]]:
    return [{"Name": name, "Values": accepted} for name, accepted in values.items()]


def _instances(reply: Mapping[str, Any]) -> Iterator[Instance]:
    for reservation in reply["Reservations"]:
        for entry in reservation["Instances"]:
            yield _instance(entry)


def _instance(entry: Mapping[str, Any]) -> Instance:
    zone = entry["Placement"]["AvailabilityZone"]
    return Instance(
        provider_id=provider_id_of(zone, entry["InstanceId"]),
        instance_type=entry["InstanceType"],
        zone=zone,
        capacity_type=_capacity_type(entry),
        state=entry["State"]["Name"],
        launched_at=entry["LaunchTime"].astimezone(timezone.utc),
        image_id=entry.get("ImageId", ""),
        reservation_id=entry.get("CapacityReservationId", ""),
        partition=str(entry["Placement"].get("PartitionNumber") or ""),
        placement_group_id=entry["Placement"].get("GroupId", ""),
        subnet_id=entry.get("SubnetId", ""),
        security_group_ids=tuple(sorted(group["GroupId"] for group in entry.get("SecurityGroups", ()))),
        tags=tags.from_aws(entry.get("Tags")),
        failure=_failure(entry),
    )


def _failure(entry: Mapping[str, Any]) -> BuildFailure | None:
    """Return why the instance ended, in EC2's words; None if it runs, or EC2 does not say."""
    reason = entry.get("StateReason") or {}
    code = str(reason.get("Code") or "")
    if entry["State"]["Name"] in ("pending", "running") or not code:
        return None
    texts = (code, str(reason.get("Message") or ""), str(entry.get("StateTransitionReason") or ""))
    return launch_rule(code).build_failure("; ".join(dict.fromkeys(filter(None, texts))))


def _capacity_type(entry: Mapping[str, Any]) -> str:
    if entry.get("InstanceLifecycle") == "spot":
        return labels.SPOT
    return labels.RESERVED if entry.get("CapacityReservationId") else labels.ON_DEMAND


def clusters_by_instance(clients: Clients, instance_ids: Iterable[str]) -> dict[str, str]:
    """Return the cluster in each instance's tag by instance id, empty without the tag; instances that EC2 does not know are missing.

    Raises:
        CloudProviderError: EC2 did not respond, or rejected the call.
    """
    unique_ids, found = sorted(set(instance_ids)), {}
    pages = clients.ec2.get_paginator("describe_instances")
    for start in range(0, len(unique_ids), _FILTER_VALUES):
        filters = _filters({"instance-id": unique_ids[start : start + _FILTER_VALUES]})
        with translated("ec2:DescribeInstances"):
            for page in pages.paginate(Filters=filters, PaginationConfig={"PageSize": _PAGE}):
                for reservation in page["Reservations"]:
                    for entry in reservation["Instances"]:
                        found[entry["InstanceId"]] = tags.from_aws(entry.get("Tags")).get(tags.CLUSTER, "")
    return found


def provider_id_of(zone: str, instance_id: str) -> str:
    """Return the provider id as the AWS cloud controller writes it into `Node.spec.providerID`."""
    return f"aws:///{zone}/{instance_id}"


def instance_id_from(provider_id: str) -> str:
    """Return the EC2 instance id in a provider id.

    Raises:
        NoInstanceIdError: It is not a provider id of AWS.
    """
    instance_id = provider_id.rpartition("/")[2]
    if not provider_id.startswith("aws://") or not instance_id.startswith("i-"):
        raise NoInstanceIdError("not an AWS provider id, expected aws:///<zone>/<instance id>", provider_id=provider_id)
    return instance_id


def zone_from(provider_id: str) -> str:
    """Return the zone in a provider id; empty if it has none."""
    return provider_id.rpartition("/")[0].rpartition("/")[2]


# EC2 joins filters of different names by AND, so each filter needs its own call
_FILTERS: Final[Mapping[str, list[str]]] = {
    "instance-status.status": ["impaired"],
    "system-status.status": ["impaired"],
    "event.code": ["instance-reboot", "system-reboot", "system-maintenance", "instance-retirement", "instance-stop"],
}
_CHECKS: Final = ("InstanceStatus", "SystemStatus")
_FINISHED: Final = ("[Completed]", "[Canceled]")  # prefixes of the description of a finished event


def failing_checks(clients: Clients) -> tuple[InstanceStatus, ...]:
    """Return failed checks and scheduled events of all instances in the region, sorted by provider id, category, name.

    The result omits checks of attached EBS volumes, which may belong to a pod.

    Raises:
        CloudProviderError: EC2 did not respond, or rejected the call.
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
