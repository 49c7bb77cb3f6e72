"""Virtual time for moto: whatever asks moto for the time gets the simulation's clock."""

from __future__ import annotations

from datetime import datetime

from moto.core import utils
from moto.ec2.models import amis, elastic_block_store, fleets, instances, key_pairs, launch_templates, vpcs
from moto.eks import models as eks
from moto.scheduler import models as scheduler
from moto.sqs import models as sqs
from moto.sts import models as sts

from journeyman_simulator.aws.patching import Patch
from journeyman_simulator.aws.timekeeper import Timekeeper


def patches(time: Timekeeper) -> tuple[Patch, ...]:
    """Moto reads the time through two functions, which its modules import by name."""

    def utcnow() -> datetime:
        return time.now().replace(tzinfo=None)

    def unix_time_millis(dt: datetime | None = None) -> int:
        return time.milliseconds() if dt is None else int(utils.unix_time(dt) * 1000)

    readers = (
        utils,
        amis,
        elastic_block_store,
        fleets,
        instances,
        key_pairs,
        launch_templates,
        vpcs,
        eks,
        scheduler,
        sts,
    )
    return (
        *(
            Patch(owner=module, name="utcnow", replace=lambda _: utcnow, reason="time is the simulation's clock")
            for module in readers
        ),
        Patch(
            owner=sqs,
            name="unix_time_millis",
            replace=lambda _: unix_time_millis,
            reason="whole milliseconds, so that a deadline computed from one is met exactly",
        ),
    )
