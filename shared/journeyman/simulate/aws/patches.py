"""Every place where moto is made to behave as AWS does. Each entry says why; a contract test states the behaviour."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moto.core.responses import ActionResult
from moto.ec2.models.amis import AmiBackend
from moto.ec2.responses import EC2Response
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler

from journeyman.simulate.aws import catalogue, fleet, gate_patch, price_list, prices, schedule_checks, timekeeping, wire
from journeyman.simulate.aws.patching import Patch

if TYPE_CHECKING:
    from journeyman.simulate.aws.server import SimulatedAws


def table(aws: SimulatedAws) -> tuple[Patch, ...]:
    """All of them, in the order they are applied."""
    return (
        # the server
        Patch(
            owner=MotoRequestHandler,
            name="protocol_version",
            replace=lambda _: "HTTP/1.1",
            reason="connections are kept alive",
            adds=True,
        ),
        Patch(
            owner=MotoRequestHandler,
            name="disable_nagle_algorithm",
            replace=lambda _: True,
            reason="an answer goes out at once, not after the client's delayed acknowledgement",
            adds=True,
        ),
        Patch(
            owner=DomainDispatcherApplication,
            name="get_application",
            replace=price_list.replacing(aws.prices, aws.gate, aws.region),
            reason="the Pricing API answers; moto has none",
        ),
        *gate_patch.patches(aws.gate),
        *timekeeping.patches(aws.time),
        *wire.patches(),
        # EC2
        Patch(
            owner=AmiBackend,
            name="_load_amis",
            replace=lambda _: lambda _backend: None,
            reason="the images are those that a scenario publishes; moto's thousand old ones only cost time",
        ),
        *aws.instances.patches(),
        *fleet.patches(aws.market, aws.time),
        *prices.patches(aws.prices, aws.time),
        *catalogue.patches(),
        Patch(
            owner=EC2Response,
            name="describe_capacity_reservations",
            replace=lambda _: lambda _response: ActionResult({"CapacityReservations": []}),
            reason="an account without reservations says so; moto does not know the call",
            adds=True,
        ),
        Patch(
            owner=EC2Response,
            name="describe_placement_groups",
            replace=lambda _: lambda _response: ActionResult({"PlacementGroups": []}),
            reason="an account without placement groups says so; moto does not know the call",
            adds=True,
        ),
        # messages
        *aws.queues.patches(),
        *aws.bus.patches(),
        *schedule_checks.patches(),
    )
