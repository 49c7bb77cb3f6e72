"""The parts of a launch that every cloud has: launches in parallel, their inputs, their outcome.

1. An instance that already carries the NodeClaim's UID is adopted. If that instance ended, the launch fails and is not
   repeated: a NodeClaim has one instance in its lifetime. The NodeClaim is deleted, and its pods are scheduled again.
2. The client token is the UID, so that two concurrent calls launch one instance.
3. The token changes only after a launch that the cloud answered with a failure and that was recorded in the NodeClaim's
   launch-retry annotation. After a call without an answer it stays, since the instance may exist already.

Restates: karpenter-provider-aws pkg/providers/instance/instance.go `Create`.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextvars import copy_context
from datetime import timedelta
from itertools import islice
from typing import Any, Final, Protocol

from journeyman.cloud.fault_rules import FaultRule, one_per_object
from journeyman.cloud.launch_filter import (
    LaunchLimits,
    capacity_type_of,
    has_unsatisfiable_min_values,
    launchable,
    with_capacity_type,
)
from journeyman.core.api import labels
from journeyman.core.api.launch_faults import FaultKey, FaultScope, LaunchFault
from journeyman.core.api.objects import NodeClaim, OfferingKey
from journeyman.core.api.resources import format_resources
from journeyman.core.catalogue import InstanceType, price_of
from journeyman.core.lifecycle.launch import answered_failures, failures
from journeyman.errors import (
    CloudProviderError,
    CloudUnavailableError,
    ConfigurationError,
    CreateError,
    InsufficientCapacityError,
    JourneymanError,
    NodeClaimNotFoundError,
    NodeClassNotReadyError,
    RateLimitedError,
)
from journeyman.ports import Instance, Launched, LaunchFailed, LaunchOutcome, LaunchRequest

_log = logging.getLogger(__name__)

_FLEXIBLE: Final = 5  # instance.go `instanceTypeFlexibilityThreshold`
_LOOKUPS: Final = 7  # attempts, which take a minute
# EC2 API reference, "Eventual consistency": seconds, in rare cases minutes; other clouds give no figure
_LISTED_WITHIN: Final = timedelta(minutes=2)


def _own_rule(reason: str, meaning: str, remedy: str) -> FaultRule:
    return FaultRule(scope=FaultScope.NODE_CLASS, reason=reason, meaning=meaning, remedy=remedy)


_OWN_RULES: Final = {
    rule.reason: rule
    for rule in (
        _own_rule("ImageNotFound", "no image suits", "Select an image of that architecture in the NodeClass"),
        _own_rule("SubnetNotFound", "no subnet is selected", "Correct subnetSelectorTerms of the NodeClass"),
        _own_rule(
            "PlacementGroupPartitionNotFound",
            "no partition suits",
            "Correct spec.placementGroupSelector of the NodeClass, or the NodePool's requirements",
        ),
    )
}
"""The faults that a launcher finds before it requests an instance, by their reason."""
_INVALID: Final = _own_rule(
    "InvalidNodeClass", "the NodeClass cannot be used", "Correct the NodeClass as the message says"
)


class ClusterInstances(Protocol):
    """The instances of one cluster, as a cloud lists them."""

    def by_claim_uid(self, uids: Iterable[str]) -> Mapping[str, Instance]:
        """Return the instances that were launched for these NodeClaims, by UID. Raises CloudProviderError."""
        ...


class Launcher(ABC):
    """Launches instances, several NodeClaims in parallel; each cloud adds its own part.

    Args:
        instances: The cluster's instances.
        max_parallel: How many launches are under way at once.
    """

    cloud = ""
    """The service that launches, for messages."""

    def __init__(self, instances: ClusterInstances, max_parallel: int) -> None:
        self._instances = instances
        self._max_parallel = max_parallel

    @abstractmethod
    def launch_one(self, request: LaunchRequest) -> LaunchOutcome:
        """Launch an instance. Raises JourneymanError."""

    @abstractmethod
    def launched(self, request: LaunchRequest, instance: Instance) -> Launched:
        """Return the outcome for an instance that was launched for the request."""

    @abstractmethod
    def launch_rule(self, error: CloudProviderError) -> FaultRule:
        """Return whose fault a launch is that failed with this error of the cloud, and what to do."""

    def faults_of(self, request: LaunchRequest, error: CloudProviderError) -> tuple[LaunchFault, ...]:
        """Return the objects whose fault the error of a launch is; none if it is an offering's, or no object's."""
        if isinstance(error, (RateLimitedError, CloudUnavailableError)):
            return ()
        rule = _OWN_RULES.get(error.condition_reason) if isinstance(error, CreateError) else self.launch_rule(error)
        return one_per_object([rule.fault(request.claim, error.message)]) if rule is not None else ()

    def as_create_error(self, error: CloudProviderError, doing: str) -> CloudProviderError:
        """Return the error of a launch: a RateLimitedError or CreateError unchanged, any other as a CreateError.

        Args:
            error: The translated error of a request.
            doing: The operation, as a participle; the message starts with it.
        """
        if isinstance(error, (RateLimitedError, CreateError)):
            return error
        rule = self.launch_rule(error)
        facts = {key: value for key, value in error.context.items() if key != "condition_reason"}
        text = f"{doing}: {rule.meaning}: {error.message}. {rule.remedy}"
        failed = CreateError(text, condition_reason=rule.reason, **facts)
        failed.__cause__ = error
        return failed

    def launch(self, requests: Sequence[LaunchRequest]) -> Iterator[LaunchOutcome]:
        """Yield one outcome per request (`launch_each`). Raises nothing."""
        return launch_each(requests, self, self._max_parallel)

    def find_launched(self, uids: Iterable[str]) -> Mapping[str, Instance]:
        """Return the instances that were launched for these NodeClaims, by UID. Raises CloudProviderError."""
        return self._instances.by_claim_uid(uids)

    def adopt(self, request: LaunchRequest, instance: Instance) -> Launched:
        """Return the outcome for an instance of an earlier launch.

        Raises:
            InsufficientCapacityError: The cloud had no capacity to build the instance.
            NodeClaimNotFoundError: The instance ended.
        """
        if instance.failure is not None and instance.failure.is_capacity:
            text = f"the instance of an earlier launch, {instance.provider_id}, could not be built: {instance.failure.message}"
            offering = (instance.instance_type, instance.zone, instance.capacity_type)
            raise InsufficientCapacityError(text, offerings=(offering,))
        if not is_usable(instance):
            text = f"the instance of an earlier launch, {instance.provider_id}, is {instance.state}"
            raise NodeClaimNotFoundError(text, nodeclaim=request.claim.metadata.name)
        return self.launched(request, instance)

    def adopt_or_retry(self, request: LaunchRequest, error: CloudProviderError) -> LaunchOutcome:
        """Adopt the instance that an earlier run launched with this token, or fail if the cloud does not list it yet.

        The cloud refused the launch because its token was used with other parameters. After seven attempts (a minute) the launch
        counts as failed, and the next attempt uses a new token.
        """
        claim = request.claim
        instance = self.find_launched([claim.metadata.uid]).get(claim.metadata.uid)
        if instance is not None:
            return self.adopt(request, instance)
        has_given_up = failures(claim) >= _LOOKUPS
        return LaunchFailed(
            claim=claim.metadata.name,
            error=self.as_create_error(error, f"waiting for {self.cloud} to list the instance of an earlier launch"),
            answered=has_given_up,
            retry_after=_LISTED_WITHIN if has_given_up else timedelta(0),
        )


def launch_each(requests: Sequence[LaunchRequest], launcher: Launcher, max_parallel: int) -> Iterator[LaunchOutcome]:
    """Yield one outcome per request, in the order in which the launches end. Raises nothing.

    The next launch starts when the caller takes an outcome. If the caller stops early, no further launch starts; at
    most `max_parallel` are still running then, and a later run adopts their instances.
    """
    try:
        earlier = launcher.find_launched(r.claim.metadata.uid for r in requests)
    except CloudProviderError as error:
        # without the list of instances, the launcher could launch a second one
        failure = launcher.as_create_error(error, "looking for instances of earlier launches")
        yield from (LaunchFailed(claim=r.claim.metadata.name, error=failure) for r in requests)
        return
    if earlier:
        _log.info("found instances of earlier launches", extra={"count": len(earlier)})
    workers = min(max_parallel, len(requests))
    if workers <= 1:
        refused = RefusedObjects()
        for request in requests:
            yield _outcome(launcher, request, earlier.get(request.claim.metadata.uid), refused)
        return
    with ThreadPoolExecutor(max_workers=workers, thread_name_prefix="launch") as pool:
        refused = RefusedObjects()
        pending = (
            pool.submit(copy_context().run, _outcome, launcher, r, earlier.get(r.claim.metadata.uid), refused)
            for r in requests
        )
        in_flight = set(islice(pending, workers))
        while in_flight:
            done, in_flight = wait(in_flight, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
                in_flight.update(islice(pending, 1))


class RefusedObjects:
    """The objects whose fault launches of one run were, so that the run's other launches do not repeat them. Thread-safe."""

    def __init__(self) -> None:
        self._outcomes: dict[FaultKey, LaunchFailed] = {}

    def add(self, outcome: LaunchOutcome) -> None:
        """Record the faults of an outcome, except subnets: another launch chooses another one."""
        if isinstance(outcome, LaunchFailed):
            for fault in outcome.faults:
                if fault.scope is not FaultScope.SUBNET:
                    self._outcomes.setdefault(fault.key, outcome)

    def failure_of(self, request: LaunchRequest) -> LaunchFailed | None:
        """Return the failure that the launch of this request would repeat; None if there is none."""
        claim = request.claim
        keys = (
            FaultKey(FaultScope.ACCOUNT, ""),
            FaultKey(FaultScope.NODE_CLASS, claim.spec.node_class_ref.name),
            FaultKey(FaultScope.NODE_POOL, claim.metadata.labels.get(labels.NODEPOOL, "")),
        )
        before = next((self._outcomes[key] for key in keys if key in self._outcomes), None)
        if before is None:
            return None
        return LaunchFailed(claim=claim.metadata.name, error=before.error, faults=before.faults)


def _outcome(
    launcher: Launcher, request: LaunchRequest, earlier: Instance | None, refused: RefusedObjects
) -> LaunchOutcome:
    """Return the outcome of one launch; without a call, if an earlier one of the run failed through the same object's fault."""
    repeated = refused.failure_of(request) if earlier is None else None
    outcome = repeated or _launch_or_adopt(launcher, request, earlier)
    refused.add(outcome)
    return outcome


def _launch_or_adopt(launcher: Launcher, request: LaunchRequest, earlier: Instance | None) -> LaunchOutcome:
    """Return the outcome of one launch. A failure is returned, not raised, so that the other launches continue."""
    name = request.claim.metadata.name
    try:
        return launcher.adopt(request, earlier) if earlier is not None else launcher.launch_one(request)
    except InsufficientCapacityError as error:
        return LaunchFailed(claim=name, error=error, unavailable=tuple(OfferingKey(*o) for o in error.offerings))
    except (NodeClassNotReadyError, NodeClaimNotFoundError) as error:
        return LaunchFailed(claim=name, error=error)
    except CloudProviderError as error:
        size = int(error.context.get("user_data_bytes", 0))
        failed = launcher.as_create_error(error, "launching")
        faults = launcher.faults_of(request, error)
        return LaunchFailed(claim=name, error=failed, user_data_bytes=size, faults=faults)
    except JourneymanError as error:
        failure = CreateError(f"launching: {error}", condition_reason="LaunchFailed")
        failure.__cause__ = error
        found = [_INVALID.fault(request.claim, error.message)] if isinstance(error, ConfigurationError) else []
        return LaunchFailed(claim=name, error=failure, faults=one_per_object(found))


def client_token(claim: NodeClaim) -> str:
    """Return the launch's idempotency token: the NodeClaim's UID and the number of recorded failures.

    A run after a crash, or after a lost response, uses the same token.
    """
    answered = answered_failures(claim)
    return f"{claim.metadata.uid}-{answered}" if answered else claim.metadata.uid


def types_to_launch(request: LaunchRequest, limits: LaunchLimits) -> tuple[str, tuple[InstanceType, ...]]:
    """Return the capacity type of a launch, and its instance types with offerings of that capacity type only.

    Raises:
        InsufficientCapacityError: The NodeClass is being deleted, or no offering for the NodeClaim is available.
        NodeClassNotReadyError: The NodeClass is not ready at its current generation.
        CreateError: Readiness is unknown, or minValues cannot be met.
    """
    _check_ready(request)
    types = launchable(request.claim, request.instance_types, limits)
    if not types and has_unsatisfiable_min_values(request.claim, request.instance_types, limits):
        text = "too few instance types suit the claim for its minValues"
        raise CreateError(text, condition_reason="MinValuesNotMet")
    if not types:
        raise InsufficientCapacityError("all requested instance types were unavailable during launch")
    capacity_type = capacity_type_of(types)
    _warn_if_inflexible(request.claim, types, capacity_type)
    return capacity_type, with_capacity_type(capacity_type, types)


def _check_ready(request: LaunchRequest) -> None:
    state = request.node_class
    if state.deleting:
        # as Karpenter does: the claim is deleted, and its pods are scheduled again
        raise InsufficientCapacityError("the NodeClass is terminating, treating as not found", node_class=state.name)
    if state.ready:
        return
    conditions = (state.raw.get("status") or {}).get("conditions") or ()
    if all(c.get("status") == "Unknown" for c in conditions if c.get("type") == "Ready"):
        message = f"resolving nodeclass readiness, {state.kind} {state.name} is in Ready=Unknown"
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


def is_usable(instance: Instance) -> bool:
    """Whether the instance runs, or is about to."""
    return instance.state in ("pending", "running")


def usable_and_oldest_first(instance: Instance) -> tuple[Any, ...]:
    """Return the key that sorts the instances of one NodeClaim: the one to adopt comes first."""
    return not is_usable(instance), instance.launched_at, instance.provider_id


def outcome_of(
    request: LaunchRequest,
    instance: Instance,
    *,
    more_labels: Mapping[str, str],
    annotations: Mapping[str, str],
    left_out: Iterable[str] = (),
    unavailable: tuple[OfferingKey, ...] = (),
) -> Launched:
    """Return the outcome of a launch, with the labels, annotations and capacity for the NodeClaim.

    Args:
        request: The launch.
        instance: The instance that the cloud launched.
        more_labels: Labels that the launch determines, besides instance type, zone and capacity type.
        annotations: Annotations of the NodeClass as it was at the launch; empty values are omitted.
        left_out: Labels of the instance type that `more_labels` replaces, and resources that such a node does not have.
        unavailable: The offerings to mark unavailable.
    """
    instance_type = next((t for t in request.instance_types if t.name == instance.instance_type), None)
    omitted = frozenset(left_out)
    of_type = {
        r.key: r.values[0]
        for r in (instance_type.requirements if instance_type else ())
        if r.operator == "In" and len(r.values) == 1 and r.key not in omitted
    }

    def quantities(amounts: Mapping[str, int]) -> dict[str, str]:
        return format_resources({name: n for name, n in amounts.items() if n and name not in omitted})

    return Launched(
        claim=request.claim.metadata.name,
        instance=instance,
        labels={
            **of_type,
            labels.INSTANCE_TYPE: instance.instance_type,
            labels.ZONE: instance.zone,
            labels.CAPACITY_TYPE: instance.capacity_type,
            **more_labels,
        },
        annotations={key: value for key, value in annotations.items() if value},
        capacity=quantities(instance_type.capacity) if instance_type else {},
        allocatable=quantities(instance_type.allocatable) if instance_type else {},
        price=price_of(request.instance_types, instance.instance_type, instance.zone, instance.capacity_type),
        unavailable=unavailable,
    )
