"""Simulates one AWS account and region in this process (`InProcessAccount`), with requests that take 0.05 ms."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Final

from journeyman.cloud.aws.pricing import shipped_on_demand
from journeyman.ports import Clock
from journeyman_simulator.cloud_rules.event_delivery import FunctionDelivery
from journeyman_simulator.cloud_rules.fleet_allocation import CapacityPools
from journeyman_simulator.cloud_rules.instance_states import InstanceTiming
from journeyman_simulator.cloud_rules.price_table import SimulatedPriceTable
from journeyman_simulator.cloud_rules.published_images import SeededAccount, published_images
from journeyman_simulator.cloud_rules.service_errors import NotSimulatedError, RequestGate
from journeyman_simulator.cloud_rules.service_time import ServiceTime
from journeyman_simulator.in_process_account.ec2_catalogue import (
    SMALL_SELECTION,
    PriceOperations,
    SimulatedInstanceTypes,
)
from journeyman_simulator.in_process_account.ec2_fleets import SimulatedFleets, SimulatedLaunchTemplates
from journeyman_simulator.in_process_account.ec2_images import SimulatedImages
from journeyman_simulator.in_process_account.ec2_network import SimulatedNetwork
from journeyman_simulator.in_process_account.event_bridge import SimulatedEventBus, SimulatedSchedules
from journeyman_simulator.in_process_account.iam_profiles import SimulatedIam
from journeyman_simulator.in_process_account.reserved_capacity import PlacedInstance, ReservedCapacity
from journeyman_simulator.in_process_account.service_client import (
    ServiceOperations,
    SimulatedClient,
)
from journeyman_simulator.in_process_account.simulated_instances import Ec2InstanceOperations, SimulatedInstances
from journeyman_simulator.in_process_account.sqs_queues import SimulatedQueues, SqsOperations

ACCOUNT_ID: Final = "123456789012"
REGION: Final = "us-east-1"
ZONES: Final = {f"{REGION}{letter}": f"use1-az{number}" for number, letter in enumerate("abc", start=1)}
QUICK: Final = InstanceTiming(pending_seconds=4, shutting_down_seconds=12)


class InProcessAccount:
    """An account that initially has only default subnets. An `AwsAccount`, and an `Actor` of a simulated `World`.

    Args:
        clock: The clock of all services.
        types: The offered instance types, from `ec2_catalogue.KNOWN_TYPES`.
        zones: Zone ids by zone.
        missing: The (type, zone) pairs that are not offered.
        on_demand_prices: USD per hour by type; by default the shipped prices of the region.
        price_seed: The seed of the Spot prices.
        timing: The duration of each instance state.
        on_event: Called with every event that a service publishes; it must not call AWS.
    """

    account = ACCOUNT_ID
    region = REGION

    def __init__(
        self,
        clock: Clock,
        *,
        types: Sequence[str] = SMALL_SELECTION,
        zones: Mapping[str, str] = ZONES,
        missing: Collection[tuple[str, str]] = (),
        on_demand_prices: Mapping[str, float] | None = None,
        price_seed: int = 1,
        timing: InstanceTiming = QUICK,
        on_event: Callable[[dict[str, Any]], object] | None = None,
    ) -> None:
        time = self.time = ServiceTime(clock)
        self.types = SimulatedInstanceTypes(types, sorted(zones), missing, REGION)
        self.prices = SimulatedPriceTable(
            shipped_on_demand(REGION) if on_demand_prices is None else on_demand_prices,
            pools=self.types.pools,
            # a day old, so that a history that starts now contains a price
            since=clock.now() - timedelta(days=1),
            seed=price_seed,
        )
        self.capacity_pools = CapacityPools(self.prices)
        self.network = SimulatedNetwork(zones)
        self.images = SimulatedImages(time, ACCOUNT_ID)
        self.identity = SimulatedIam(time, ACCOUNT_ID)
        self.templates = SimulatedLaunchTemplates(time)
        self.queues = SimulatedQueues(time)
        self.bus = SimulatedEventBus(time, REGION, ACCOUNT_ID, self.queues.deliver, on_event)
        self._lag_seconds = timing.describe_lag_seconds
        self.instances = SimulatedInstances(time, self.bus, self.network, timing, region=REGION, account=ACCOUNT_ID)
        self.network.instances = self.instances.known
        self.reserved_capacity = ReservedCapacity(ACCOUNT_ID, self._placed_instances)
        self.schedules = SimulatedSchedules(REGION, ACCOUNT_ID)
        self.gate = RequestGate(before=self.instances.settle)

    def client(self, service: str, *, max_attempts: int = 3) -> SimulatedClient:
        """Return a client of ec2, events, iam, pricing, scheduler, sqs or ssm.

        Args:
            service: boto3's name of the service.
            max_attempts: The number of attempts, including the first; with 1 the caller sees every simulated failure.

        Raises:
            NotSimulatedError: The simulation does not support the service.
        """
        if service not in self._services:
            raise NotSimulatedError(
                f"the simulation does not support {service}, only {', '.join(sorted(self._services))}"
            )
        return SimulatedClient(service, self._services[service], self.gate, self.time, max_attempts=max_attempts)

    @cached_property
    def _services(self) -> Mapping[str, ServiceOperations]:
        prices = PriceOperations(self.prices, self.time, REGION)
        service = Ec2InstanceOperations(
            self.instances,
            self.time,
            lag_seconds=self._lag_seconds,
            region=REGION,
            account=ACCOUNT_ID,
            is_reserved=self.reserved_capacity.is_active,
        )
        fleets = SimulatedFleets(
            self.time,
            capacity_pools=self.capacity_pools,
            types=self.types,
            network=self.network,
            images=self.images,
            identity=self.identity,
            templates=self.templates,
            instances=self.instances,
            reserved_capacity=self.reserved_capacity,
            describe=service.described,
        )
        return {
            "ec2": {
                **self.types.operations(),
                **prices.ec2_operations(),
                **self.network.operations(),
                **self.images.ec2_operations(),
                **self.templates.operations(),
                **fleets.operations(),
                **service.operations(),
                **self.reserved_capacity.operations(),
            },
            "events": self.bus.operations(),
            "iam": self.identity.operations(),
            "pricing": prices.pricing_operations(),
            "scheduler": self.schedules.operations(),
            "sqs": SqsOperations(self.queues, self.time, REGION, ACCOUNT_ID).operations(),
            "ssm": self.images.ssm_operations(),
        }

    def _placed_instances(self) -> Iterator[PlacedInstance]:
        return (PlacedInstance(i.data, i.zone) for i in self.instances.known.values() if i.state != "terminated")

    # -- as an actor of a simulation ------------------------------------------------------------------

    def act(self) -> bool:
        """Make the transitions that are due; return whether one was due."""
        return self.instances.settle()

    def due(self) -> datetime | None:
        """Return when the next instance changes its state; None if no change is pending."""
        return self.instances.due()

    def take_deliveries(self) -> tuple[FunctionDelivery, ...]:
        """Remove and return the events for functions, in order."""
        return self.bus.targets.take()

    def deliver(self, target: Mapping[str, Any], event: Mapping[str, Any]) -> None:
        """Deliver an event to the target of a rule or schedule, for a `ScheduleRunner`."""
        self.bus.targets.deliver(target, event)

    def schedule_version(self) -> int:
        """Return a number that increases with each request that may change a rule or schedule, for a `ScheduleRunner`."""
        return self.bus.version + self.schedules.version

    # -- faults --------------------------------------------------------------------------------------------

    def out_of_stock(self, instance_type: str, zone: str, capacity_type: str, until: datetime) -> None:
        """Make launches from this pool fail with InsufficientInstanceCapacity until `until`."""
        self.capacity_pools.out_of_stock(instance_type, zone, capacity_type, until)

    def fail_next(self, operation: str, code: str, times: int = 1) -> None:
        """Make the next `times` requests for `operation` ("CreateFleet") fail with `code`, without effect."""
        self.gate.fail_next(operation, code, times)

    def stop_failing(self, operation: str) -> None:
        """Let requests succeed again that `fail_next` lets fail."""
        self.gate.stop_failing(operation)

    def calls(self) -> Mapping[str, int]:
        """Return the number of requests by operation."""
        return dict(self.gate.calls)

    def interrupt(self, instance_id: str) -> None:
        """Reclaim a Spot instance with two minutes' notice. Raises ConfigurationError if no such Spot instance runs."""
        self.instances.interrupt(instance_id)

    def recommend_rebalance(self, instance_id: str) -> None:
        """Send a rebalance recommendation for a Spot instance. Raises ConfigurationError if no such Spot instance runs."""
        self.instances.recommend_rebalance(instance_id)

    # -- seeding ------------------------------------------------------------------------------------------------

    def seed(
        self, *, cluster: str = "demo", kubernetes_version: str = "1.33", endpoint: str = "https://demo.example"
    ) -> SeededAccount:
        """Create the resources that an EC2NodeClass selects, as `moto_account.moto_seed.seed_account` does on moto.

        Args:
            cluster: The value of the `karpenter.sh/discovery` tags, and a part of the role's name.
            kubernetes_version: The version of the images, such as "1.33".
            endpoint: The URL of the cluster's API server, which the result contains.
        """
        group = self.network.add_group(f"{cluster}-node")
        for tags in (group.tags, *(subnet.tags for subnet in self.network.subnets.values())):
            tags["karpenter.sh/discovery"] = cluster
        role = f"KarpenterNodeRole-{cluster}"
        self.identity.roles.add(role)
        return SeededAccount(
            cluster=cluster,
            endpoint=endpoint,
            role=role,
            security_group=group.id,
            subnets=tuple(self.network.subnets),
            images={image.name: self.images.publish(image) for image in published_images(kubernetes_version)},
        )
