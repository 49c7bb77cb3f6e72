"""Simulates one Alibaba Cloud account and region in this process (`AlibabaAccount`): ECS, VPC, RAM and Container Service."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from msgspec import Struct

from journeyman.cloud.alibaba.open_api import VERSIONS, ApiCall, OpenApi, OpenApiError
from journeyman.ports import Clock
from journeyman_simulator.alibaba_account.ack_clusters import AckClusters
from journeyman_simulator.alibaba_account.ack_images import EcsImages
from journeyman_simulator.alibaba_account.action_table import ApiAction, action_named, action_not_found
from journeyman_simulator.alibaba_account.auto_provisioning import AutoProvisioning
from journeyman_simulator.alibaba_account.ecs_events import EcsEventBus
from journeyman_simulator.alibaba_account.ecs_instance_actions import EcsInstanceActions
from journeyman_simulator.alibaba_account.ecs_instance_states import EcsTiming, SimulatedEcsInstances
from journeyman_simulator.alibaba_account.ecs_launches import EcsLaunches
from journeyman_simulator.alibaba_account.ecs_stock import EcsStock
from journeyman_simulator.alibaba_account.ecs_types import EcsCatalogue, all_instance_types
from journeyman_simulator.alibaba_account.openapi_errors import not_authorized, status_of
from journeyman_simulator.alibaba_account.openapi_parameters import flatten
from journeyman_simulator.alibaba_account.openapi_requests import ActionHandlers, ActionRequest
from journeyman_simulator.alibaba_account.ram_permissions import RamPermissions
from journeyman_simulator.alibaba_account.ram_roles import RamRoles
from journeyman_simulator.alibaba_account.vpc_network import VpcNetwork
from journeyman_simulator.cloud_rules.access_keys import SimulatedAccessKey
from journeyman_simulator.cloud_rules.fleet_allocation import ClientTokens
from journeyman_simulator.cloud_rules.instance_operations import InstanceOperations
from journeyman_simulator.cloud_rules.service_errors import LostResponseError, RequestGate, ServiceError
from journeyman_simulator.cloud_rules.service_time import ServiceTime

ACCOUNT_ID: Final = "1000000000000001"
QUICK: Final = EcsTiming(pending_seconds=2, starting_seconds=4, forced_stop_seconds=12, clean_stop_seconds=60)
DEFAULT_CALLER: Final = "journeyman"
_UNCHECKED_BY_THE_GATE: Final = frozenset({"DescribeInstances"})  # its handler checks the permission


class SeededAlibabaAccount(Struct, frozen=True, kw_only=True):
    """The resources that an account has before Journeyman is installed."""

    cluster: str  # its name
    cluster_id: str
    kubernetes_version: str  # such as "1.33.3-aliyun.1"
    endpoint: str
    network: str
    node_pool_id: str
    region: str
    role: str  # of the nodes
    vpc: str
    security_group: str
    vswitches: dict[str, str]  # ids by zone
    images: dict[str, str]  # ids by image type ("AliyunLinux3"), and by type and architecture ("ContainerOS/arm64")


class AlibabaAccount(InstanceOperations):
    """An account that initially has only a vSwitch in each zone. An `Actor` of a simulated `World`.

    Args:
        clock: The clock of all services.
        region: The region.
        types: The offered instance types, from `ecs_types.all_instance_types`.
        zones: The zones; by default h, j and k of the region.
        missing: The (type, zone) pairs that are not offered.
        price_seed: The seed of the Spot prices.
        timing: The duration of each instance state.
        on_event: Called with every event that ECS publishes to EventBridge; it must not call the account.
    """

    instances: SimulatedEcsInstances
    account = ACCOUNT_ID

    def __init__(
        self,
        clock: Clock,
        *,
        region: str = "cn-hangzhou",
        types: Sequence[str] | None = None,
        zones: Sequence[str] | None = None,
        missing: Collection[tuple[str, str]] = (),
        price_seed: int = 1,
        timing: EcsTiming = QUICK,
        on_event: Callable[[dict[str, Any]], object] | None = None,
    ) -> None:
        time = self.time = ServiceTime(clock)
        self.region = region
        self.zones = tuple(zones or (f"{region}-{letter}" for letter in "hjk"))
        self.catalogue = EcsCatalogue(
            all_instance_types() if types is None else types,
            self.zones,
            missing,
            region=region,
            time=time,
            price_seed=price_seed,
        )
        self.prices = self.catalogue.prices
        self.stock = EcsStock(self.catalogue, time)
        self.network = VpcNetwork(region, self.zones)
        self.images = EcsImages(region, time)
        self.bus = EcsEventBus(time, region, ACCOUNT_ID, on_event)
        self.instances = SimulatedEcsInstances(time, self.bus, self.network, timing)
        self.clusters = AckClusters(region, time, self.network, self.images)
        self.roles = RamRoles(ACCOUNT_ID)
        self.permissions = RamPermissions(region, ACCOUNT_ID, self.instances)
        self.describe_lag_seconds = timing.describe_lag_seconds
        self.in_arrears = False
        self.gate = RequestGate(before=self.instances.settle)
        self.access_keys: dict[str, SimulatedAccessKey] = {}
        self.access_key = self.add_access_key(DEFAULT_CALLER)
        self._denied: set[tuple[str, str]] = set()
        self._requests = 0
        self._handlers = self._all_handlers()

    def _all_handlers(self) -> ActionHandlers:
        tokens = ClientTokens()
        self.launches = EcsLaunches(
            instances=self.instances,
            catalogue=self.catalogue,
            stock=self.stock,
            network=self.network,
            images=self.images,
            roles=self.roles,
            tokens=tokens,
            require_solvent=self._require_solvent,
        )
        actions = EcsInstanceActions(self.instances, self.catalogue, self.network, tokens, self.is_denied)
        return {
            **self.launches.handlers(),
            **AutoProvisioning(self.launches).handlers(),
            **actions.handlers(),
            **self.catalogue.handlers(),
            **self.stock.handlers(),
            **self.images.handlers(),
            **self.network.handlers(),
            **self.bus.handlers(),
            **self.clusters.handlers(),
            **self.roles.handlers(),
        }

    # -- requests ------------------------------------------------------------------------------------------------

    def open_api(self, caller: str = DEFAULT_CALLER, *, as_of: datetime | None = None) -> OpenApi:
        """Return an in-process client, which sends parameters in the SDK's form, without signatures.

        Args:
            caller: The RAM user or role, for `deny`.
            as_of: Eventually consistent reads return the account's state at this moment; by default the current one.
        """
        return AlibabaClient(self, caller, as_of)

    def perform(
        self, action: ApiAction, arguments: Mapping[str, Any], *, caller: str, as_of: datetime | None = None
    ) -> Any:
        """Perform a checked request and return its answer, without the request's id.

        Raises:
            ServiceError: The service rejects the request.
            LostResponseError: The request took effect, and the caller must not get an answer.
            NotSimulatedError: The simulation does not support the request.
        """
        with self.gate.lock:
            self.gate.before()
            self._requests += 1
            injected = self.gate.injected_error(action.name)
            self._check_region(arguments)
            if action.name not in _UNCHECKED_BY_THE_GATE and self.is_denied(caller, action.qualified_name, arguments):
                raise not_authorized(action.qualified_name)
            if self.gate.exceeds_rate(action.name, self.time.now()):
                raise ServiceError("Throttling.User", "Request was denied due to user flow control.")
            if injected:
                raise injected
            moment = self.time.now() - timedelta(seconds=self.describe_lag_seconds)
            request = ActionRequest(
                parameters=arguments, as_of=moment if as_of is None else min(moment, as_of), caller=caller
            )
            answer = self._handlers[action.name](request)
            self.gate.check_answer(action.name)
            return answer

    def next_request_id(self) -> str:
        """Return the id of the latest request."""
        return f"{self._requests:08X}-0000-4000-8000-000000000000"

    def _check_region(self, arguments: Mapping[str, Any]) -> None:
        if (region := arguments.get("RegionId", self.region)) != self.region:
            raise ServiceError("InvalidRegionId.NotFound", f"The specified RegionId {region} does not exist.")

    def _require_solvent(self) -> None:
        if self.in_arrears:
            raise ServiceError("Account.Arrearage", "Your account has an outstanding payment.")

    # -- faults ---------------------------------------------------------------------------------------------------

    def out_of_stock(self, instance_type: str, zone: str, capacity_type: str, until: datetime) -> None:
        """Make launches from this pool fail for lack of stock until `until`."""
        self.stock.out_of_stock(instance_type, zone, capacity_type, until)

    def set_stock(
        self, instance_type: str, zone: str, capacity_type: str, *, instances: int | None = None, category: str = ""
    ) -> None:
        """Set how many instances a pool can launch (None: unlimited), and its StatusCategory ("": by that number)."""
        self.stock.set_stock(instance_type, zone, capacity_type, instances=instances, category=category)

    def set_free_addresses(self, vswitch_id: str, number: int) -> None:
        """Set the number of free addresses of a vSwitch."""
        self.network.vswitches[vswitch_id].free = number

    def set_vcpu_quota(self, vcpus: int | None, capacity_type: str = "on-demand") -> None:
        """Set the vCPUs that instances of a capacity type may use; None for no limit."""
        self.stock.vcpu_quotas.pop(capacity_type, None)
        if vcpus is not None:
            self.stock.vcpu_quotas[capacity_type] = vcpus

    def fail_next(self, action: str, code: str, times: int = 1) -> None:
        """Make the next `times` requests for `action` ("RunInstances") fail with `code`, without effect."""
        self.gate.fail_next(action, code, times)

    def stop_failing(self, action: str) -> None:
        """Let requests succeed again that `fail_next` lets fail."""
        self.gate.stop_failing(action)

    def lose_next_answer(self, action: str, times: int = 1) -> None:
        """Let the next `times` successful requests for `action` take effect, without an answer for the caller."""
        self.gate.lose_next_answer(action, times)

    def limit_rate(self, action: str, per_minute: int | None) -> None:
        """Make requests for `action` beyond a number per minute fail with Throttling.User; None for no limit."""
        self.gate.limit_rate(action, per_minute)

    def add_key_pair(self, name: str) -> None:
        """Create a key pair, which launches can name."""
        self.launches.key_pairs.add(name)

    def deny(self, *actions: str, caller: str = DEFAULT_CALLER) -> None:
        """Make RAM deny a caller the actions ("ecs:RunInstances")."""
        self._denied.update((caller, action) for action in actions)

    def allow(self, *actions: str, caller: str = DEFAULT_CALLER) -> None:
        """Make RAM allow a caller the actions again."""
        self._denied.difference_update((caller, action) for action in actions)

    def is_denied(self, caller: str, action: str, parameters: Mapping[str, Any] = {}) -> bool:
        """Whether RAM denies a caller an action, or the running function's role does not allow it with these parameters."""
        return (caller, action) in self._denied or self.permissions.refused(action, parameters) is not None

    def add_access_key(self, caller: str, *, security_token: str = "") -> SimulatedAccessKey:
        """Create an access key of a caller, temporary if it has a security token, and return it."""
        number = len(self.access_keys)
        key = SimulatedAccessKey(
            id=f"LTAI5tSimulated{number}", secret=f"secret-{number}", caller=caller, security_token=security_token
        )
        self.access_keys[key.id] = key
        return key

    def protect(self, instance_id: str, *, protected: bool = True) -> None:
        """Set the deletion protection of an instance. Raises ServiceError if it does not exist."""
        with self._current_instances():
            self.instances.require(instance_id).deletion_protection = protected

    def schedule_maintenance(
        self, instance_id: str, event_type: str = "SystemMaintenance.Redeploy", within: timedelta = timedelta(hours=48)
    ) -> str:
        """Schedule a system event of an instance, publish it, and return its id. Raises ServiceError if there is no instance.

        Args:
            instance_id: The instance.
            event_type: "SystemMaintenance.Reboot", "SystemFailure.Delete", and so on.
            within: The time until the event is carried out.
        """
        with self._current_instances():
            return self.instances.schedule_maintenance(instance_id, event_type, within)

    # -- seeding --------------------------------------------------------------------------------------------------

    def seed(
        self,
        *,
        cluster: str = "demo",
        kubernetes_version: str = "1.33",
        endpoint: str = "https://10.0.255.1:6443",
        network: str = "terway-eniip",
    ) -> SeededAlibabaAccount:
        """Create an ACK cluster, and what an ECSNodeClass selects: tagged vSwitches, a security group, images, a role.

        Args:
            cluster: The name of the cluster, and the value of the `karpenter.sh/discovery` tags.
            kubernetes_version: The version, such as "1.33" or "1.33.3-aliyun.1".
            endpoint: The URL of the cluster's API server.
            network: The container network: "terway-eniip" or "Flannel".
        """
        group = self.network.add_group(f"{cluster}-node")
        for tags in (group.tags, *(vswitch.tags for vswitch in self.network.vswitches.values())):
            tags["karpenter.sh/discovery"] = cluster
        role = f"KarpenterNodeRole-{cluster}"
        self.roles.add(role)
        created = self.clusters.add(
            name=cluster,
            kubernetes_version=kubernetes_version,
            endpoint=endpoint,
            network=network,
            security_group=group.id,
        )
        return SeededAlibabaAccount(
            cluster=cluster,
            cluster_id=created.id,
            kubernetes_version=created.version,
            endpoint=endpoint,
            network=network,
            node_pool_id=created.pool_id,
            region=self.region,
            role=role,
            vpc=self.network.vpc_id,
            security_group=group.id,
            vswitches={vswitch.zone: vswitch.id for vswitch in self.network.vswitches.values()},
            images=self.images.publish_first(created.version),
        )


class AlibabaClient:
    """An in-process `OpenApi` of one caller."""

    def __init__(self, account: AlibabaAccount, caller: str, as_of: datetime | None) -> None:
        self._account = account
        self._caller = caller
        self._as_of = as_of

    def as_of(self, moment: datetime) -> AlibabaClient:
        """Return a client whose eventually consistent reads return the account's state at `moment`."""
        return AlibabaClient(self._account, self._caller, moment)

    def __call__(self, call: ApiCall) -> Any:
        """Return the answer of a request (`OpenApi`)."""
        account = self._account
        try:
            action = action_named(call.action, VERSIONS.get(call.service, ""))
            if call.service != action.service or call.method != action.method or bool(call.path) != bool(action.path):
                raise action_not_found(call.action)
            arguments = action.arguments(call.path, flatten(call.parameters), call.body)
            answer = account.perform(action, arguments, caller=self._caller, as_of=self._as_of)
        except ServiceError as error:
            raise OpenApiError(
                error.code, error.message, status=status_of(error.code), request_id=account.next_request_id()
            ) from error
        except LostResponseError as error:
            raise OpenApiError("", str(error)) from error
        if not action.path:
            answer["RequestId"] = account.next_request_id()
        return answer
