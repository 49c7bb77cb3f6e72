"""Every place where moto is made to behave as AWS does. Each entry says why; a contract test states the behaviour."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import moto.core.responses
from moto.core.responses import ActionResult
from moto.ec2.models.amis import AmiBackend
from moto.ec2.responses import EC2Response
from moto.moto_server.werkzeug_app import DomainDispatcherApplication

from journeyman_simulator.aws import (
    catalogue,
    fleet,
    gate_patch,
    price_list,
    prices,
    schedule_checks,
    timekeeping,
    wire,
)
from journeyman_simulator.aws.patching import Patch

if TYPE_CHECKING:
    from journeyman_simulator.aws.server import SimulatedAws


def table(aws: SimulatedAws) -> tuple[Patch, ...]:
    """All of them, in the order they are applied."""
    return (
        # the server
        Patch(
            owner=DomainDispatcherApplication,
            name="get_backend_for_host",
            replace=cache,
            reason="a host always means the same; moto reads its own folder for each request",
        ),
        Patch(
            owner=moto.core.responses,
            name="method_names_from_class",
            replace=cache,
            reason="a class stays as it is; moto looks through all its members for each request",
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
