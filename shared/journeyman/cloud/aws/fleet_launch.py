"""Launch at most one instance for a NodeClaim.

1. The launcher adopts an instance that already carries the claim's UID. If that instance ended, the launch fails and is not
   repeated: a claim has one instance in its lifetime. The claim is deleted, and its pods are scheduled again.
2. The client token of CreateFleet is the UID, so two concurrent calls create one fleet.
3. The token changes only after a fleet that failed and was recorded in the claim's launch-retry annotation, since EC2 repeats the
   failure of a used token. After a call without a response it stays, since the instance may exist already.
4. When EC2 reports that the token was used with other parameters, the launcher looks up the instance until EC2 lists it,
   for at most a minute.

Restates: karpenter-provider-aws pkg/providers/instance/instance.go `Create`.
Differs: one fleet per claim; a shared fleet could not carry a client token per claim.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextvars import copy_context
from datetime import timedelta
from itertools import islice
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from journeyman.cloud.aws import instance_profiles, tags
from journeyman.cloud.aws.aws_errors import (
    NO_SUCH_TEMPLATE,
    TOKEN_REUSED,
    as_create_error,
    error_code,
    launch_reason,
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
    unavailable_offerings,
)
from journeyman.cloud.aws.instance_provider import InstanceProvider, is_usable, provider_id_of
from journeyman.cloud.aws.instance_type_labels import PARTITION, RESERVATION_LABELS, TENANCY, ZONE_ID
from journeyman.cloud.aws.launch_filter import (
    capacity_type_of,
    has_unsatisfiable_min_values,
    launchable,
    with_capacity_type,
)
from journeyman.cloud.aws.launch_templates import LaunchTemplate, LaunchTemplateProvider, TemplateContent
from journeyman.cloud.aws.network_discovery import PlacementGroup, PlacementGroupProvider
from journeyman.cloud.aws.node_capacity import EFA
from journeyman.cloud.aws.nodeclass_view import NodeClassView
from journeyman.cloud.aws.subnets import ChosenSubnet, SubnetProvider
from journeyman.core.api import labels
from journeyman.core.api.hashes import EC2NODECLASS_KEYS
from journeyman.core.api.objects import NodeClaim, OfferingKey
from journeyman.core.api.resources import format_resources
from journeyman.core.catalogue import InstanceType, price_of
from journeyman.core.lifecycle.launch import answered_failures, failures
from journeyman.core.scheduling import requirements
from journeyman.errors import (
    CloudProviderError,
    CreateError,
    InsufficientCapacityError,
    JourneymanError,
    NodeClaimNotFoundError,
    NodeClassNotReadyError,
)
from journeyman.ports import Clock, Instance, Launched, LaunchFailed, LaunchOutcome, LaunchRefusal, LaunchRequest

_log = logging.getLogger(__name__)

_CAPACITY_TYPES: Final = (labels.ON_DEMAND, labels.SPOT)
_FLEXIBLE: Final = 5  # instance.go `instanceTypeFlexibilityThreshold`
_LOOKUPS: Final = 7  # attempts, which take a minute
# EC2 API reference, "Eventual consistency": seconds, in rare cases minutes
_LISTED_WITHIN: Final = timedelta(minutes=2)


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
        reserved = self.node_class.capacity_reservations
        return next((market_of(r) for r in reserved if r["id"] == self.reservation), "")

    @property
    def claim(self) -> NodeClaim:
        """Return the NodeClaim to launch."""
        return self.request.claim


class FleetLauncher:
    """Launches instances with CreateFleet, several claims in parallel."""

    def __init__(
        self,
        clients: Clients,
        settings: AwsSettings,
        clock: Clock,
        *,
        instances: InstanceProvider,
        subnets: SubnetProvider,
        templates: LaunchTemplateProvider,
        reservations: CapacityReservationProvider,
        groups: PlacementGroupProvider,
    ) -> None:
        self._reservations = reservations
        self._groups = groups
        self._clients = clients
        self._settings = settings
        self._clock = clock
        self._instances = instances
        self._subnets = subnets
        self._templates = templates

    def launch(self, requests: Sequence[LaunchRequest]) -> Iterator[LaunchOutcome]:
        """Yield one outcome per request, in the order in which the launches end. Raises nothing.

        The next launch starts when the caller takes an outcome. If the caller stops early, no further launch starts; at
        most `max_parallel_launches` are still running then, and a later run adopts their instances.
        """
        try:
            earlier = self._instances.by_claim_uid(r.claim.metadata.uid for r in requests)
        except CloudProviderError as error:
            # without the list of instances, the launcher could launch a second one
            failure = as_create_error(error, "looking for instances of earlier launches")
            yield from (LaunchFailed(claim=r.claim.metadata.name, error=failure) for r in requests)
            return
        if earlier:
            _log.info("found instances of earlier launches", extra={"count": len(earlier)})
        workers = min(self._settings.max_parallel_launches, len(requests))
        if workers <= 1:
            yield from (self._outcome(request, earlier.get(request.claim.metadata.uid)) for request in requests)
            return
        with ThreadPoolExecutor(max_workers=workers, thread_name_prefix="launch") as pool:
            pending = (
                pool.submit(copy_context().run, self._outcome, r, earlier.get(r.claim.metadata.uid)) for r in requests
            )
            in_flight = set(islice(pending, workers))
            while in_flight:
                done, in_flight = wait(in_flight, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
                    in_flight.update(islice(pending, 1))

    def _outcome(self, request: LaunchRequest, earlier: Instance | None) -> LaunchOutcome:
        """Return the outcome of one launch. A failure is returned, not raised, so that the other launches continue."""
        try:
            if earlier is not None:
                return _adopted(request, earlier)
            return self._launch(_attempt(request))
        except InsufficientCapacityError as error:
            return LaunchFailed(
                claim=request.claim.metadata.name,
                error=error,
                unavailable=tuple(OfferingKey(*offering) for offering in error.offerings),
            )
        except (NodeClassNotReadyError, NodeClaimNotFoundError) as error:
            return LaunchFailed(claim=request.claim.metadata.name, error=error)
        except CloudProviderError as error:
            return LaunchFailed(
                claim=request.claim.metadata.name,
                error=as_create_error(error, "launching"),
                user_data_bytes=int(error.context.get("user_data_bytes", 0)),
            )
        except JourneymanError as error:
            failure = CreateError(f"launching: {error}", condition_reason="LaunchFailed")
            failure.__cause__ = error
            return LaunchFailed(claim=request.claim.metadata.name, error=failure)

    def _launch(self, attempt: _LaunchAttempt) -> LaunchOutcome:
        try:
            return self._launch_once(attempt)
        except CloudProviderError as error:
            if error_code(error) in NO_SUCH_TEMPLATE:
                # a cached template was deleted externally; it is no longer cached, so the next attempt creates it
                return self._launch_once(attempt)
            if error_code(error) == TOKEN_REUSED:
                return self._adopt_or_retry(attempt, error)
            raise

    def _adopt_or_retry(self, attempt: _LaunchAttempt, error: CloudProviderError) -> LaunchOutcome:
        """Adopt the instance that an earlier run launched with this token, or fail if EC2 does not list it yet.

        After seven attempts (a minute) the launch counts as failed, and the next attempt uses a new token.
        """
        uid = attempt.claim.metadata.uid
        instance = self._instances.by_claim_uid([uid]).get(uid)
        if instance is not None:
            return _adopted(attempt.request, instance)
        has_given_up = failures(attempt.claim) >= _LOOKUPS
        return LaunchFailed(
            claim=attempt.claim.metadata.name,
            error=as_create_error(error, "waiting for EC2 to list the instance of an earlier launch"),
            answered=has_given_up,
            retry_after=_LISTED_WITHIN if has_given_up else timedelta(0),
        )

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
        subnets = self._subnets.choose(attempt.node_class, attempt.types, attempt.capacity_type)
        used_subnet: str | None = None
        try:
            response = self._create_fleet(attempt, templates, subnets, tags.claim_tags(content.tags, attempt.claim))
            used_subnet = response.subnet if isinstance(response, FleetResponse) else None
        finally:
            self._subnets.release_unused(subnets.values(), used_subnet)
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
            context="" if has_relaxed_min_values else str(attempt.node_class.spec.get("context") or ""),
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
        outcome = launched(attempt.request, instance, tenancy=attempt.tenancy, unavailable=unavailable)
        return replace(outcome, refusals=_refusals(attempt, response.errors))

    def _failure(self, attempt: _LaunchAttempt, errors: tuple[FleetError, ...]) -> LaunchFailed:
        """Return the failure of a fleet: insufficient capacity if EC2 reports nothing else, otherwise a CreateError.

        After insufficient capacity, `steps` deletes the claim and schedules its pods again. If no offering can be marked
        unavailable, the next plan would be the same, so `steps` keeps the claim and launches it again with a back-off.

        Restates: instance.go `combineFleetErrors`.
        """
        text = "; ".join(sorted({str(error) for error in errors})) or "the fleet gave neither instances nor errors"
        unavailable = self._unavailable(attempt, errors)
        failure: CloudProviderError
        marks_unavailable = bool(unavailable or exhausted_subnets(errors))
        if marks_unavailable and all(error.is_capacity for error in errors):
            failure = InsufficientCapacityError(f"with fleet error(s), {text}", offerings=unavailable)
        else:
            reason, message = launch_reason(text)
            failure = CreateError(f"{message}: with fleet error(s), {text}", condition_reason=reason)
        return LaunchFailed(
            claim=attempt.claim.metadata.name,
            error=failure,
            unavailable=unavailable,
            refusals=_refusals(attempt, errors),
            answered=True,
        )

    def _unavailable(self, attempt: _LaunchAttempt, errors: tuple[FleetError, ...]) -> tuple[OfferingKey, ...]:
        """Return the offerings to mark unavailable, after marking subnets without a free address."""
        for subnet in exhausted_subnets(errors):
            self._subnets.mark_exhausted(subnet)
        zones = attempt.node_class.zone_ids
        exhausted = [zone for zone in zones if self._subnets.is_zone_exhausted(attempt.node_class, zone)]
        return unavailable_offerings(errors, attempt.capacity_type, zones, exhausted, attempt.reservation)


def _refusals(attempt: _LaunchAttempt, errors: tuple[FleetError, ...]) -> tuple[LaunchRefusal, ...]:
    """Return the fleet's errors for the metrics (instance.go `updateUnavailableOfferingsCache`)."""
    zone_ids = attempt.node_class.zone_ids
    return tuple(
        LaunchRefusal(
            zone=error.zone,
            zone_id=zone_ids.get(error.zone, ""),
            capacity_type=attempt.capacity_type,
            reason=launch_reason(f"{error.code}: {error.message}")[0],
        )
        for error in errors
    )


def client_token(claim: NodeClaim) -> str:
    """Return the fleet's idempotency token: the claim's UID and the number of recorded failures.

    A run after a crash, or after a lost response, uses the same token.
    """
    answered = answered_failures(claim)
    return f"{claim.metadata.uid}-{answered}" if answered else claim.metadata.uid


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


def _attempt(request: LaunchRequest) -> _LaunchAttempt:
    """Return the launch's inputs for CreateFleet.

    Raises:
        InsufficientCapacityError: The NodeClass is being deleted, or no offering for the claim is available.
        NodeClassNotReadyError: The NodeClass is not ready at its current generation.
        CreateError: Readiness is unknown, or minValues cannot be met.
    """
    node_class = NodeClassView(request.node_class.raw)
    _check_ready(request, node_class)
    types = launchable(request.claim, request.instance_types)
    if not types and has_unsatisfiable_min_values(request.claim, request.instance_types):
        text = "too few instance types suit the claim for its minValues"
        raise CreateError(text, condition_reason="MinValuesNotMet")
    if not types:
        raise InsufficientCapacityError("all requested instance types were unavailable during launch")
    capacity_type = capacity_type_of(types)
    _warn_if_inflexible(request.claim, types, capacity_type)
    return _LaunchAttempt(
        request=request,
        node_class=node_class,
        types=with_capacity_type(capacity_type, types),
        capacity_type=capacity_type,
        tenancy=_tenancy(request.claim),
    )


def _check_ready(request: LaunchRequest, node_class: NodeClassView) -> None:
    state = request.node_class
    if state.deleting:
        # as Karpenter does: the claim is deleted, and its pods are scheduled again
        raise InsufficientCapacityError("the NodeClass is terminating, treating as not found", node_class=state.name)
    if state.ready:
        return
    if (node_class.condition("Ready") or {}).get("status") in (None, "Unknown"):
        message = f"resolving nodeclass readiness, EC2NodeClass {state.name} is in Ready=Unknown"
        raise CreateError(message, condition_reason="NodeClassReadinessUnknown")
    raise NodeClassNotReadyError(state.message or "the NodeClass is not ready", node_class=state.name)


def _warn_if_inflexible(claim: NodeClaim, types: tuple[InstanceType, ...], capacity_type: str) -> None:
    """Log a warning if a fallback to on-demand has few instance types (instance.go `checkODFallback`)."""
    allows_spot = any(
        r.key == labels.CAPACITY_TYPE and r.operator == "In" and labels.SPOT in r.values
        for r in claim.spec.requirements
    )
    if capacity_type == labels.ON_DEMAND and allows_spot and len(types) < _FLEXIBLE:
        _log.warning(
            "falling back to on-demand with fewer than %d instance types",
            _FLEXIBLE,
            extra={"NodeClaim": claim.metadata.name, "instance-types": [t.name for t in types]},
        )


def _tenancy(claim: NodeClaim) -> str:
    """Return "dedicated" if the claim accepts no other tenancy, else "default"."""
    tenancy = requirements.from_selectors(claim.spec.requirements).get(TENANCY)
    dedicated = tenancy is not None and tenancy.has("dedicated") and not tenancy.has("default")
    return "dedicated" if dedicated else "default"


def _adopted(request: LaunchRequest, instance: Instance) -> Launched:
    """Return the outcome for an instance of an earlier launch. Raises NodeClaimNotFoundError if that instance ended."""
    if not is_usable(instance):
        text = f"the instance of an earlier launch, {instance.provider_id}, is {instance.state}"
        raise NodeClaimNotFoundError(text, nodeclaim=request.claim.metadata.name)
    return launched(request, instance, tenancy=_tenancy(request.claim))


def launched(
    request: LaunchRequest,
    instance: Instance,
    *,
    tenancy: str,
    unavailable: tuple[OfferingKey, ...] = (),
) -> Launched:
    """Return the outcome of a launch, with the labels, annotations and capacity for the NodeClaim."""
    node_class = NodeClassView(request.node_class.raw)
    instance_type = next((t for t in request.instance_types if t.name == instance.instance_type), None)
    return Launched(
        claim=request.claim.metadata.name,
        instance=instance,
        labels=_labels(instance, instance_type, node_class, tenancy),
        annotations=_annotations(request, node_class),
        capacity=_quantities(request, instance_type.capacity) if instance_type else {},
        allocatable=_quantities(request, instance_type.allocatable) if instance_type else {},
        price=price_of(request.instance_types, instance.instance_type, instance.zone, instance.capacity_type),
        unavailable=unavailable,
    )


def _labels(
    instance: Instance, instance_type: InstanceType | None, node_class: NodeClassView, tenancy: str
) -> dict[str, str]:
    """Return the type's labels that have one value, and the labels that the launch determines."""
    values = {
        r.key: r.values[0]
        for r in (instance_type.requirements if instance_type else ())
        if r.operator == "In" and len(r.values) == 1 and r.key not in RESERVATION_LABELS
    }
    zone_id = node_class.zone_ids.get(instance.zone, "")
    return {
        **values,
        labels.INSTANCE_TYPE: instance.instance_type,
        labels.ZONE: instance.zone,
        labels.CAPACITY_TYPE: instance.capacity_type,
        TENANCY: tenancy,
        **({ZONE_ID: zone_id} if zone_id else {}),
        **_reservation_labels(instance, instance_type),
        **({PARTITION: instance.partition} if instance.partition else {}),
    }


def _reservation_labels(instance: Instance, instance_type: InstanceType | None) -> dict[str, str]:
    """Return the labels of the capacity reservation that the instance uses."""
    offerings = instance_type.offerings if instance_type else ()
    used = next((o for o in offerings if instance.reservation_id and o.reservation_id == instance.reservation_id), None)
    found = used.requirements if used is not None else ()
    return {r.key: r.values[0] for r in found if r.key in RESERVATION_LABELS}


def _annotations(request: LaunchRequest, node_class: NodeClassView) -> dict[str, str]:
    state = request.node_class
    values = {
        EC2NODECLASS_KEYS.hash: state.hash,
        EC2NODECLASS_KEYS.version: state.hash_version,
        instance_profiles.ANNOTATION: str(node_class.status.get("instanceProfile") or ""),
    }
    return {key: value for key, value in values.items() if value}


def _quantities(request: LaunchRequest, amounts: Mapping[str, int]) -> dict[str, str]:
    """Return resources as quantities; EFA only if the claim requests it or the NodeClass has network interfaces."""
    has_network_interfaces = bool(NodeClassView(request.node_class.raw).network_interfaces)
    keeps_efa = has_network_interfaces or EFA in request.claim.spec.resources.requests
    return format_resources({name: n for name, n in amounts.items() if n and (name != EFA or keeps_efa)})
