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
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from journeyman.cloud.alibaba import tags
from journeyman.cloud.alibaba.alibaba_errors import (
    NO_ADDRESSES,
    TOKEN_REUSED,
    UNFULFILLABLE,
    error_code,
    launch_reason,
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
from journeyman.cloud.free_addresses import ChosenSubnet, FreeAddresses, SubnetsByZone, subnets_by_zone
from journeyman.cloud.launch_filter import LaunchLimits
from journeyman.cloud.launching import Launcher, client_token, outcome_of, types_to_launch
from journeyman.core.api import labels
from journeyman.core.api.ecs_settings import ECSNodeClassView
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

    def launch_reason(self, error: CloudProviderError) -> tuple[str, str]:
        """Return `Launcher.launch_reason`."""
        return launch_reason(error_code(error))

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
        chosen = self._addresses.choose(attempt.subnets, attempt.types, attempt.capacity_type)
        used: str | None = None
        try:
            pairs = launch_pairs(attempt.types, chosen, attempt.node_class, claim.metadata.uid)
            if not pairs:
                raise _no_pair(attempt)
            answer = self._send(attempt, pairs, encoded)
            used = chosen[answer.zone].id if answer.instance_id and answer.zone in chosen else None
        finally:
            self._addresses.release_unused(chosen.values(), used)
        unavailable = self._unavailable(attempt, answer.errors, chosen, pairs)
        if answer.instance_id:
            outcome: LaunchOutcome = self._success(attempt, answer, pairs, unavailable)
        else:
            outcome = _failure(attempt, answer.errors, unavailable)
        return replace(outcome, user_data_bytes=len(text.encode()))

    def _send(self, attempt: _PairLaunch, pairs: Sequence[LaunchPair], encoded: str) -> LaunchAnswer:
        claim, node_class = attempt.request.claim, attempt.node_class
        instance_tags = tags.claim_tags(
            node_class.settings.tags, claim, cluster_id=self._settings.cluster_id, node_class=node_class.name
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
        self,
        attempt: _PairLaunch,
        errors: Iterable[LaunchError],
        chosen: Mapping[str, ChosenSubnet],
        pairs: Sequence[LaunchPair],
    ) -> tuple[OfferingKey, ...]:
        """Return the offerings to mark unavailable, sorted, after marking vSwitches without a free address.

        A zone without a free address makes all its offerings unavailable ("*" stands for every instance type). An error about
        the whole request is about each of its pairs.
        """
        unavailable: set[OfferingKey] = set()
        for error in errors:
            if error.code not in UNFULFILLABLE:
                continue
            refused = [(error.instance_type, error.zone)] if error.zone else [(p.instance_type, p.zone) for p in pairs]
            if error.code not in NO_ADDRESSES:
                unavailable |= {OfferingKey(name, zone, attempt.capacity_type) for name, zone in refused}
                continue
            for zone in sorted({zone for _, zone in refused if zone in chosen}):
                self._addresses.mark_exhausted(chosen[zone].id)
                if self._addresses.is_zone_exhausted(attempt.subnets, zone):
                    unavailable |= {OfferingKey("*", zone, kind) for kind in (labels.ON_DEMAND, labels.SPOT)}
        return tuple(sorted(unavailable))


def _failure(attempt: _PairLaunch, errors: Sequence[LaunchError], unavailable: tuple[OfferingKey, ...]) -> LaunchFailed:
    """Return the failure of a launch: insufficient capacity if ECS reports nothing else, otherwise a CreateError.

    After insufficient capacity, `steps` deletes the NodeClaim and schedules its pods again. If no offering can be marked
    unavailable, the next plan would be the same, so `steps` keeps the NodeClaim and launches it again with a back-off.
    """
    text = "; ".join(sorted({str(error) for error in errors})) or "the answer had neither instances nor errors"
    is_capacity = all(error.code in UNFULFILLABLE for error in errors)
    failure: CloudProviderError
    if is_capacity and (unavailable or any(error.code in NO_ADDRESSES for error in errors)):
        failure = InsufficientCapacityError(f"ECS launched no instance: {text}", offerings=unavailable)
    else:
        first = next((error.code for error in errors if error.code not in UNFULFILLABLE), "")
        reason, message = launch_reason(first)
        failure = CreateError(f"{message}: {text}", condition_reason=reason)
    return LaunchFailed(
        claim=attempt.claim_name,
        error=failure,
        unavailable=unavailable,
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
            reason=launch_reason(error.code)[0],
        )
        for error in errors
    )
