"""Every place where moto is made to behave as AWS does. Each entry says why; a contract test states the behaviour."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler

from journeyman.simulate.aws import catalogue, fleet, price_list, prices, timekeeping
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
        *aws.gate.patches(),
        *timekeeping.patches(aws.time),
        # EC2
        *aws.instances.patches(),
        *fleet.patches(aws.market, aws.time),
        *prices.patches(aws.prices, aws.time),
        *catalogue.patches(),
        # messages
        *aws.queues.patches(),
        *aws.bus.patches(),
    )
