"""Compute the `status` of an EC2NodeClass: AMIs, subnets, security groups, instance profile, reservations, conditions.

Restates: karpenter-provider-aws pkg/controllers/nodeclass (ami.go, subnet.go, securitygroup.go, instanceprofile.go,
capacityreservation.go, placementgroup.go, validation.go).
Differs: one pass computes all parts; a missing role is a condition, upstream retries it as an error; there is no dry run,
so missing permissions show at the first launch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from pydantic import ValidationError

from journeyman.cloud.aws.ami_families import AL2023
from journeyman.cloud.aws.amis import AmiProvider, UnsupportedAliasError
from journeyman.cloud.aws.aws_settings import AwsSettings, Clients
from journeyman.cloud.aws.capacity_reservations import CapacityReservationProvider
from journeyman.cloud.aws.instance_profiles import InstanceProfileProvider, UnusableRoleError
from journeyman.cloud.aws.kubelet_validation import kubelet_problems
from journeyman.cloud.aws.network_discovery import NetworkDiscovery, PlacementGroupProvider
from journeyman.cloud.aws.nodeclass_view import NodeClassView, ec2_node_class
from journeyman.cloud.aws.tags import restricted_tags, too_many_tags
from journeyman.cloud.aws.user_data import user_data_problem
from journeyman.cloud.nodeclass_conditions import StatusPart, conditions_of, found_or_refused, selected, unexamined
from journeyman.core.api.conditions import EC2NODECLASS_DEPENDENTS, VALIDATION_SUCCEEDED, ConditionSet
from journeyman.core.api.ec2nodeclass import EC2NodeClassSpec
from journeyman.core.api.ec2nodeclass_status import EC2NodeClassStatus
from journeyman.core.api.objects import NodeClaim
from journeyman.errors import InvalidObjectError
from journeyman.ports import JSON, Clock

_AMIS: Final = "AMIsReady"
_SUBNETS: Final = "SubnetsReady"
_SECURITY_GROUPS: Final = "SecurityGroupsReady"
_INSTANCE_PROFILE: Final = "InstanceProfileReady"
_PLACEMENT_GROUP: Final = "PlacementGroupReady"
_CAPACITY_RESERVATIONS: Final = "CapacityReservationsReady"
_DEPENDENCIES: Final = (_AMIS, _INSTANCE_PROFILE, _SECURITY_GROUPS, _SUBNETS)


class NodeClassReconciler:
    """Computes the status of EC2NodeClasses of one cluster."""

    def __init__(
        self,
        clients: Clients,
        settings: AwsSettings,
        clock: Clock,
        reservations: CapacityReservationProvider,
        groups: PlacementGroupProvider,
    ) -> None:
        self._settings = settings
        self._groups = groups
        self._reservations = reservations
        self._network = NetworkDiscovery(clients, clock)
        self._images = AmiProvider(clients, settings, clock)
        self._profiles = InstanceProfileProvider(clients, settings, clock)

    def resolve(self, raw: JSON, now: datetime) -> dict[str, Any]:
        """Return the status at `now`; its conditions carry the current generation.

        Raises:
            CloudProviderError: AWS did not respond; the status is unknown.
        """
        raw = _with_readable_status(raw)
        status: dict[str, Any] = dict(raw.get("status") or {})
        reserved_tags = restricted_tags(_tags(raw))
        try:
            node_class = _view(raw, reserved_tags)
        except InvalidObjectError as error:
            conditions = conditions_of(raw, EC2NODECLASS_DEPENDENTS).initialised(now)
            conditions = unexamined(conditions, now, "the spec is invalid (see ValidationSucceeded)")
            conditions = conditions.set_false(VALIDATION_SUCCEEDED, now, "InvalidSpec", error.message)
            return {**status, "conditions": conditions.to_wire()}
        conditions = self._conditions(raw, node_class.spec, now)
        for part in self._parts(node_class, now):
            if part.field:
                status[part.field] = part.value
            if part.reason:
                conditions = conditions.set_false(part.condition, now, part.reason, part.message)
            elif part.condition:
                conditions = conditions.set_true(part.condition, now, message=part.message)
        status["conditions"] = self._validated(node_class, reserved_tags, conditions, now).to_wire()
        return status

    def release(self, uid: str) -> None:
        """Delete the instance profiles that were created for the NodeClass with this UID. Raises CloudProviderError."""
        self._profiles.release(uid)

    def delete_unused_profiles(
        self, node_classes: Iterable[JSON], claims: Iterable[NodeClaim], now: datetime
    ) -> tuple[str, ...]:
        """Delete the instance profiles that nothing uses; return their names. Raises CloudProviderError."""
        return self._profiles.delete_unused(node_classes, claims, now)

    def _parts(self, node_class: NodeClassView, now: datetime) -> Iterator[StatusPart]:
        """Yield the parts of the status; the last two are those that a NodeClass has only if it selects something."""
        yield found_or_refused(_AMIS, lambda: self._find_images(node_class, now))
        yield found_or_refused(_SUBNETS, lambda: self._find_subnets(node_class))
        yield found_or_refused(_SECURITY_GROUPS, lambda: self._find_security_groups(node_class))
        yield found_or_refused(_INSTANCE_PROFILE, lambda: self._find_profile(node_class))
        if node_class.spec.capacity_reservation_selector_terms:
            yield found_or_refused(_CAPACITY_RESERVATIONS, lambda: self._find_reservations(node_class, now))
        elif node_class.status.capacity_reservations:
            yield StatusPart(condition="", field="capacityReservations", value=[])
        if node_class.placement_group:
            yield found_or_refused(_PLACEMENT_GROUP, lambda: self._find_group(node_class))

    def _find_images(self, node_class: NodeClassView, now: datetime) -> StatusPart:
        try:
            images = [image.to_status() for image in self._images.find(node_class, now)]
        except UnsupportedAliasError as error:
            return StatusPart(condition=_AMIS, field="amis", value=[], reason="UnsupportedAlias", message=str(error))
        return selected(_AMIS, "amis", images, "AMINotFound", "AMISelector did not match any AMIs")

    def _find_subnets(self, node_class: NodeClassView) -> StatusPart:
        subnets = self._network.subnets(node_class)
        return selected(_SUBNETS, "subnets", subnets, "SubnetsNotFound", "SubnetSelector did not match any Subnets")

    def _find_security_groups(self, node_class: NodeClassView) -> StatusPart:
        groups = self._network.security_groups(node_class)
        text = "SecurityGroupSelector did not match any SecurityGroups"
        return selected(_SECURITY_GROUPS, "securityGroups", groups, "SecurityGroupsNotFound", text)

    def _find_profile(self, node_class: NodeClassView) -> StatusPart:
        field = "instanceProfile"
        if self._settings.isolated_vpc and not node_class.spec.instance_profile:
            text = "spec.instanceProfile is required where IAM cannot be reached"
            return StatusPart(
                condition=_INSTANCE_PROFILE, field=field, value="", reason="InstanceProfileNotFound", message=text
            )
        try:
            name = self._profiles.ensure(node_class)
        except UnusableRoleError as error:
            return StatusPart(
                condition=_INSTANCE_PROFILE, field=field, value="", reason=error.reason, message=str(error)
            )
        return StatusPart(condition=_INSTANCE_PROFILE, field=field, value=name)

    def _find_group(self, node_class: NodeClassView) -> StatusPart:
        reason = "" if self._groups.find(node_class) is not None else "PlacementGroupNotFound"
        text = f"there is no available placement group {node_class.placement_group}"
        return StatusPart(condition=_PLACEMENT_GROUP, field="", value=None, reason=reason, message=text)

    def _find_reservations(self, node_class: NodeClassView, now: datetime) -> StatusPart:
        field = "capacityReservations"
        if not self._settings.reserved_capacity:
            text = "the feature gate ReservedCapacity is disabled, so capacityReservationSelectorTerms have no effect"
            return StatusPart(
                condition=_CAPACITY_RESERVATIONS, field=field, value=[], reason="ReservedCapacityDisabled", message=text
            )
        found = self._reservations.find(node_class, now)
        return StatusPart(condition=_CAPACITY_RESERVATIONS, field=field, value=found)

    def _conditions(self, raw: JSON, spec: EC2NodeClassSpec, now: datetime) -> ConditionSet:
        """Return the conditions so far; those of capacity reservations and a placement group count if the NodeClass selects them."""
        optional = {
            _CAPACITY_RESERVATIONS: bool(spec.capacity_reservation_selector_terms),
            _PLACEMENT_GROUP: spec.placement_group_selector is not None,
        }
        dependents = [name for name, selects in optional.items() if selects]
        if not self._settings.reserved_capacity:
            dependents = [name for name in dependents if name != _CAPACITY_RESERVATIONS]
        unselected = [name for name, selects in optional.items() if not selects]
        conditions = conditions_of(raw, (*EC2NODECLASS_DEPENDENTS, *dependents))
        return conditions.clear(*unselected).initialised(now)

    def _validated(
        self, node_class: NodeClassView, reserved_tags: Sequence[str], conditions: ConditionSet, now: datetime
    ) -> ConditionSet:
        """Return the conditions with ValidationSucceeded set; it reports the first mistake, in Karpenter's order."""
        if node_class.family is AL2023 and not self._settings.service_cidr:
            text = "Failed to detect the cluster CIDR"
            return conditions.set_false(VALIDATION_SUCCEEDED, now, "ClusterCIDRResolutionFailed", text)
        if problem := kubelet_problems(node_class):
            return conditions.set_false(VALIDATION_SUCCEEDED, now, *problem)
        if problem_text := user_data_problem(
            node_class.family, node_class.spec.user_data or "", raid0=node_class.raid0
        ):
            return conditions.set_false(VALIDATION_SUCCEEDED, now, "UserDataInvalid", problem_text)
        if pending := [type_ for type_ in _DEPENDENCIES if not conditions.is_true(type_)]:
            text = f"Awaiting {', '.join(pending)}"
            return conditions.set_false(VALIDATION_SUCCEEDED, now, "DependenciesNotReady", text)
        if reserved_tags:
            text = f"tags are set by the controller itself, remove them: {', '.join(reserved_tags)}"
            return conditions.set_false(VALIDATION_SUCCEEDED, now, "TagValidationFailed", text)
        if too_many := too_many_tags(node_class.spec.tags):
            return conditions.set_false(VALIDATION_SUCCEEDED, now, "TagValidationFailed", too_many)
        return conditions.set_true(VALIDATION_SUCCEEDED, now)


def _view(raw: JSON, reserved_tags: Collection[str]) -> NodeClassView:
    """Return the view of an EC2NodeClass without reserved tags, which `_validated` reports with their own reason.

    Raises:
        InvalidObjectError: The object is invalid. An API server without our CRD's rules admits such objects.
    """
    tags = {key: value for key, value in _tags(raw).items() if key not in reserved_tags}
    return ec2_node_class({**raw, "spec": {**raw["spec"], "tags": tags}} if reserved_tags else raw)


def _with_readable_status(raw: JSON) -> JSON:
    """Return the object without a status that does not validate, so that it is computed anew."""
    try:
        EC2NodeClassStatus.model_validate(raw.get("status") or {})
    except ValidationError:
        return {**raw, "status": {}}
    return raw


def _tags(raw: JSON) -> JSON:
    spec = raw.get("spec")
    tags = spec.get("tags") if isinstance(spec, Mapping) else None
    return tags if isinstance(tags, Mapping) else {}
