"""Launch at most one instance for a NodeClaim, with an auto-provisioning group of type `instant`.

`cloud.launching` has what every cloud does; here is ECS's part. `launch_requests` says when RunInstances launches instead.

The client token of a launch makes a repeated request return the first answer. When ECS reports that the token was used with
other parameters, the launcher looks up the instance until ECS lists it, for at most a minute.

Source: ECS API reference, "How to ensure idempotence".
Restates: cloudpilot-ai/karpenter-provider-alibabacloud pkg/providers/instance/instance.go `Create`.
Differs: a client token; one request for several architectures; each of the answer's results counts, since a success may follow
failures; a fallback to on-demand is a new launch, as on AWS.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from journeyman.cloud.alibaba import tags
from journeyman.cloud.alibaba.alibaba_errors import (
    TOKEN_REUSED,
    error_code,
    launch_rule,
    translated,
)
from journeyman.cloud.alibaba.alibaba_settings import AlibabaSettings
from journeyman.cloud.alibaba.bootstrap import user_data
from journeyman.cloud.alibaba.cluster_details import ClusterDetails
from journeyman.cloud.alibaba.ecs_instances import EcsInstances, provider_id_of
from journeyman.cloud.alibaba.instance_types import AMD_GPU, NVIDIA_GPU, SIZE, ZONE_ID
from journeyman.cloud.alibaba.launch_requests import (
    MAX_PAIRS,
    LaunchAnswer,
    LaunchError,
    LaunchPair,
    group_request,
    launch_pairs,
    needs_run_instances,
    parse_group_answer,
    run_instances_request,
)
from journeyman.cloud.alibaba.open_api import ECS, ApiCall, OpenApi
from journeyman.cloud.fault_rules import FaultRule, one_per_object
from journeyman.cloud.free_addresses import ChosenSubnet, FreeAddresses, SubnetsByZone, subnets_by_zone
from journeyman.cloud.launch_filter import LaunchLimits
from journeyman.cloud.launching import Launcher, client_token, outcome_of, types_to_launch
from journeyman.core.api import labels
from journeyman.core.api.ecs_settings import ECSNodeClassView
from journeyman.core.api.launch_faults import FaultScope, LaunchFault
from journeyman.core.api.objects import OfferingKey
from journeyman.core.catalogue import InstanceType
from journeyman.errors import (
    CloudProviderError,
    CloudUnavailableError,
    CreateError,
    InsufficientCapacityError,
    RateLimitedError,
)
from journeyman.ports import (
    JSON,
    Clock,
    Instance,
    Launched,
    LaunchFailed,
    LaunchOutcome,
    LaunchRefusal,
    LaunchRequest,
)

LIMITS: Final = LaunchLimits(max_instance_types=MAX_PAIRS, size_label=SIZE, accelerators=(NVIDIA_GPU, AMD_GPU))


class _PairLaunch(Struct, frozen=True, kw_only=True):
    """The inputs of one launch."""

    request: LaunchRequest
    node_class: ECSNodeClassView
    types: tuple[InstanceType, ...]
    capacity_type: str
    subnets: SubnetsByZone

    @property
    def claim_name(self) -> str:
        """The name of the NodeClaim to launch."""
        return self.request.claim.metadata.name


class EcsLauncher(Launcher):
    """Launches instances with auto-provisioning groups, several NodeClaims in parallel."""

    cloud = "ECS"

    def __init__(
        self,
        call: OpenApi,
        settings: AlibabaSettings,
        clock: Clock,
        *,
        instances: EcsInstances,
        addresses: FreeAddresses,
        cluster: ClusterDetails,
        view: Callable[[JSON], ECSNodeClassView],
    ) -> None:
        super().__init__(instances, settings.max_parallel_launches)
        self._call = call
        self._settings = settings
        self._clock = clock
        self._addresses = addresses
        self._cluster = cluster
        self._view = view

    def launch_rule(self, error: CloudProviderError) -> FaultRule:
        """Return `Launcher.launch_rule`."""
        return launch_rule(error_code(error))

    def launch_one(self, request: LaunchRequest) -> LaunchOutcome:
        """Return the outcome of one launch (`Launcher.launch_one`)."""
        capacity_type, types = types_to_launch(request, LIMITS)
        node_class = self._view(request.node_class.raw)
        attempt = _PairLaunch(
            request=request,
            node_class=node_class,
            types=types,
            capacity_type=capacity_type,
            subnets=subnets_by_zone((vswitch.zone, vswitch.id) for vswitch in node_class.resolved.vswitches),
        )
        try:
            return self._launch(attempt)
        except CloudProviderError as error:
            if error_code(error) == TOKEN_REUSED:
                return self.adopt_or_retry(request, error)
            raise

    def _launch(self, attempt: _PairLaunch) -> LaunchOutcome:
        claim, settings = attempt.request.claim, attempt.node_class.settings
        text = user_data(
            claim,
            attach_script=self._cluster.attach_script(format_disk=settings.format_data_disk),
            cluster_id=self._settings.cluster_id,
            capacity_type=attempt.capacity_type,
            kubelet=settings.kubelet,
            custom=settings.user_data,
        )
        encoded = base64.b64encode(text.encode()).decode()
        full = attempt.request.full_subnets
        chosen = self._addresses.choose(attempt.subnets, attempt.types, attempt.capacity_type, full=full)
        used: str | None = None
        try:
            pairs = launch_pairs(attempt.types, chosen, attempt.node_class, claim.metadata.uid)
            if not pairs:
                raise _no_pair(attempt)
            answer = self._send(attempt, pairs, encoded)
            used = chosen[answer.zone].id if answer.instance_id and answer.zone in chosen else None
        finally:
            self._addresses.release_unused(chosen.values(), used)
        errors = tuple(_about_pairs(answer.errors, pairs))
        unavailable = self._unavailable(attempt, errors, chosen)
        outcome: LaunchOutcome
        if answer.instance_id:
            outcome = self._success(attempt, answer, pairs, unavailable)
        else:
            outcome = _failure(attempt, answer.errors, unavailable, _subnet_faults(attempt, errors, chosen))
        return replace(
            outcome,
            user_data_bytes=len(text.encode()),
            unavailable_for_class=_unavailable_for_class(attempt, errors),
            faults=outcome.faults or _subnet_faults(attempt, errors, chosen),
        )

    def _send(self, attempt: _PairLaunch, pairs: Sequence[LaunchPair], encoded: str) -> LaunchAnswer:
        claim, node_class = attempt.request.claim, attempt.node_class
        instance_tags = tags.claim_tags(
            node_class.settings.tags,
            claim,
            cluster_id=self._settings.cluster_id,
            node_class=node_class.name,
            cluster_uid=attempt.request.cluster_uid,
        )
        common = {"RegionId": self._settings.region, "ClientToken": client_token(claim)}
        name = claim.metadata.name
        if needs_run_instances(node_class):
            pair = pairs[0]
            parameters = run_instances_request(node_class, pair, attempt.capacity_type, instance_tags, encoded)
            try:
                with translated("ecs:RunInstances", nodeclaim=name):
                    answer = self._call(
                        ApiCall(service=ECS, action="RunInstances", parameters={**common, **parameters})
                    )
            except CloudProviderError as error:
                return _refused(error, pair.instance_type, pair.zone)
            ids = (answer.get("InstanceIdSets") or {}).get("InstanceIdSet") or [""]
            return LaunchAnswer(errors=(), instance_id=ids[0], instance_type=pair.instance_type, zone=pair.zone)
        parameters = group_request(node_class, pairs, attempt.capacity_type, instance_tags, encoded)
        call = ApiCall(service=ECS, action="CreateAutoProvisioningGroup", parameters={**common, **parameters})
        try:
            with translated("ecs:CreateAutoProvisioningGroup", nodeclaim=name):
                return parse_group_answer(self._call(call))
        except CloudProviderError as error:
            return _refused(error)

    def _success(
        self,
        attempt: _PairLaunch,
        answer: LaunchAnswer,
        pairs: Sequence[LaunchPair],
        unavailable: tuple[OfferingKey, ...],
    ) -> Launched:
        image = next((p.image_id for p in pairs if p.instance_type == answer.instance_type), "")
        instance = Instance(
            provider_id=provider_id_of(self._settings.region, answer.instance_id),
            instance_type=answer.instance_type,
            zone=answer.zone,
            capacity_type=attempt.capacity_type,
            state="pending",
            launched_at=self._clock.now(),
            image_id=image,
        )
        outcome = self.launched(attempt.request, instance)
        return replace(outcome, unavailable=unavailable, refusals=_refusals(attempt, answer.errors))

    def launched(self, request: LaunchRequest, instance: Instance) -> Launched:
        """Return `Launcher.launched`."""
        keys = self._view(request.node_class.raw).api.hash_keys
        return outcome_of(
            request,
            instance,
            more_labels={ZONE_ID: instance.zone},
            annotations={keys.hash: request.node_class.hash, keys.version: request.node_class.hash_version},
        )

    def _unavailable(
        self, attempt: _PairLaunch, errors: Iterable[LaunchError], chosen: Mapping[str, ChosenSubnet]
    ) -> tuple[OfferingKey, ...]:
        """Return the offerings to mark unavailable, sorted, after marking vSwitches without a free address.

        A zone without a free address makes all its offerings unavailable ("*" stands for every instance type).
        """
        unavailable: set[OfferingKey] = set()
        for error in errors:
            rule = launch_rule(error.code)
            if rule.scope is FaultScope.OFFERING and not rule.node_class_only:
                unavailable.add(OfferingKey(error.instance_type, error.zone, attempt.capacity_type))
            elif rule.scope is FaultScope.SUBNET and error.zone in chosen:
                self._addresses.mark_exhausted(chosen[error.zone].id)
                full = attempt.request.full_subnets
                if self._addresses.is_zone_exhausted(attempt.subnets, error.zone, full=full):
                    unavailable |= {OfferingKey("*", error.zone, kind) for kind in (labels.ON_DEMAND, labels.SPOT)}
        return tuple(sorted(unavailable))


def _about_pairs(errors: Iterable[LaunchError], pairs: Sequence[LaunchPair]) -> Iterator[LaunchError]:
    """Yield the errors; one about the whole request is about each of its pairs."""
    for error in errors:
        if error.zone:
            yield error
        else:
            yield from (replace(error, instance_type=pair.instance_type, zone=pair.zone) for pair in pairs)


def _unavailable_for_class(attempt: _PairLaunch, errors: Iterable[LaunchError]) -> tuple[OfferingKey, ...]:
    """Return the offerings that only the NodeClass's settings make unavailable, sorted."""
    refused = (error for error in errors if launch_rule(error.code).node_class_only)
    return tuple(sorted({OfferingKey(e.instance_type, e.zone, attempt.capacity_type) for e in refused}))


def _subnet_faults(
    attempt: _PairLaunch, errors: Iterable[LaunchError], chosen: Mapping[str, ChosenSubnet]
) -> tuple[LaunchFault, ...]:
    """Return the vSwitches without a free address."""
    full = ((error, launch_rule(error.code)) for error in errors if error.zone in chosen)
    return one_per_object(
        rule.fault(attempt.request.claim, str(error), chosen[error.zone].id)
        for error, rule in full
        if rule.scope is FaultScope.SUBNET
    )


def _failure(
    attempt: _PairLaunch,
    errors: Sequence[LaunchError],
    unavailable: tuple[OfferingKey, ...],
    subnets: tuple[LaunchFault, ...],
) -> LaunchFailed:
    """Return the failure of a launch: insufficient capacity if ECS reports nothing else, otherwise a CreateError.

    After insufficient capacity, `steps` deletes the NodeClaim and schedules its pods again. If no offering can be marked
    unavailable, the next plan would be the same: then the NodeClass, the NodePool or the account is at fault.
    """
    text = "; ".join(sorted({str(error) for error in errors})) or "the answer had neither instances nor errors"
    rules = [launch_rule(error.code) for error in errors]
    failure: CloudProviderError
    if (unavailable or subnets) and all(rule.scope in (FaultScope.OFFERING, FaultScope.SUBNET) for rule in rules):
        failure, faults = InsufficientCapacityError(f"ECS launched no instance: {text}", offerings=unavailable), subnets
    else:
        decisive = next((rule for rule in rules if not rule.is_capacity), launch_rule(""))
        message = f"{decisive.meaning}: {text}. {decisive.remedy}"
        failure = CreateError(message, condition_reason=decisive.reason)
        faults = one_per_object([*subnets, decisive.fault(attempt.request.claim, text)])
    return LaunchFailed(
        claim=attempt.claim_name,
        error=failure,
        unavailable=unavailable,
        faults=faults,
        refusals=_refusals(attempt, errors),
        answered=True,
    )


def _refused(error: CloudProviderError, instance_type: str = "", zone: str = "") -> LaunchAnswer:
    """Return the answer for a request that ECS refused, and so launched nothing.

    Raises:
        RateLimitedError, CloudUnavailableError: ECS did not decide; the request is repeated with the same token.
        CloudProviderError: The token was used before.
    """
    if isinstance(error, (RateLimitedError, CloudUnavailableError)) or error_code(error) == TOKEN_REUSED:
        raise error
    refusal = LaunchError(code=error_code(error), message=error.message, instance_type=instance_type, zone=zone)
    return LaunchAnswer(errors=(refusal,))


def _no_pair(attempt: _PairLaunch) -> CloudProviderError:
    """Return the error of a launch for which no zone has a vSwitch, or no architecture an image."""
    zones = sorted({offering.zone for t in attempt.types for offering in t.offerings})
    if set(zones) & set(attempt.subnets):
        return CreateError(
            "the NodeClass has no image for the architecture of these instance types", condition_reason="ImageNotFound"
        )
    unavailable = {OfferingKey("*", zone, kind) for zone in zones for kind in (labels.ON_DEMAND, labels.SPOT)}
    text = "the NodeClass has no vSwitch in a zone with an available instance type"
    return InsufficientCapacityError(text, offerings=tuple(sorted(unavailable)))


def _refusals(attempt: _PairLaunch, errors: Iterable[LaunchError]) -> tuple[LaunchRefusal, ...]:
    """Return the errors for the metrics."""
    return tuple(
        LaunchRefusal(
            zone=error.zone,
            zone_id=error.zone,
            capacity_type=attempt.capacity_type,
            reason=launch_rule(error.code).reason,
        )
        for error in errors
    )
