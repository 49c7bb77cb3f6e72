"""Compute the `status` of an ECSNodeClass: vSwitches, security groups, images, conditions.

Restates: cloudpilot-ai/karpenter-provider-alibabacloud pkg/controllers/nodeclass/status.
Differs: one pass computes all parts, and a mistake of the user is a condition with its remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from journeyman.cloud.alibaba.discovery import Discovery, UnknownAliasError
from journeyman.cloud.alibaba.tags import MAX_TAGS, reserved_tags
from journeyman.cloud.nodeclass_conditions import StatusPart, conditions_of, found_or_refused, selected, unexamined
from journeyman.core.api.conditions import VALIDATION_SUCCEEDED
from journeyman.core.api.ecs_settings import (
    ECSNodeClassView,
    ResolvedImage,
    ResolvedResources,
    api_of,
    ecs_node_class,
    status_of,
)
from journeyman.errors import InvalidObjectError

_OWN_TAGS: Final = 7
"""The tags that Journeyman adds to the user's, of the twenty that an instance may have."""


class NodeClassReconciler:
    """Computes the status of the ECSNodeClasses of one cluster.

    Args:
        discovery: Finds what selectors select.
        role_exists: Whether a RAM role exists and trusts ECS. It may raise CloudProviderError.
    """

    def __init__(self, discovery: Discovery, role_exists: Callable[[str], bool]) -> None:
        self._discovery = discovery
        self._role_exists = role_exists

    def resolve(self, raw: Mapping[str, Any], now: datetime) -> dict[str, Any]:
        """Return the status at `now`; its conditions carry the current generation.

        Raises:
            CloudProviderError: Alibaba Cloud did not respond; the status is unknown.
        """
        api = api_of(raw)
        conditions = conditions_of(raw, api.dependents).initialised(now)
        try:
            node_class = ecs_node_class(raw)
        except InvalidObjectError as error:
            conditions = unexamined(conditions, now, "the spec is invalid (see ValidationSucceeded)")
            conditions = conditions.set_false(VALIDATION_SUCCEEDED, now, "InvalidSpec", error.message)
            return {**(raw.get("status") or {}), "conditions": conditions.to_wire()}
        resolved, parts = self._find(node_class)
        for part in parts:
            if part.reason:
                conditions = conditions.set_false(part.condition, now, part.reason, part.message)
            else:
                conditions = conditions.set_true(part.condition, now)
        missing = [part.condition for part in parts if part.reason]
        if problem := _problem(node_class):
            conditions = conditions.set_false(VALIDATION_SUCCEEDED, now, *problem)
        elif missing:
            text = f"Awaiting {', '.join(sorted(missing))}"
            conditions = conditions.set_false(VALIDATION_SUCCEEDED, now, "DependenciesNotReady", text)
        else:
            conditions = conditions.set_true(VALIDATION_SUCCEEDED, now)
        return status_of(api, resolved, conditions.conditions)

    def _find(self, node_class: ECSNodeClassView) -> tuple[ResolvedResources, list[StatusPart]]:
        """Return what the selectors select, and the condition of each."""
        api, settings = node_class.api, node_class.settings
        region = "in this region"
        parts = [
            found_or_refused(
                api.vswitches,
                lambda: selected(
                    api.vswitches,
                    "vswitches",
                    self._discovery.vswitches(settings.vswitch_terms),
                    "VSwitchesNotFound",
                    f"vSwitchSelectorTerms select no vSwitch {region}",
                ),
            ),
            found_or_refused(
                api.security_groups,
                lambda: selected(
                    api.security_groups,
                    "security_groups",
                    self._discovery.security_groups(settings.security_group_terms),
                    "SecurityGroupsNotFound",
                    f"securityGroupSelectorTerms select no security group {region}",
                ),
            ),
            found_or_refused(api.images, lambda: self._find_images(node_class)),
        ]
        if api.role:
            parts.append(found_or_refused(api.role, lambda: self._find_role(api.role, settings.role)))
        found = {part.field: part.value for part in parts if part.field}
        return ResolvedResources(ram_role=settings.role, **found), parts

    def _find_images(self, node_class: ECSNodeClassView) -> StatusPart:
        reason, why = "ImagesNotFound", "imageSelectorTerms select no image in this region"
        images: tuple[ResolvedImage, ...] = ()
        try:
            images = self._discovery.images(node_class.settings.image_terms)
        except UnknownAliasError as error:
            reason, why = "UnknownAlias", error.message
        return selected(node_class.api.images, "images", images, reason, why)

    def _find_role(self, condition: str, role: str) -> StatusPart:
        found = not role or self._role_exists(role)
        text = f"RAM role {role} does not exist, or does not trust ecs.aliyuncs.com"
        return selected(condition, "", found, "RAMRoleNotFound", text)


def _problem(node_class: ECSNodeClassView) -> tuple[str, str] | None:
    """Return the reason and message of what is valid, but cannot work; None if there is nothing."""
    settings, tags = node_class.settings, node_class.settings.tags
    lacking = [
        f"{name}SelectorTerms"
        for name, terms in (
            ("vSwitch", settings.vswitch_terms),
            ("securityGroup", settings.security_group_terms),
            ("image", settings.image_terms),
        )
        if not terms
    ]
    if lacking:
        return "SelectorTermsMissing", f"a launch template's settings are not read; set {', '.join(lacking)} as well"
    if settings.instance_store_policy:
        text = "instanceStorePolicy has no effect: ACK's attach script mounts no instance store disks; remove it"
        return "UnsupportedSetting", text
    if reserved := reserved_tags(tags):
        return "TagValidationFailed", f"tags are set by the controller itself, remove them: {', '.join(reserved)}"
    if len(tags) + _OWN_TAGS > MAX_TAGS:
        text = f"{len(tags)} tags are too many: an instance has {MAX_TAGS}, of which the controller sets {_OWN_TAGS}"
        return "TagValidationFailed", text
    return None
