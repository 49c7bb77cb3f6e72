"""Launch at most one instance for a NodeClaim, with an instant fleet.

`cloud.launching` has what every cloud does; here is EC2's part. When EC2 reports that the client token was used with other
parameters, the launcher looks up the instance until EC2 lists it, for at most a minute. EC2 repeats the failure of a used
token.

Restates: karpenter-provider-aws pkg/providers/instance/instance.go `Create`.
Differs: one fleet per claim; a shared fleet could not carry a client token per claim.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from journeyman.cloud.aws import instance_profiles, tags
from journeyman.cloud.aws.authorization_messages import AuthorizationMessages
from journeyman.cloud.aws.aws_errors import (
    NO_SUCH_TEMPLATE,
    TOKEN_REUSED,
    error_code,
    launch_rule,
    translated,
)
from journeyman.cloud.aws.aws_settings import AwsSettings, Clients
from journeyman.cloud.aws.capacity_reservations import CapacityReservationProvider, market_of
from journeyman.cloud.aws.create_fleet import (
    FleetError,
    FleetResponse,
    exhausted_subnets,
    fleet_request,
    parse_fleet_response,
    unavailable_for_class,
    unavailable_offerings,
)
from journeyman.cloud.aws.instance_provider import InstanceProvider, provider_id_of
from journeyman.cloud.aws.instance_type_labels import PARTITION, RESERVATION_LABELS, SIZE, TENANCY, ZONE_ID
from journeyman.cloud.aws.launch_templates import LaunchTemplate, LaunchTemplateProvider, TemplateContent
from journeyman.cloud.aws.network_discovery import PlacementGroup, PlacementGroupProvider
from journeyman.cloud.aws.node_capacity import EFA, GPU_VENDORS, NEURON, NEURON_CORE
from journeyman.cloud.aws.nodeclass_view import NodeClassView
from journeyman.cloud.fault_rules import FaultRule, one_per_object
from journeyman.cloud.free_addresses import ChosenSubnet, FreeAddresses
from journeyman.cloud.launch_filter import LaunchLimits
from journeyman.cloud.launching import Launcher, client_token, outcome_of, types_to_launch
from journeyman.core.api import labels
from journeyman.core.api.hashes import EC2NODECLASS_KEYS
from journeyman.core.api.launch_faults import FaultScope, LaunchFault
from journeyman.core.api.objects import NodeClaim, OfferingKey
from journeyman.core.catalogue import InstanceType
from journeyman.core.lifecycle.launch import answered_failures
from journeyman.core.scheduling import requirements
from journeyman.errors import (
    CloudProviderError,
    CreateError,
    InsufficientCapacityError,
    NodeClassNotReadyError,
)
from journeyman.ports import JSON, Clock, Instance, Launched, LaunchFailed, LaunchOutcome, LaunchRefusal, LaunchRequest

_OTHERS_MAY_LAUNCH: Final = (FaultScope.OFFERING, FaultScope.SUBNET)
_CAPACITY_TYPES: Final = (labels.ON_DEMAND, labels.SPOT)
LIMITS: Final = LaunchLimits(
    max_instance_types=60,  # instance.go `maxInstanceTypes`
    size_label=SIZE,
    accelerators=(*GPU_VENDORS.values(), NEURON, NEURON_CORE),
)


class _LaunchAttempt(Struct, frozen=True, kw_only=True):
    """The inputs of one launch, before its launch templates are known."""

    request: LaunchRequest
    node_class: NodeClassView
    types: tuple[InstanceType, ...]
    capacity_type: str
    tenancy: str

    @property
    def reservation(self) -> str:
        """Return the id of the capacity reservation to use; empty unless the capacity type is reserved."""
        return next((o.reservation_id for t in self.types for o in t.offerings), "")

    @property
    def market(self) -> str:
        """Return EC2's market type for that reservation: a capacity block, or an interruptible one; empty for on-demand."""
        reserved = self.node_class.status.capacity_reservations
        return next((market_of(r) for r in reserved if r.id == self.reservation), "")

    @property
    def claim(self) -> NodeClaim:
        """Return the NodeClaim to launch."""
        return self.request.claim


class FleetLauncher(Launcher):
    """Launches instances with CreateFleet, several claims in parallel."""

    cloud = "EC2"

    def __init__(
        self,
        clients: Clients,
        settings: AwsSettings,
        clock: Clock,
        *,
        instances: InstanceProvider,
        addresses: FreeAddresses,
        templates: LaunchTemplateProvider,
        reservations: CapacityReservationProvider,
        groups: PlacementGroupProvider,
        view: Callable[[JSON], NodeClassView],
    ) -> None:
        super().__init__(instances, settings.max_parallel_launches)
        self._reservations = reservations
        self._groups = groups
        self._view = view
        self._clients = clients
        self._settings = settings
        self._clock = clock
        self._addresses = addresses
        self._templates = templates
        self._messages = AuthorizationMessages(clients)

    def launch_rule(self, error: CloudProviderError) -> FaultRule:
        """Return `Launcher.launch_rule`."""
        return launch_rule(f"{error_code(error)}: {error.message}")

    def as_create_error(self, error: CloudProviderError, doing: str) -> CloudProviderError:
        """Return `Launcher.as_create_error`, with EC2's encoded message decoded."""
        return super().as_create_error(self._decoded(error), doing)

    def faults_of(self, request: LaunchRequest, error: CloudProviderError) -> tuple[LaunchFault, ...]:
        """Return `Launcher.faults_of`, with EC2's encoded message decoded."""
        return super().faults_of(request, self._decoded(error))

    def _decoded(self, error: CloudProviderError) -> CloudProviderError:
        text = self._messages.readable(error.message)
        if text == error.message:
            return error
        decoded = CloudProviderError(text, **error.context)
        decoded.__cause__ = error
        return decoded

    def launched(self, request: LaunchRequest, instance: Instance) -> Launched:
        """Return `Launcher.launched`."""
        return _launched(request, self._view(request.node_class.raw), instance, tenancy=_tenancy(request.claim))

    def launch_one(self, request: LaunchRequest) -> LaunchOutcome:
        """Return the outcome of one launch (`Launcher.launch_one`)."""
        capacity_type, types = types_to_launch(request, LIMITS)
        return self._launch(
            _LaunchAttempt(
                request=request,
                node_class=self._view(request.node_class.raw),
                types=types,
                capacity_type=capacity_type,
                tenancy=_tenancy(request.claim),
            )
        )

    def _launch(self, attempt: _LaunchAttempt) -> LaunchOutcome:
        try:
            return self._launch_once(attempt)
        except CloudProviderError as error:
            if error_code(error) in NO_SUCH_TEMPLATE:
                # a cached template was deleted externally; it is no longer cached, so the next attempt creates it
                return self._launch_once(attempt)
            if error_code(error) == TOKEN_REUSED:
                return self.adopt_or_retry(attempt.request, error)
            raise

    def _launch_once(self, attempt: _LaunchAttempt) -> LaunchOutcome:
        group = self._placement_group(attempt.node_class)
        content = TemplateContent(
            settings=self._settings,
            node_class=attempt.node_class,
            claim=attempt.claim,
            capacity_type=attempt.capacity_type,
            tenancy=attempt.tenancy,
            reservation=attempt.reservation,
            market=attempt.market,
            group=group.id if group is not None else "",
            partition=partition_for(attempt.claim, group),
        )
        templates = self._templates.ensure(content, attempt.types)
        subnets = self._addresses.choose(
            attempt.node_class.subnets_by_zone, attempt.types, attempt.capacity_type, full=attempt.request.full_subnets
        )
        used_subnet: str | None = None
        try:
            own_tags = tags.claim_tags(content.tags, attempt.claim, cluster_uid=attempt.request.cluster_uid)
            response = self._create_fleet(attempt, templates, subnets, own_tags)
            used_subnet = response.subnet if isinstance(response, FleetResponse) else None
        finally:
            self._addresses.release_unused(subnets.values(), used_subnet)
        size = max(template.user_data_bytes for template in templates)
        if isinstance(response, FleetResponse):
            return replace(self._success(attempt, response, content.partition), user_data_bytes=size)
        return replace(self._failure(attempt, response), user_data_bytes=size)

    def _placement_group(self, node_class: NodeClassView) -> PlacementGroup | None:
        """Return the NodeClass's placement group, if it selects one. Raises NodeClassNotReadyError if that does not exist."""
        group = self._groups.find(node_class)
        if group is None and node_class.placement_group:
            text = f"there is no available placement group {node_class.placement_group}"
            raise NodeClassNotReadyError(text, node_class=node_class.name)
        return group

    def _create_fleet(
        self,
        attempt: _LaunchAttempt,
        templates: tuple[LaunchTemplate, ...],
        subnets: dict[str, ChosenSubnet],
        instance_tags: dict[str, str],
    ) -> FleetResponse | tuple[FleetError, ...]:
        has_relaxed_min_values = attempt.claim.metadata.annotations.get(labels.MIN_VALUES_RELAXED) == "true"
        parameters = fleet_request(
            templates,
            subnets,
            capacity_type=attempt.capacity_type,
            token=client_token(attempt.claim),
            instance_tags=instance_tags,
            context="" if has_relaxed_min_values else attempt.node_class.spec.context or "",
            market=attempt.market,
        )
        if not parameters["LaunchTemplateConfigs"]:
            kinds = {*_CAPACITY_TYPES, attempt.capacity_type}
            zones = {o.zone for t in attempt.types for o in t.offerings}
            unavailable = {OfferingKey("*", zone, kind) for zone in zones for kind in kinds}
            text = "the NodeClass has no subnet in a zone with an available instance type"
            raise InsufficientCapacityError(text, offerings=tuple(sorted(unavailable)))
        try:
            with translated("ec2:CreateFleet", nodeclaim=attempt.claim.metadata.name):
                return parse_fleet_response(self._clients.ec2.create_fleet(**parameters))
        except CloudProviderError as error:
            if error_code(error) in NO_SUCH_TEMPLATE:
                self._templates.forget(templates)
            raise

    def _success(self, attempt: _LaunchAttempt, response: FleetResponse, partition: str) -> Launched:
        instance = Instance(
            provider_id=provider_id_of(response.zone, response.instance_id),
            instance_type=response.instance_type,
            zone=response.zone,
            capacity_type=attempt.capacity_type,
            state="pending",
            launched_at=self._clock.now(),
            image_id=response.image_id,
            reservation_id=attempt.reservation,
            partition=partition,
        )
        if attempt.reservation:
            self._reservations.record_launch(attempt.reservation)
        unavailable = self._unavailable(attempt, response.errors)
        outcome = _launched(
            attempt.request, attempt.node_class, instance, tenancy=attempt.tenancy, unavailable=unavailable
        )
        return replace(
            outcome,
            refusals=_refusals(attempt, response.errors),
            unavailable_for_class=unavailable_for_class(response.errors, attempt.capacity_type, attempt.reservation),
            faults=_subnet_faults(attempt, response.errors),
        )

    def _failure(self, attempt: _LaunchAttempt, errors: tuple[FleetError, ...]) -> LaunchFailed:
        """Return the failure of a fleet: insufficient capacity if EC2 reports nothing else, otherwise a CreateError.

        After insufficient capacity, `steps` deletes the claim and schedules its pods again. If no offering can be marked
        unavailable, the next plan would be the same, so `steps` keeps the claim and launches it again with a back-off.

        Restates: instance.go `combineFleetErrors`.
        """
        texts = sorted({str(error) for error in errors}) or ["the fleet gave neither instances nor errors"]
        text = self._messages.readable("; ".join(texts))
        unavailable = self._unavailable(attempt, errors)
        of_class = unavailable_for_class(errors, attempt.capacity_type, attempt.reservation)
        subnets = _subnet_faults(attempt, errors)
        failure: CloudProviderError
        if (unavailable or subnets) and all(error.rule.scope in _OTHERS_MAY_LAUNCH for error in errors):
            failure = InsufficientCapacityError(f"with fleet error(s), {text}", offerings=unavailable)
            faults = subnets
        else:
            decisive = min((error.rule for error in errors), key=_least_likely_to_pass, default=launch_rule(""))
            message = f"{decisive.meaning}: with fleet error(s), {text}. {decisive.remedy}"
            failure = CreateError(message, condition_reason=decisive.reason)
            at_fault = (
                decisive if decisive.scope is not FaultScope.OFFERING or decisive.node_class_only else launch_rule("")
            )
            faults = one_per_object([*subnets, at_fault.fault(attempt.claim, text)])
        return LaunchFailed(
            claim=attempt.claim.metadata.name,
            error=failure,
            unavailable=unavailable,
            unavailable_for_class=of_class,
            faults=faults,
            refusals=_refusals(attempt, errors),
            answered=True,
        )

    def _unavailable(self, attempt: _LaunchAttempt, errors: tuple[FleetError, ...]) -> tuple[OfferingKey, ...]:
        """Return the offerings to mark unavailable, after marking subnets without a free address."""
        for subnet in exhausted_subnets(errors):
            self._addresses.mark_exhausted(subnet)
        subnets = attempt.node_class.subnets_by_zone
        full = attempt.request.full_subnets
        exhausted = [zone for zone in subnets if self._addresses.is_zone_exhausted(subnets, zone, full=full)]
        return unavailable_offerings(errors, attempt.capacity_type, subnets, exhausted, attempt.reservation)


def _refusals(attempt: _LaunchAttempt, errors: tuple[FleetError, ...]) -> tuple[LaunchRefusal, ...]:
    """Return the fleet's errors for the metrics (instance.go `updateUnavailableOfferingsCache`)."""
    zone_ids = attempt.node_class.zone_ids
    return tuple(
        LaunchRefusal(
            zone=error.zone,
            zone_id=zone_ids.get(error.zone, ""),
            capacity_type=attempt.capacity_type,
            reason=error.rule.reason,
        )
        for error in errors
    )


def _subnet_faults(attempt: _LaunchAttempt, errors: tuple[FleetError, ...]) -> tuple[LaunchFault, ...]:
    """Return the subnets without a free address."""
    full = (error for error in errors if error.rule.scope is FaultScope.SUBNET and error.subnet)
    return one_per_object(error.rule.fault(attempt.claim, str(error), error.subnet) for error in full)


def _least_likely_to_pass(rule: FaultRule) -> int:
    """Sort rules: those that no other offering changes come first, then what is repeated, then offerings."""
    scopes = (
        FaultScope.ACCOUNT,
        FaultScope.NODE_CLASS,
        FaultScope.NODE_POOL,
        None,
        FaultScope.OFFERING,
        FaultScope.SUBNET,
    )
    return scopes.index(rule.scope)


def partition_for(claim: NodeClaim, group: PlacementGroup | None) -> str:
    """Return the partition in which to launch a NodeClaim: one that its requirements allow; empty without partitions.

    NodeClaims without a requirement spread over the partitions; after a failed launch it is the next one's turn. Repeated with
    the same client token, it is the same partition.

    Restates: karpenter-provider-aws pkg/providers/launchtemplate/launchtemplate.go `EnsureAll`.
    Differs: Karpenter uses the first allowed partition, or lets EC2 choose and looks afterwards which one it was.
    """
    if group is None or not group.partitions:
        return ""
    wanted = requirements.from_selectors(claim.spec.requirements).get(PARTITION)
    allowed = [number for number in group.partition_numbers if wanted is None or wanted.has(number)]
    if not allowed:
        text = f"placement group {group.id} has {group.partitions} partitions, and none that the NodeClaim requires"
        raise CreateError(text, condition_reason="PlacementGroupPartitionNotFound")
    return allowed[(zlib.crc32(claim.metadata.uid.encode()) + answered_failures(claim)) % len(allowed)]


def _tenancy(claim: NodeClaim) -> str:
    """Return "dedicated" if the claim accepts no other tenancy, else "default"."""
    tenancy = requirements.from_selectors(claim.spec.requirements).get(TENANCY)
    dedicated = tenancy is not None and tenancy.has("dedicated") and not tenancy.has("default")
    return "dedicated" if dedicated else "default"


def _launched(
    request: LaunchRequest,
    node_class: NodeClassView,
    instance: Instance,
    *,
    tenancy: str,
    unavailable: tuple[OfferingKey, ...] = (),
) -> Launched:
    """Return the outcome of a launch. EFA is a resource only if the claim requests it or the NodeClass has network interfaces."""
    instance_type = next((t for t in request.instance_types if t.name == instance.instance_type), None)
    zone_id = node_class.zone_ids.get(instance.zone, "")
    keeps_efa = bool(node_class.spec.network_interfaces) or EFA in request.claim.spec.resources.requests
    return outcome_of(
        request,
        instance,
        more_labels={
            TENANCY: tenancy,
            **({ZONE_ID: zone_id} if zone_id else {}),
            **_reservation_labels(instance, instance_type),
            **({PARTITION: instance.partition} if instance.partition else {}),
        },
        annotations={
            EC2NODECLASS_KEYS.hash: request.node_class.hash,
            EC2NODECLASS_KEYS.version: request.node_class.hash_version,
            instance_profiles.ANNOTATION: node_class.status.instance_profile,
        },
        left_out=(*RESERVATION_LABELS, *(() if keeps_efa else (EFA,))),
        unavailable=unavailable,
    )


def _reservation_labels(instance: Instance, instance_type: InstanceType | None) -> dict[str, str]:
    """Return the labels of the capacity reservation that the instance uses."""
    offerings = instance_type.offerings if instance_type else ()
    used = next((o for o in offerings if instance.reservation_id and o.reservation_id == instance.reservation_id), None)
    found = used.requirements if used is not None else ()
    return {r.key: r.values[0] for r in found if r.key in RESERVATION_LABELS}
