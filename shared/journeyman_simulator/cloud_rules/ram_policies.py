"""Says which rights of RAM a call to Alibaba Cloud needs; `policy_statements` decides whether a role's policies allow them.

RAM supports resources for some actions only; the others need a right on `*`. An action that has tags or existing resources
gives their tags to conditions (`acs:RequestTag`, `acs:ResourceTag`).

Restates: ECS API reference, "RAM authorization"; SMQ, "Authorization policies"; ACK, "Create a custom RAM policy"; RAM,
"Manage the service-linked role for auto provisioning".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Protocol

from msgspec import Struct

from journeyman_simulator.cloud_rules.policy_statements import ConditionValues, NeededRight
from journeyman_simulator.cloud_rules.service_errors import NotSimulatedError

JSON = Mapping[str, Any]
PASSED_TO: Final = "ecs.aliyuncs.com"
AUTO_PROVISIONING: Final = "autoprovisioning.ecs.aliyuncs.com"


class RamLookup(Protocol):
    """What RAM sees of an account: its id, its region, and the tags of its instances."""

    region: str
    account: str

    def tags_of(self, instance_id: str) -> Mapping[str, str] | None:
        """Return the tags of an instance; None if there is none."""
        ...


def needed_rights(action: str, parameters: JSON, account: RamLookup) -> tuple[NeededRight, ...]:
    """Return the rights that a call needs.

    Args:
        action: The action with its service, such as `ecs:RunInstances`.
        parameters: The parameters of the call.
        account: The account in which the call is made.

    Raises:
        NotSimulatedError: The rights of the action are not known here.
    """
    if action not in _RIGHTS:
        raise NotSimulatedError(f"the simulation does not know which rights {action} needs")
    return tuple(_RIGHTS[action](_RamCall(action, parameters, account)))


class _RamCall(Struct, frozen=True):
    action: str
    parameters: JSON
    account: RamLookup

    def right(self, resource: str, action: str = "", context: ConditionValues | None = None) -> NeededRight:
        """Return a right on a resource; `context` has the values of condition keys."""
        return NeededRight(action=action or self.action, resource=resource, context=context or {})

    def arn(self, service: str, resource: str, *, region: bool = True) -> str:
        place = self.account.region if region else ""
        return f"acs:{service}:{place}:{self.account.account}:{resource}"

    def passing(self, role: str) -> Iterator[NeededRight]:
        """Yield the right to give instances a role, if the call does."""
        if role:
            context = {"acs:Service": (PASSED_TO,)}
            yield self.right(self.arn("ram", f"role/{role}", region=False), "ram:PassRole", context)


def _tag_keys(key: str, tags: Mapping[str, str]) -> ConditionValues:
    return {f"acs:{key}/{name}": (value,) for name, value in tags.items()}


def _requested_tags(entries: Iterable[JSON]) -> ConditionValues:
    return _tag_keys("RequestTag", {entry["Key"]: entry.get("Value") or "" for entry in entries})


def _run_instances(call: _RamCall) -> Iterator[NeededRight]:
    yield call.right("*", context=_requested_tags(call.parameters.get("Tag") or ()))
    yield from call.passing(call.parameters.get("RamRoleName") or "")


def _create_group(call: _RamCall) -> Iterator[NeededRight]:
    """Yield the rights to create an auto-provisioning group, and its service-linked role if the account has none yet."""
    yield call.right("*")
    context = {"ram:ServiceName": (AUTO_PROVISIONING,)}
    yield call.right(call.arn("ram", "role/*", region=False), "ram:CreateServiceLinkedRole", context)
    yield from call.passing((call.parameters.get("LaunchConfiguration") or {}).get("RamRoleName") or "")


def _delete_instances(call: _RamCall) -> Iterator[NeededRight]:
    ids = call.parameters["InstanceId"]
    for instance_id in [ids] if isinstance(ids, str) else ids:
        tags = call.account.tags_of(instance_id)
        if tags is not None:  # the call fails for another reason
            yield call.right(call.arn("ecs", f"instance/{instance_id}"), context=_tag_keys("ResourceTag", tags))


def _on(service: str, resource: str) -> Callable[[_RamCall], Iterator[NeededRight]]:
    def rights(call: _RamCall) -> Iterator[NeededRight]:
        yield call.right(call.arn(service, resource))

    return rights


def _on_everything(call: _RamCall) -> Iterator[NeededRight]:
    yield call.right("*")


def _on_cluster(call: _RamCall) -> Iterator[NeededRight]:
    yield call.right(call.arn("cs", f"cluster/{call.parameters['ClusterId']}"))


def _get_role(call: _RamCall) -> Iterator[NeededRight]:
    yield call.right(call.arn("ram", f"role/{call.parameters['RoleName']}", region=False))


def _on_messages(call: _RamCall) -> Iterator[NeededRight]:
    yield call.right(call.arn("mns", f"/queues/{call.parameters['QueueName']}/messages"))


_RIGHTS: Final[Mapping[str, Callable[[_RamCall], Iterator[NeededRight]]]] = {
    "ecs:RunInstances": _run_instances,
    "ecs:CreateAutoProvisioningGroup": _create_group,
    "ecs:DeleteInstance": _delete_instances,
    "ecs:DeleteInstances": _delete_instances,
    "ecs:DescribeInstances": _on("ecs", "instance/*"),
    "ecs:DescribeImages": _on("ecs", "image/*"),
    "ecs:DescribeSecurityGroups": _on("ecs", "securitygroup/*"),
    "ecs:DescribeAvailableResource": _on_everything,
    "ecs:DescribeInstanceHistoryEvents": _on_everything,
    "ecs:DescribeInstanceTypes": _on_everything,
    "ecs:DescribePrice": _on_everything,
    "ecs:DescribeSpotAdvice": _on_everything,
    "ecs:ListTagResources": _on_everything,
    "vpc:DescribeVSwitches": _on("vpc", "vswitch/*"),
    "cs:DescribeClusterAttachScripts": _on_cluster,
    "cs:DescribeClusterDetail": _on_cluster,
    "cs:DescribeClusterNodePools": _on_cluster,
    "cs:DescribeClusterUserKubeconfig": _on_cluster,
    "cs:DescribeKubernetesVersionMetadata": _on_everything,
    "ram:GetRole": _get_role,
    "mns:SendMessage": _on_messages,
    "mns:ReceiveMessage": _on_messages,
}
