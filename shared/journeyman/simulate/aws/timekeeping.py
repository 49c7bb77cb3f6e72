"""Virtual time for moto: whatever asks moto for the time gets the simulation's clock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone

from moto.core import utils
from moto.ec2.models import amis, elastic_block_store, fleets, instances, key_pairs, launch_templates, vpcs
from moto.eks import models as eks
from moto.scheduler import models as scheduler
from moto.sqs import models as sqs

from journeyman.ports import Clock
from journeyman.simulate.aws.patching import Patch

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MILLISECOND = timedelta(milliseconds=1)


class Timekeeper:
    """What moto believes the time to be."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._moment: datetime | None = None

    def now(self) -> datetime:
        """The clock's time, or the moment that is being made up for."""
        return self._moment or self._clock.now()

    def milliseconds(self) -> int:
        """Whole milliseconds since the epoch, exact in both directions with `from_milliseconds`."""
        return (self.now() - EPOCH) // _MILLISECOND

    @contextmanager
    def at(self, moment: datetime) -> Iterator[None]:
        """Let things happen as of `moment`: the clock may have jumped over the time at which they were due."""
        previous, self._moment = self._moment, moment
        try:
            yield
        finally:
            self._moment = previous


def from_milliseconds(milliseconds: float) -> datetime:
    """The moment that many milliseconds after the epoch."""
    return EPOCH + timedelta(milliseconds=milliseconds)


def patches(time: Timekeeper) -> tuple[Patch, ...]:
    """Moto reads the time through two functions, which its modules import by name."""

    def utcnow() -> datetime:
        return time.now().replace(tzinfo=None)

    def unix_time_millis(dt: datetime | None = None) -> int:
        return time.milliseconds() if dt is None else int(utils.unix_time(dt) * 1000)

    readers = (utils, amis, elastic_block_store, fleets, instances, key_pairs, launch_templates, vpcs, eks, scheduler)
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
