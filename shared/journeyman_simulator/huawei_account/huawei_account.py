"""Simulates one Huawei Cloud account, project and region in this process (`HuaweiAccount`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
from msgspec import Struct

from journeyman.cloud.huawei.rest_api import RestApi, RestApiError, RestCall
from journeyman.ports import Clock
from journeyman_simulator.cloud_rules.access_keys import SimulatedAccessKey
from journeyman_simulator.cloud_rules.instance_operations import InstanceOperations
from journeyman_simulator.cloud_rules.service_errors import LostResponseError, RequestGate, ServiceError
from journeyman_simulator.cloud_rules.service_time import ServiceTime
from journeyman_simulator.huawei_account.bss_prices import BssPrices
from journeyman_simulator.huawei_account.cce_clusters import CceClusters
from journeyman_simulator.huawei_account.cce_node_operations import CceNodes
from journeyman_simulator.huawei_account.ecs_flavors import FlavorCatalogue
from journeyman_simulator.huawei_account.ecs_servers import HuaweiTiming, SimulatedServers
from journeyman_simulator.huawei_account.ecs_traces import EcsEvents
from journeyman_simulator.huawei_account.flavor_data import all_flavors
from journeyman_simulator.huawei_account.huawei_vpc import DEMO_SUBNET_ID, HuaweiVpc
from journeyman_simulator.huawei_account.iam_permissions import IamPermissions
from journeyman_simulator.huawei_account.rest_errors import (
    error_text,
    no_such_api,
    not_allowed,
    status_of,
    throttled,
    unauthenticated,
)
from journeyman_simulator.huawei_account.rest_operations import (
    OPERATIONS,
    OperationHandlers,
    RestOperation,
    RestRequest,
    checked_query,
    operation_at,
)

PROJECT_ID: Final = "0a1b2c3d4e5f60718293a4b5c6d7e8f9"
DOMAIN_ID: Final = "d0000000000000000000000000000001"
QUICK: Final = HuaweiTiming(server_seconds=5, install_seconds=20, deletion_seconds=12, stop_seconds=5)
DEFAULT_CALLER: Final = "journeyman"
_LARGEST_INVOCATION: Final = 256 * 1024  # bytes of an asynchronous invocation


class SeededHuaweiAccount(Struct, frozen=True, kw_only=True):
    """The resources that an account has before Journeyman is installed."""

    cluster: str  # its name
    cluster_id: str
    project_id: str
    domain_id: str
    region: str
    vpc: str
    subnets: dict[str, str]  # ids by name
    security_group: str
    key_pair: str
    kubernetes_version: str  # such as "v1.33"
    endpoint: str


class HuaweiAccount(InstanceOperations):
    """An account that initially has a VPC without subnets, and no cluster. An `Actor` of a simulated `World`.

    Args:
        clock: The clock of all services.
        region: The region.
        types: The offered flavors, from `flavor_data.all_flavors`.
        zones: The zones; by default a, b and c of the region.
        missing: The (flavor, zone) pairs that are not offered.
        price_seed: The seed of the Spot prices.
        timing: The duration of each step.
        on_event: Called with every trace of a server, as FunctionGraph's CTS trigger passes it on; it must not call the account.

    Attributes:
        async_invocations: Invokes a function asynchronously, given its URN and the JSON of the request, and returns the id of
            the invocation; raises KeyError if there is no such function. A deployment sets it.
    """

    instances: SimulatedServers
    project_id = PROJECT_ID
    domain_id = DOMAIN_ID

    def __init__(
        self,
        clock: Clock,
        *,
        region: str = "cn-north-4",
        types: Sequence[str] | None = None,
        zones: Sequence[str] | None = None,
        missing: Collection[tuple[str, str]] = (),
        price_seed: int = 1,
        timing: HuaweiTiming = QUICK,
        on_event: Callable[[dict[str, Any]], object] | None = None,
    ) -> None:
        time = self.time = ServiceTime(clock)
        self.region = region
        self.zones = tuple(zones or (f"{region}{letter}" for letter in "abc"))
        self.catalogue = FlavorCatalogue(
            all_flavors() if types is None else types, self.zones, missing, time=time, price_seed=price_seed
        )
        self.prices = self.catalogue.prices
        self.network = HuaweiVpc()
        self.events = EcsEvents(time, DOMAIN_ID, on_event)
        self.instances = SimulatedServers(
            time=time,
            events=self.events,
            network=self.network,
            catalogue=self.catalogue,
            timing=timing,
            project_id=PROJECT_ID,
        )
        self.clusters = CceClusters(time, self.network)
        self.nodes = CceNodes(
            time=time,
            timing=timing,
            clusters=self.clusters,
            servers=self.instances,
            catalogue=self.catalogue,
            network=self.network,
            require_solvent=self._require_solvent,
        )
        self.permissions = IamPermissions(region, DOMAIN_ID)
        self.billing = BssPrices(self.catalogue, region, PROJECT_ID, self.permissions.shows_discounts)
        self.list_lag_seconds = timing.list_lag_seconds
        self.in_arrears = False
        self.async_invocations: Callable[[str, Any], str] = _no_function
        self.gate = RequestGate(before=self.instances.settle)
        self.access_keys: dict[str, SimulatedAccessKey] = {}
        self.access_key = self.add_access_key(DEFAULT_CALLER)
        self._requests = 0
        self._handlers: OperationHandlers = {
            **self.nodes.handlers(),
            **self.clusters.handlers(),
            **self.catalogue.handlers(),
            **self.instances.handlers(),
            **self.events.handlers(),
            **self.network.handlers(),
            **self.billing.handlers(),
            "AsyncInvokeFunction": self._invoke,
        }

    # -- requests ------------------------------------------------------------------------------------------------

    def rest_api(self, caller: str = DEFAULT_CALLER, *, as_of: datetime | None = None) -> RestApi:
        """Return an in-process client, whose requests have no signatures.

        Args:
            caller: The IAM user or agency, for `deny` and `permissions`.
            as_of: ListNodes and ECS's lists of servers return the account's state at this moment; by default the current one.
        """
        return HuaweiClient(self, caller, as_of)

    def perform(
        self,
        operation: RestOperation,
        path: Mapping[str, str],
        query: Mapping[str, str | int],
        body: Any,
        *,
        caller: str,
        as_of: datetime | None = None,
    ) -> Any:
        """Perform a request, given the names in its path, and return its answer.

        Raises:
            ServiceError: The service rejects the request.
            LostResponseError: The request took effect, and the caller must not get an answer.
            NotSimulatedError: The simulation does not support the request.
        """
        with self.gate.lock:
            self.gate.before()
            self._requests += 1
            name = operation.qualified_name
            injected = self.gate.injected_error(name)
            if path.get("project_id", PROJECT_ID) != PROJECT_ID:
                raise unauthenticated("the project in the path is not the caller's")
            if not self.permissions.is_allowed(caller, operation, path):
                raise not_allowed(operation.service, operation.action)
            if self.gate.exceeds_rate(name, self.time.now()):
                raise throttled()
            if injected:
                raise injected
            moment = self.time.now() - timedelta(seconds=self.list_lag_seconds)
            request = RestRequest(
                path=path,
                query=checked_query(operation, query),
                body=body,
                as_of=moment if as_of is None else min(moment, as_of),
                caller=caller,
            )
            answer = self._handlers[operation.name](request)
            self.gate.check_answer(name)
            return answer

    def next_request_id(self) -> str:
        """Return the id of the latest request."""
        return f"{self._requests:032x}"

    def _require_solvent(self) -> None:
        if self.in_arrears:
            raise ServiceError("CCE.01403001", "The account is in arrears; its resources are restricted.")

    def _invoke(self, request: RestRequest) -> dict[str, Any]:
        """Start an asynchronous invocation (AsyncInvokeFunction)."""
        size = len(msgspec.json.encode(request.body))
        if size > _LARGEST_INVOCATION:
            raise ServiceError("FSS.0413", f"The payload has {size} bytes; at most {_LARGEST_INVOCATION} are allowed.")
        urn = request.path["function_urn"]
        try:
            return {"request_id": self.async_invocations(urn, request.body)}
        except KeyError:
            raise ServiceError("FSS.1051", f"Not found the function {urn}") from None

    # -- faults ---------------------------------------------------------------------------------------------------

    def out_of_stock(self, instance_type: str, zone: str, capacity_type: str, until: datetime) -> None:
        """Make CreateNode refuse nodes of this pool for lack of stock until `until`; the lists of flavors do not show it."""
        self.catalogue.hidden_stock.out_of_stock(instance_type, zone, capacity_type, until)

    def fails_in_job(self, instance_type: str, zone: str, capacity_type: str, until: datetime) -> None:
        """Make the jobs of accepted nodes of this pool fail for lack of stock until `until`."""
        self.catalogue.stock_of_jobs.out_of_stock(instance_type, zone, capacity_type, until)

    def set_sold_out(self, instance_type: str, zone: str, capacity_type: str, *, sold_out: bool = True) -> None:
        """Set whether the lists of flavors show a pool as sold out; CreateNode then refuses it."""
        self.catalogue.set_sold_out(instance_type, zone, capacity_type, sold_out=sold_out)

    def set_free_addresses(self, subnet_id: str, number: int) -> None:
        """Set the number of free addresses of a subnet."""
        self.network.subnets[subnet_id].free = number

    @property
    def server_quota(self) -> int | None:
        """The number of servers that the account may have; None for no limit."""
        return self.nodes.quotas.servers

    @server_quota.setter
    def server_quota(self, servers: int | None) -> None:
        self.nodes.quotas.servers = servers

    def fail_next(self, operation: str, code: str, times: int = 1) -> None:
        """Make the next `times` requests for `operation` ("CreateNode") fail with `code`, without effect."""
        self.gate.fail_next(_qualified(operation), code, times)

    def stop_failing(self, operation: str) -> None:
        """Let requests succeed again that `fail_next` lets fail."""
        self.gate.stop_failing(_qualified(operation))

    def lose_next_answer(self, operation: str, times: int = 1) -> None:
        """Let the next `times` successful requests for `operation` take effect, without an answer for the caller."""
        self.gate.lose_next_answer(_qualified(operation), times)

    def limit_rate(self, operation: str, per_minute: int | None) -> None:
        """Make requests for `operation` beyond a number per minute fail with APIGW.0308; None for no limit."""
        self.gate.limit_rate(_qualified(operation), per_minute)

    def add_key_pair(self, name: str) -> None:
        """Create a key pair, which nodes can name."""
        self.nodes.key_pairs.add(name)

    def deny(self, *actions: str, caller: str = DEFAULT_CALLER) -> None:
        """Make IAM deny a caller the actions ("cce:node:create")."""
        self.permissions.deny(caller, *actions)

    def allow(self, *actions: str, caller: str = DEFAULT_CALLER) -> None:
        """Make IAM allow a caller the actions again."""
        self.permissions.allow(caller, *actions)

    def add_access_key(self, caller: str, *, temporary: bool = False) -> SimulatedAccessKey:
        """Create an access key of a caller, with a security token if it is temporary, and return it."""
        number = len(self.access_keys)
        token = f"token-{number}" if temporary else ""
        key = SimulatedAccessKey(
            id=f"HPUA{number:016d}", secret=f"secret-{number}", caller=caller, security_token=token
        )
        self.access_keys[key.id] = key
        return key

    def schedule_maintenance(
        self,
        server_id: str,
        type: str = "instance-redeploy",  # noqa: A002 - ECS's name
        within: timedelta = timedelta(hours=48),
        *,
        state: str = "scheduled",
    ) -> str:
        """Schedule an event of a server's host, and return its id. Raises ServiceError if the server does not exist.

        Args:
            server_id: The server.
            type: "instance-redeploy", "instance-stop", "instance-reboot", and so on.
            within: The time until the event is carried out.
            state: "scheduled", or "inquiring" if the event waits for the user's consent.
        """
        with self._current_instances():
            return self.instances.schedule_maintenance(server_id, type, within, state)

    # -- seeding --------------------------------------------------------------------------------------------------

    def seed(
        self,
        *,
        cluster: str = "demo",
        kubernetes_version: str = "v1.33",
        endpoint: str = "https://10.0.255.1:5443",
        network_mode: str = "vpc-router",
    ) -> SeededHuaweiAccount:
        """Create a CCE cluster, and what a CCENodeClass names: two subnets and a key pair.

        Args:
            cluster: The name of the cluster.
            kubernetes_version: The version, such as "v1.33".
            endpoint: The URL of the cluster's API server.
            network_mode: The container network: "vpc-router", "overlay_l2" or "eni".
        """
        first = self.network.add_subnet("demo", "10.0.0.0/20", subnet_id=DEMO_SUBNET_ID)
        second = self.network.add_subnet("demo-2", "10.0.16.0/20")
        key_pair = f"KeyPair-{cluster}"
        self.add_key_pair(key_pair)
        created = self.clusters.add(
            name=cluster, kubernetes_version=kubernetes_version, endpoint=endpoint, network_mode=network_mode
        )
        return SeededHuaweiAccount(
            cluster=cluster,
            cluster_id=created.id,
            project_id=PROJECT_ID,
            domain_id=DOMAIN_ID,
            region=self.region,
            vpc=self.network.vpc_id,
            subnets={subnet.name: subnet.id for subnet in (first, second)},
            security_group=created.security_group,
            key_pair=key_pair,
            kubernetes_version=created.kubernetes_version,
            endpoint=endpoint,
        )


class HuaweiClient:
    """An in-process `RestApi` of one caller."""

    def __init__(self, account: HuaweiAccount, caller: str, as_of: datetime | None) -> None:
        self._account = account
        self._caller = caller
        self._as_of = as_of

    def as_of(self, moment: datetime) -> HuaweiClient:
        """Return a client for which ListNodes and ECS's lists of servers return the account's state at `moment`."""
        return HuaweiClient(self._account, self._caller, moment)

    def __call__(self, call: RestCall) -> Any:
        """Return the answer of a request (`RestApi`)."""
        account = self._account
        try:
            operation, path = operation_at(call.method, call.path)
            if (operation.service, operation.name) != (call.service, call.operation):
                raise no_such_api(call.method, f"{call.path} of {call.service} {call.operation}")
            body = None if call.body is None else _copied(call.body)
            answer = account.perform(operation, path, call.query, body, caller=self._caller, as_of=self._as_of)
        except ServiceError as error:
            raise RestApiError(
                error.code, error_text(error), status=status_of(error.code), request_id=account.next_request_id()
            ) from error
        except LostResponseError as error:
            raise RestApiError("", str(error)) from error
        return _copied(answer)


def _copied(value: Any) -> Any:
    """Return a JSON value as the other side of a connection has it, which shares nothing with this one."""
    return msgspec.json.decode(msgspec.json.encode(value))


def _no_function(urn: str, _: Any) -> str:
    """Invoke no function, since an account initially has none."""
    raise KeyError(urn)


def _qualified(operation: str) -> str:
    """Return the service and name of an operation, given its name, which no two services share."""
    name = operation.rpartition(" ")[2]
    found = next((known.qualified_name for known in OPERATIONS if known.name == name), None)
    if found is None:
        raise ValueError(f"the simulation has no operation {operation!r}")
    return found
