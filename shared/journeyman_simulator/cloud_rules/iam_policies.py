"""Says which rights of IAM a call to AWS needs; `policy_statements` decides whether a role's policies allow them.

The service authorization reference has the rights: CreateFleet needs `ec2:RunInstances` on everything that it launches,
`ec2:CreateTags` on everything that it tags, and `iam:PassRole` on the role in the launch template's instance profile.

Restates: IAM user guide, "Policy evaluation logic"; service authorization reference of EC2, IAM, SSM, SQS, EKS, Pricing, Scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Protocol

from msgspec import Struct

from journeyman_simulator.cloud_rules.fleet_allocation import tags_by_resource
from journeyman_simulator.cloud_rules.policy_statements import JSON, ConditionValues, NeededRight
from journeyman_simulator.cloud_rules.service_errors import NotSimulatedError

Tags = Mapping[str, str]
PASSED_TO: Final = "ec2.amazonaws.com"


class TaggedResource(Struct, frozen=True, kw_only=True):
    """What IAM sees of an existing resource: its ARN and its tags."""

    arn: str
    tags: Tags


class TaggedTemplate(Struct, frozen=True, kw_only=True):
    """What IAM sees of a launch template: itself, its data, and the role in its instance profile."""

    resource: TaggedResource
    data: JSON
    passed_role: str


class ResourceLookup(Protocol):
    """Finds existing resources of an account; None for one that does not exist, whose call fails for that reason."""

    region: str
    account: str

    def instance(self, instance_id: str) -> TaggedResource | None:
        """Return an instance."""
        ...

    def launch_template(self, name: str) -> TaggedTemplate | None:
        """Return a launch template."""
        ...

    def instance_profile(self, name: str) -> TaggedResource | None:
        """Return an instance profile."""
        ...

    def role_arn(self, name: str) -> str:
        """Return the ARN of a role."""
        ...


def needed_rights(service: str, operation: str, parameters: JSON, account: ResourceLookup) -> tuple[NeededRight, ...]:
    """Return the rights that a call needs.

    Args:
        service: boto3's name of the service.
        operation: AWS's name of the operation.
        parameters: The parameters of the call.
        account: The account in which the call is made.

    Raises:
        NotSimulatedError: The rights of the operation are not known here.
    """
    call = _Call(service, operation, parameters, account)
    if service == "ec2" and operation.startswith("Describe"):
        return (call.right("*"),)
    if (service, operation) not in _RIGHTS:
        raise NotSimulatedError(f"the simulation does not know which rights {service}:{operation} needs")
    return tuple(_RIGHTS[service, operation](call))


class _Call(Struct, frozen=True):
    service: str
    operation: str
    parameters: JSON
    account: ResourceLookup

    def right(self, resource: str, action: str = "", context: ConditionValues | None = None) -> NeededRight:
        """Return a right on a resource; `context` has the values of condition keys."""
        given = {"aws:RequestedRegion": (self.account.region,), **(context or {})}
        return NeededRight(action=action or f"{self.service}:{self.operation}", resource=resource, context=given)

    def on(self, found: TaggedResource | None, action: str = "") -> Iterator[NeededRight]:
        """Yield the right on an existing resource."""
        if found is not None:
            yield self.right(found.arn, action, _tag_keys("ResourceTag", found.tags))

    def arn(self, service: str, resource: str, *, region: bool = True, account: bool = True) -> str:
        place = self.account.region if region else ""
        return f"arn:aws:{service}:{place}:{self.account.account if account else ''}:{resource}"

    def passing(self, role_arn: str, service: str = PASSED_TO) -> NeededRight:
        return self.right(role_arn, "iam:PassRole", {"iam:PassedToService": (service,)})


def _tag_keys(key: str, tags: Tags) -> ConditionValues:
    by_key: dict[str, tuple[str, ...]] = {f"aws:{key}/{name}": (value,) for name, value in tags.items()}
    return {**by_key, "aws:TagKeys": tuple(tags)} if key == "RequestTag" else by_key


def _create_fleet(call: _Call) -> Iterator[NeededRight]:
    """Yield the rights on the fleet, on what its launch templates name, and on what they create."""
    tags = tags_by_resource(call.parameters.get("TagSpecifications") or ())
    fleet, fleet_tags = call.arn("ec2", "fleet/*"), tags.get("fleet", {})
    yield call.right(fleet, context=_tag_keys("RequestTag", fleet_tags))
    yield from _tagging(call, fleet, fleet_tags)
    for config in call.parameters["LaunchTemplateConfigs"]:
        template = call.account.launch_template(config["LaunchTemplateSpecification"]["LaunchTemplateName"])
        if template is None:
            continue
        created = {**tags_by_resource(template.data.get("TagSpecifications") or ()), **tags}
        created = {call.arn("ec2", f"{kind}/*"): own for kind, own in created.items() if kind != "fleet"}
        for action in ("ec2:CreateFleet", "ec2:RunInstances"):
            yield from call.on(template.resource, action)
            yield from (call.right(arn, action) for arn in _used(call, template.data, config["Overrides"]))
            yield from (call.right(arn, action, _tag_keys("RequestTag", own)) for arn, own in created.items())
        for arn, own in created.items():
            yield from _tagging(call, arn, own, "RunInstances")
        if template.passed_role:
            yield call.passing(template.passed_role)


def _used(call: _Call, data: JSON, overrides: Iterable[JSON]) -> Iterator[str]:
    """Yield the ARNs of what a launch uses: images, subnets, security groups, snapshots, reservation, placement group."""
    for override in overrides:
        yield call.arn("ec2", f"image/{override.get('ImageId') or data.get('ImageId')}", account=False)
        yield call.arn("ec2", f"subnet/{override['SubnetId']}")
    for interface in data.get("NetworkInterfaces") or ():
        yield from (call.arn("ec2", f"security-group/{group}") for group in interface.get("Groups") or ())
    for mapping in data.get("BlockDeviceMappings") or ():
        if snapshot := (mapping.get("Ebs") or {}).get("SnapshotId"):
            yield call.arn("ec2", f"snapshot/{snapshot}", account=False)
    reservation = (data.get("CapacityReservationSpecification") or {}).get("CapacityReservationTarget") or {}
    if "CapacityReservationId" in reservation:
        yield call.arn("ec2", f"capacity-reservation/{reservation['CapacityReservationId']}")
    placement = data.get("Placement") or {}
    if group := placement.get("GroupId") or placement.get("GroupName"):
        yield call.arn("ec2", f"placement-group/{group}")


def _tagging(call: _Call, arn: str, tags: Tags, created_by: str = "") -> Iterator[NeededRight]:
    """Yield the right to tag a resource while a call creates it."""
    if tags:
        context = {**_tag_keys("RequestTag", tags), "ec2:CreateAction": (created_by or call.operation,)}
        yield call.right(arn, "ec2:CreateTags", context)


def _create_launch_template(call: _Call) -> Iterator[NeededRight]:
    arn = call.arn("ec2", "launch-template/*")
    tags = tags_by_resource(call.parameters.get("TagSpecifications") or ()).get("launch-template", {})
    yield call.right(arn, context=_tag_keys("RequestTag", tags))
    yield from _tagging(call, arn, tags)


def _delete_launch_template(call: _Call) -> Iterator[NeededRight]:
    template = call.account.launch_template(call.parameters["LaunchTemplateName"])
    return call.on(template.resource if template else None)


def _terminate_instances(call: _Call) -> Iterator[NeededRight]:
    for instance_id in call.parameters["InstanceIds"]:
        yield from call.on(call.account.instance(instance_id))


def _create_tags(call: _Call) -> Iterator[NeededRight]:
    """Yield the right to tag each existing instance."""
    tags = {tag["Key"]: tag["Value"] for tag in call.parameters["Tags"]}
    for id_ in call.parameters["Resources"]:
        if (found := call.account.instance(id_)) is not None:
            context = {**_tag_keys("ResourceTag", found.tags), **_tag_keys("RequestTag", tags)}
            yield call.right(found.arn, context=context)


def _create_instance_profile(call: _Call) -> Iterator[NeededRight]:
    arn = _profile_arn(call, call.parameters.get("Path", "/"))
    tags = {tag["Key"]: tag["Value"] for tag in call.parameters.get("Tags") or ()}
    yield call.right(arn, context=_tag_keys("RequestTag", tags))
    if tags:
        yield call.right(arn, "iam:TagInstanceProfile", _tag_keys("RequestTag", tags))


def _on_profile(call: _Call) -> Iterator[NeededRight]:
    return call.on(call.account.instance_profile(call.parameters["InstanceProfileName"]))


def _add_role(call: _Call) -> Iterator[NeededRight]:
    yield from _on_profile(call)
    yield call.passing(call.account.role_arn(call.parameters["RoleName"]))


def _get_profile(call: _Call) -> Iterator[NeededRight]:
    """Yield the right to read a profile, which is needed also if there is none."""
    found = call.account.instance_profile(call.parameters["InstanceProfileName"])
    yield call.right(found.arn if found else _profile_arn(call, "/"))


def _profile_arn(call: _Call, path: str) -> str:
    return call.arn("iam", f"instance-profile{path}{call.parameters['InstanceProfileName']}", region=False)


def _on_everything(call: _Call) -> Iterator[NeededRight]:
    yield call.right("*")


def _get_parameters(call: _Call) -> Iterator[NeededRight]:
    for name in call.parameters["Names"]:
        # AWS's public parameters belong to no account
        yield call.right(call.arn("ssm", f"parameter/{name.lstrip('/')}", account=not name.startswith("/aws/")))


def _get_parameters_by_path(call: _Call) -> Iterator[NeededRight]:
    yield call.right(call.arn("ssm", f"parameter/{call.parameters['Path'].strip('/')}"))


def _describe_cluster(call: _Call) -> Iterator[NeededRight]:
    yield call.right(call.arn("eks", f"cluster/{call.parameters['name']}"))


def _assume_role(call: _Call) -> Iterator[NeededRight]:
    """Yield the caller's right; the role's trust policy must allow it as well."""
    arn, external_id = call.parameters["RoleArn"], call.parameters.get("ExternalId")
    context = {"aws:ResourceAccount": (arn.split(":")[4],)}
    yield call.right(arn, context=context | ({"sts:ExternalId": (external_id,)} if external_id else {}))


def _on_schedule(call: _Call) -> Iterator[NeededRight]:
    yield call.right(call.arn("scheduler", f"schedule/{call.parameters['GroupName']}/{call.parameters['Name']}"))


def _create_schedule(call: _Call) -> Iterator[NeededRight]:
    yield from _on_schedule(call)
    yield call.passing(call.parameters["Target"]["RoleArn"], "scheduler.amazonaws.com")


def _on_queue(action: str) -> Callable[[_Call], Iterator[NeededRight]]:
    def rights(call: _Call) -> Iterator[NeededRight]:
        yield call.right(call.arn("sqs", call.parameters["QueueUrl"].rpartition("/")[2]), f"sqs:{action}")

    return rights


_RIGHTS: Final[Mapping[tuple[str, str], Callable[[_Call], Iterator[NeededRight]]]] = {
    ("ec2", "CreateFleet"): _create_fleet,
    ("ec2", "CreateLaunchTemplate"): _create_launch_template,
    ("ec2", "DeleteLaunchTemplate"): _delete_launch_template,
    ("ec2", "TerminateInstances"): _terminate_instances,
    ("ec2", "CreateTags"): _create_tags,
    ("iam", "CreateInstanceProfile"): _create_instance_profile,
    ("iam", "AddRoleToInstanceProfile"): _add_role,
    ("iam", "RemoveRoleFromInstanceProfile"): _on_profile,
    ("iam", "DeleteInstanceProfile"): _on_profile,
    ("iam", "GetInstanceProfile"): _get_profile,
    ("iam", "ListInstanceProfiles"): _on_everything,
    ("ssm", "GetParameters"): _get_parameters,
    ("ssm", "GetParametersByPath"): _get_parameters_by_path,
    ("pricing", "GetProducts"): _on_everything,
    ("eks", "DescribeCluster"): _describe_cluster,
    ("sts", "AssumeRole"): _assume_role,
    ("scheduler", "ListSchedules"): _on_everything,
    ("scheduler", "CreateSchedule"): _create_schedule,
    ("scheduler", "DeleteSchedule"): _on_schedule,
    # one action covers a single message and a batch
    ("sqs", "SendMessage"): _on_queue("SendMessage"),
    ("sqs", "SendMessageBatch"): _on_queue("SendMessage"),
    ("sqs", "ChangeMessageVisibilityBatch"): _on_queue("ChangeMessageVisibility"),
    ("sqs", "GetQueueAttributes"): _on_queue("GetQueueAttributes"),
}
