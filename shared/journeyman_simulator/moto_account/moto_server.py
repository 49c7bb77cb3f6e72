"""Serves one AWS account and region in this process (`MotoAccount`), over AWS's wire protocol on loopback."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from datetime import datetime, timedelta
from functools import cache
from threading import Lock, Thread
from types import TracebackType
from typing import Any

import boto3
import botocore.session
import moto.core.responses
from botocore.config import Config
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.core.responses import ActionResult
from moto.ec2.models.amis import AmiBackend
from moto.ec2.responses import EC2Response
from moto.moto_api._internal.models import moto_api_backend
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server
from werkzeug.test import run_wsgi_app

from journeyman.cloud.aws.timestamps import with_fast_timestamps
from journeyman.errors import ConfigurationError
from journeyman.ports import Clock
from journeyman_simulator.cloud_rules.event_delivery import FunctionDelivery
from journeyman_simulator.cloud_rules.fleet_allocation import CapacityPools
from journeyman_simulator.cloud_rules.instance_states import InstanceTiming
from journeyman_simulator.cloud_rules.service_errors import RequestGate
from journeyman_simulator.cloud_rules.service_time import ServiceTime
from journeyman_simulator.moto_account.moto_catalogue import (
    catalogue_extensions,
    price_extensions,
    pricing_api,
    regional_prices,
)
from journeyman_simulator.moto_account.moto_events import MotoEventBus, schedule_extensions
from journeyman_simulator.moto_account.moto_extensions import MotoExtension, applied
from journeyman_simulator.moto_account.moto_fleets import fleet_extensions
from journeyman_simulator.moto_account.moto_instances import MotoInstances
from journeyman_simulator.moto_account.moto_permissions import FunctionPermissions
from journeyman_simulator.moto_account.moto_queues import MotoQueues
from journeyman_simulator.moto_account.moto_requests import gate_extensions, time_extensions, wire_extensions

_HOST = "127.0.0.1"
_STOP_POLL_SECONDS = 0.02
_one_account_lock = Lock()
_SCHEDULE_CHANGES = (
    *("PutRule", "DeleteRule", "EnableRule", "DisableRule", "PutTargets", "RemoveTargets"),
    *("CreateSchedule", "UpdateSchedule", "DeleteSchedule", "DeleteScheduleGroup"),
)


class MotoAccount:
    """A context manager that serves an initially empty AWS account at `endpoint_url`. An `Actor` of a simulated `World`.

    moto has one state per process, so only one account may be open at a time. After advancing the clock, call `act`
    (each request does so as well), which changes the states of instances and delivers events.

    Args:
        clock: The clock of instances, queues, events and prices.
        on_demand_prices: USD per hour by instance type, for the region.
        region: The region of all clients.
        port: The port on which to listen; 0 selects a free one.
        timing: The duration of each instance state.
        price_seed: The seed of the Spot prices.
        families: The instance families that the region offers, so that less is read; all of moto's if there are none.
        on_event: Called with every event that a simulated service publishes. It must not call AWS, since it runs during
            a request.
    """

    account = DEFAULT_ACCOUNT_ID

    def __init__(
        self,
        clock: Clock,
        on_demand_prices: Mapping[str, float],
        *,
        region: str = "us-east-1",
        port: int = 0,
        timing: InstanceTiming = InstanceTiming(),  # noqa: B008 - frozen
        price_seed: int = 1,
        families: Collection[str] = (),
        on_event: Callable[[dict[str, Any]], object] | None = None,
    ) -> None:
        self.region = region
        self.time = ServiceTime(clock)
        # the first Spot prices are a day old, so that a history that starts now contains a price
        first = clock.now() - timedelta(days=1)
        self.prices = regional_prices(on_demand_prices, region, first, price_seed, families)
        self.families = frozenset(families)
        self.capacity_pools = CapacityPools(self.prices)
        self.queues = MotoQueues(self.time, region)
        self.bus = MotoEventBus(self.time, region, self.queues.deliver, on_event)
        self.instances = MotoInstances(self.time, self.bus, timing, region=region, account=self.account)
        self.gate = RequestGate(before=self.instances.settle)
        self.permissions = FunctionPermissions(region, self.account)
        self._port = port
        self._clients: dict[tuple[str, int], Any] = {}
        self._stack = ExitStack()
        self.endpoint_url = ""

    def __enter__(self) -> MotoAccount:
        if not _one_account_lock.acquire(blocking=False):
            raise ConfigurationError("another MotoAccount is open in this process; moto's state cannot be shared")
        with ExitStack() as stack:
            stack.callback(_one_account_lock.release)
            stack.enter_context(applied(_extensions(self)))
            stack.callback(moto_api_backend.reset)
            moto_api_backend.reset()
            self._serve(stack)
            stack.callback(self._close_clients)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def client(self, service: str, *, max_attempts: int = 3) -> Any:
        """Return a boto3 client with made-up credentials. Equal arguments return the same client, which the account closes.

        Args:
            service: boto3's name of the service.
            max_attempts: The number of attempts, including the first; with 1 the caller sees every simulated failure.
        """
        key = (service, max_attempts)
        if key not in self._clients:
            client = client_for(self.endpoint_url, service, region=self.region, max_attempts=max_attempts)
            self.permissions.watch(client)
            self._clients[key] = client
        return self._clients[key]

    def act(self) -> bool:
        """Make the transitions that are due; return whether one was due."""
        with self.gate.lock:
            return self.instances.settle()

    def due(self) -> datetime | None:
        """Return when the next instance changes its state; None if no change is pending."""
        return self.instances.due()

    def take_deliveries(self) -> tuple[FunctionDelivery, ...]:
        """Remove and return the events for functions, in order."""
        with self.gate.lock:
            return self.bus.targets.take()

    def deliver(self, target: Mapping[str, Any], event: Mapping[str, Any]) -> None:
        """Deliver an event to the target of a rule or schedule, for a `ScheduleRunner`."""
        with self.gate.lock:
            self.bus.targets.deliver(target, event)

    def schedule_version(self) -> int:
        """Return a number that increases with each request that may change a rule or schedule, for a `ScheduleRunner`."""
        with self.gate.lock:
            return sum(self.gate.calls[operation] for operation in _SCHEDULE_CHANGES)

    def out_of_stock(self, instance_type: str, zone: str, capacity_type: str, until: datetime) -> None:
        """Make launches from this pool fail with InsufficientInstanceCapacity until `until`."""
        with self.gate.lock:
            self.capacity_pools.out_of_stock(instance_type, zone, capacity_type, until)

    def fail_next(self, operation: str, code: str, times: int = 1) -> None:
        """Make the next `times` requests for `operation` ("CreateFleet") fail with `code`, without effect."""
        with self.gate.lock:
            self.gate.fail_next(operation, code, times)

    def interrupt(self, instance_id: str) -> None:
        """Reclaim a Spot instance with two minutes' notice. Raises ConfigurationError if no such Spot instance runs."""
        with self.gate.lock:
            self.instances.interrupt(instance_id)

    def recommend_rebalance(self, instance_id: str) -> None:
        """Send a rebalance recommendation for a Spot instance. Raises ConfigurationError if no such Spot instance runs."""
        with self.gate.lock:
            self.instances.recommend_rebalance(instance_id)

    def calls(self) -> Mapping[str, int]:
        """Return the number of requests by operation."""
        with self.gate.lock:
            return dict(self.gate.calls)

    def _serve(self, stack: ExitStack) -> None:
        access_log = logging.getLogger("werkzeug")
        stack.callback(access_log.setLevel, access_log.level)
        access_log.setLevel(logging.ERROR)
        application = DomainDispatcherApplication(create_backend_app)
        server = make_server(_HOST, self._port, application, threaded=True, request_handler=PersistentConnectionHandler)
        # moto's ThreadedMotoServer does the same, but takes half a second to stop and leaves its socket open
        thread = Thread(target=server.serve_forever, args=(_STOP_POLL_SECONDS,), name="simulated-aws", daemon=True)
        thread.start()
        for undo in (server.server_close, thread.join, server.shutdown):  # called last first
            stack.callback(undo)
        self.endpoint_url = f"http://{_HOST}:{server.server_port}"

    def _close_clients(self) -> None:
        for client in self._clients.values():
            client.close()
        self._clients.clear()


def client_for(endpoint_url: str, service: str, *, region: str = "us-east-1", max_attempts: int = 3) -> Any:
    """Return a boto3 client for an AWS-compatible endpoint that checks no credentials, such as moto or LocalStack."""
    make: Any = _session().client  # the stubs declare one overload per service
    return make(
        service,
        endpoint_url=endpoint_url,
        region_name=region,
        aws_access_key_id="simulated",
        aws_secret_access_key="simulated",  # noqa: S106 - never checked
        config=Config(
            retries={"total_max_attempts": max_attempts, "mode": "standard"},
            tcp_keepalive=True,
            proxies={},  # ignores HTTP_PROXY, since the endpoint is on this machine
        ),
    )


@cache
def _session() -> boto3.session.Session:
    """Return the session of all clients, which caches service models: reading them is slow."""
    return boto3.session.Session(botocore_session=with_fast_timestamps(botocore.session.get_session()))


class PersistentConnectionHandler(MotoRequestHandler):
    """Serves several requests per connection; werkzeug's handler closes the connection after the first.

    This requires that clients send Content-Length and that the handler reads the whole request.
    """

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a response does not wait for the client's delayed acknowledgement

    def run_wsgi(self) -> None:
        """Serve one request; werkzeug serves requests without Content-Length."""
        if "Transfer-Encoding" in self.headers or "Expect" in self.headers:
            super().run_wsgi()
            return
        environ = self.make_environ()
        environ["wsgi.input"] = io.BytesIO(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
        self._send(*run_wsgi_app(self.server.app, environ, buffered=True))

    def _send(self, parts: Any, status: str, headers: Any) -> None:
        body = b"".join(parts)
        code, _, reason = status.partition(" ")
        self.send_response(int(code), reason)
        for name, value in headers:
            if name.lower() != "content-length":
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _extensions(aws: MotoAccount) -> tuple[MotoExtension, ...]:
    """Return all extensions of moto in the order of application; a contract test checks each."""
    return (
        # the server
        MotoExtension(
            owner=DomainDispatcherApplication,
            name="get_backend_for_host",
            replace=cache,
            reason="caches the service of a host; moto reads its folder for each request",
        ),
        MotoExtension(
            owner=moto.core.responses,
            name="method_names_from_class",
            replace=cache,
            reason="caches the members of a class; moto inspects all of them for each request",
        ),
        MotoExtension(
            owner=DomainDispatcherApplication,
            name="get_application",
            replace=pricing_api(aws.prices, aws.gate, aws.region),
            reason="serves the Pricing API, which moto lacks",
        ),
        *gate_extensions(aws.gate),
        *time_extensions(aws.time),
        *wire_extensions(),
        # EC2
        MotoExtension(
            owner=AmiBackend,
            name="_load_amis",
            replace=lambda _: lambda _backend: None,
            reason="offers only the images that a scenario publishes; moto's thousand images would take time",
        ),
        *aws.instances.extensions(),
        *fleet_extensions(aws.capacity_pools, aws.time),
        *price_extensions(aws.prices, aws.time),
        *catalogue_extensions(aws.families),
        MotoExtension(
            owner=EC2Response,
            name="describe_capacity_reservations",
            replace=lambda _: lambda _response: ActionResult({"CapacityReservations": []}),
            reason="returns no capacity reservations; moto lacks the call",
            adds=True,
        ),
        MotoExtension(
            owner=EC2Response,
            name="describe_placement_groups",
            replace=lambda _: lambda _response: ActionResult({"PlacementGroups": []}),
            reason="returns no placement groups; moto lacks the call",
            adds=True,
        ),
        # messages
        *aws.queues.extensions(),
        *aws.bus.extensions(),
        *schedule_extensions(),
    )
