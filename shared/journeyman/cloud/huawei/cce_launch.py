"""Launch at most one node for a NodeClaim with CreateNode, which takes one flavor and zone a request.

`cloud.launching` has what every cloud does; here is CCE's part. Offerings are tried from the cheapest on, until one is accepted.

CreateNode has no client token, so two requests create two nodes. A node's name has the NodeClaim's UID: each launch first looks for
it (`HuaweiInstances.by_claim_uid`), and a request without an answer ends the launch, which is repeated once ListNodes would show
the node. A second node, created by a request that took effect later, has no NodeClaim, and is garbage-collected.

Restates: huaweicloud-samples/karpenter-provider-huawei pkg/providers/instance/instance.go `Create`.
Differs: a name, so that a node is found after a crash; Spot; every error code of missing stock; a node's failure after its creation
(`HuaweiInstances`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from journeyman.cloud.fault_rules import FaultRule, one_per_object
from journeyman.cloud.free_addresses import ChosenSubnet, FreeAddresses, SubnetsByZone
from journeyman.cloud.huawei.cce_nodes import HuaweiInstances
from journeyman.cloud.huawei.huawei_errors import (
    cause_of,
    error_code,
    launch_rule,
    translated,
)
from journeyman.cloud.huawei.huawei_settings import HuaweiSettings
from journeyman.cloud.huawei.instance_types import ASCEND_NPU, NVIDIA_GPU, SIZE
from journeyman.cloud.huawei.node_request import create_node_body
from journeyman.cloud.huawei.rest_api import CCE, RestApi, RestCall
from journeyman.cloud.launch_filter import LaunchLimits
from journeyman.cloud.launching import Launcher, outcome_of, types_to_launch
from journeyman.core.api import labels
from journeyman.core.api.ccenodeclass import CCENodeClassView
from journeyman.core.api.hashes import CCENODECLASS_KEYS
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

LIMITS: Final = LaunchLimits(max_instance_types=20, size_label=SIZE, accelerators=(NVIDIA_GPU, ASCEND_NPU))
MAX_ATTEMPTS: Final = 8
"""Offerings that one launch tries, so that it ends within the time that a run reserves for it."""
LISTED_WITHIN: Final = timedelta(seconds=30)
"""How long a launch without an answer is not repeated, as CCE does not say how soon ListNodes shows a node; building one takes longer."""


class _NodeLaunch(Struct, frozen=True, kw_only=True):
    """The inputs of one launch."""

    request: LaunchRequest
    node_class: CCENodeClassView
    types: tuple[InstanceType, ...]
    capacity_type: str
    subnets: SubnetsByZone

    @property
    def candidates(self) -> Sequence[tuple[str, str]]:
        """Flavors and zones, from the cheapest on."""
        offered = sorted((o.price, o.zone, t.name) for t in self.types for o in t.offerings)
        return [(name, zone) for _, zone, name in offered]


class _RecentLaunch(Struct, frozen=True, kw_only=True):
    """A launch that ListNodes may not show yet: the node that it created, or the error that left it undecided."""

    at: datetime
    instance: Instance | None = None
    error: CloudUnavailableError | None = None


class CceLauncher(Launcher):
    """Creates nodes, several NodeClaims in parallel.

    It remembers its own launches for `LISTED_WITHIN`, so that a launch whose outcome could not be recorded is not repeated too early.
    """

    cloud = "CCE"

    def __init__(
        self,
        api: RestApi,
        settings: HuaweiSettings,
        clock: Clock,
        *,
        instances: HuaweiInstances,
        addresses: FreeAddresses,
        view: Callable[[JSON], CCENodeClassView],
    ) -> None:
        super().__init__(instances, settings.max_parallel_launches)
        self._api = api
        self._settings = settings
        self._clock = clock
        self._nodes = instances
        self._addresses = addresses
        self._view = view
        self._recent: dict[str, _RecentLaunch] = {}  # by the NodeClaim's UID

    def find_launched(self, uids: Iterable[str]) -> Mapping[str, Instance]:
        """Return `Launcher.find_launched`, with the nodes that ListNodes may not show yet."""
        wanted, now = set(uids), self._clock.now()
        self._recent = {uid: each for uid, each in self._recent.items() if now - LISTED_WITHIN < each.at <= now}
        created = {
            uid: each.instance for uid, each in self._recent.items() if uid in wanted and each.instance is not None
        }
        return {**created, **super().find_launched(wanted)}

    def launch_rule(self, error: CloudProviderError) -> FaultRule:
        """Return `Launcher.launch_rule`."""
        return launch_rule(error_code(error), cause_of(error))

    def launch_one(self, request: LaunchRequest) -> LaunchOutcome:
        """Return the outcome of one launch (`Launcher.launch_one`)."""
        recent = self._recent.get(request.claim.metadata.uid)
        if recent is not None and recent.error is not None:
            return self._undecided(request, recent.error, recent.at + LISTED_WITHIN - self._clock.now())
        capacity_type, types = types_to_launch(request, LIMITS)
        node_class = self._view(request.node_class.raw)
        if not node_class.subnet_ids:
            raise CreateError("the NodeClass has no subnet", condition_reason="SubnetNotFound")
        zones = sorted({offering.zone for t in types for offering in t.offerings})
        launch = _NodeLaunch(
            request=request,
            node_class=node_class,
            types=types,
            capacity_type=capacity_type,
            subnets=dict.fromkeys(zones, node_class.subnet_ids),  # a subnet serves all zones
        )
        full = request.full_subnets
        chosen = self._addresses.choose(launch.subnets, launch.types, launch.capacity_type, full=full)
        used: str | None = None
        try:
            outcome, used = self._try_offerings(launch, chosen)
        finally:
            self._addresses.release_unused(chosen.values(), used)
        return outcome

    def _try_offerings(self, launch: _NodeLaunch, chosen: dict[str, ChosenSubnet]) -> tuple[LaunchOutcome, str | None]:
        """Return the outcome of the first offering that CCE does not refuse for lack of capacity, and the subnet it uses.

        Raises:
            RateLimitedError: CCE did not decide; a later run repeats the launch.
        """
        refused = _RefusedOfferings()
        for flavor, zone in launch.candidates[:MAX_ATTEMPTS]:
            subnet = chosen[zone]
            try:
                instance = self._create(launch, flavor, zone, subnet.id)
            except RateLimitedError:
                raise
            except CloudUnavailableError as error:
                self._recent[launch.request.claim.metadata.uid] = _RecentLaunch(at=self._clock.now(), error=error)
                return self._undecided(launch.request, error, LISTED_WITHIN), None
            except CloudProviderError as error:
                rule = self.launch_rule(error)
                refused.add(launch, flavor, zone, rule, error)
                if rule.scope is FaultScope.SUBNET:
                    self._mark_exhausted(launch, subnet, rule, error, refused)
                    break
                if rule.scope is not FaultScope.OFFERING:
                    return self._failed(launch, error, refused), None
                continue
            outcome = self.launched(launch.request, instance)
            return refused.added_to(outcome), subnet.id
        text = f"CCE created no node: {'; '.join(refused.texts)}"
        if refused.unavailable or refused.faults or not refused.errors:
            failure: CloudProviderError = InsufficientCapacityError(text, offerings=tuple(sorted(refused.unavailable)))
            return self._failed(launch, failure, refused), None
        return self._failed(launch, refused.errors[0], refused), None  # the NodeClass's settings suit no offering

    def _create(self, launch: _NodeLaunch, flavor: str, zone: str, subnet_id: str) -> Instance:
        settings, claim = self._settings, launch.request.claim
        body = create_node_body(
            launch.node_class,
            claim,
            flavor=flavor,
            zone=zone,
            subnet_id=subnet_id,
            capacity_type=launch.capacity_type,
            cluster_id=settings.cluster_id,
        )
        path = f"/api/v3/projects/{settings.project_id}/clusters/{settings.cluster_id}/nodes"
        with translated("cce:node:create", nodeclaim=claim.metadata.name):
            node = self._api(RestCall(service=CCE, operation="CreateNode", method="POST", path=path, body=body))
        instance = Instance(
            provider_id=self._node_id(node, claim.metadata.name),
            instance_type=flavor,
            zone=zone,
            capacity_type=launch.capacity_type,
            state="pending",
            launched_at=self._clock.now(),
            image_id=launch.node_class.spec.ims_selector.image_id or "",
        )
        self._recent[claim.metadata.uid] = _RecentLaunch(at=instance.launched_at, instance=instance)
        return instance

    def _node_id(self, node: Any, claim: str) -> str:
        """Return the id of a created node, from its job if the answer lacks it. Raises CloudUnavailableError."""
        job_id = str((node.get("status") or {}).get("jobID") or "")
        node_id = str((node.get("metadata") or {}).get("uid") or self._nodes.node_id_of_job(job_id))
        if not node_id:
            text = "CCE did not say which node it creates; the next run finds it by its name"
            raise CloudUnavailableError(text, nodeclaim=claim, job=job_id)
        return node_id

    def launched(self, request: LaunchRequest, instance: Instance) -> Launched:
        """Return `Launcher.launched`."""
        outcome = outcome_of(
            request,
            instance,
            more_labels={},
            annotations={
                CCENODECLASS_KEYS.hash: request.node_class.hash,
                CCENODECLASS_KEYS.version: request.node_class.hash_version,
            },
        )
        return replace(outcome, is_confirmed=False)

    def _mark_exhausted(
        self,
        launch: _NodeLaunch,
        subnet: ChosenSubnet,
        rule: FaultRule,
        error: CloudProviderError,
        refused: _RefusedOfferings,
    ) -> None:
        """Record that a subnet has no free address; if no other has one, all zones' offerings are unavailable ("*")."""
        self._addresses.mark_exhausted(subnet.id)
        full = launch.request.full_subnets
        fault = rule.fault(launch.request.claim, cause_of(error), subnet.id)
        refused.faults.extend([fault] if fault is not None else [])
        refused.unavailable |= {
            OfferingKey("*", each, kind)
            for each in launch.subnets
            if self._addresses.is_zone_exhausted(launch.subnets, each, full=full)
            for kind in (labels.ON_DEMAND, labels.SPOT)
        }

    def _undecided(self, request: LaunchRequest, error: CloudUnavailableError, wait: timedelta) -> LaunchFailed:
        """Return the failure of a launch for which CCE may have created a node: a later run adopts it, or repeats the launch."""
        return LaunchFailed(
            claim=request.claim.metadata.name, error=self.as_create_error(error, "launching"), retry_after=wait
        )

    def _failed(self, launch: _NodeLaunch, error: CloudProviderError, refused: _RefusedOfferings) -> LaunchFailed:
        """Return the failure of a launch for which CCE created nothing.

        After insufficient capacity, `steps` deletes the NodeClaim and schedules its pods again.
        """
        is_capacity = isinstance(error, InsufficientCapacityError)
        faults = () if is_capacity else self.faults_of(launch.request, error)
        failed = LaunchFailed(
            claim=launch.request.claim.metadata.name,
            error=error if is_capacity else self.as_create_error(error, "launching"),
            answered=True,
        )
        refused.faults.extend(faults)
        return refused.added_to(failed)


_Outcome = TypeVar("_Outcome", Launched, LaunchFailed)


class _RefusedOfferings:
    """What CCE refused during one launch."""

    def __init__(self) -> None:
        self.refusals: list[LaunchRefusal] = []
        self.unavailable: set[OfferingKey] = set()
        self.for_class: set[OfferingKey] = set()
        self.faults: list[LaunchFault] = []
        self.texts: list[str] = []
        self.errors: list[CloudProviderError] = []

    def add(self, launch: _NodeLaunch, flavor: str, zone: str, rule: FaultRule, error: CloudProviderError) -> None:
        """Record one refusal."""
        self.refusals.append(
            LaunchRefusal(zone=zone, zone_id=zone, capacity_type=launch.capacity_type, reason=rule.reason)
        )
        self.texts.append(f"{flavor} in {zone}: {rule.meaning}")
        self.errors.append(error)
        if rule.scope is FaultScope.OFFERING:
            keys = self.for_class if rule.node_class_only else self.unavailable
            keys.add(OfferingKey(flavor, zone, launch.capacity_type))

    def added_to(self, outcome: _Outcome) -> _Outcome:
        """Return the outcome of the launch with what was refused."""
        return replace(
            outcome,
            unavailable=tuple(sorted(self.unavailable)),
            unavailable_for_class=tuple(sorted(self.for_class)),
            faults=one_per_object(self.faults),
            refusals=tuple(self.refusals),
        )
