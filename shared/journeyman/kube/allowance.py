"""What one run may spend on its API server, and what it has spent: time, retries, requests, bytes."""

from __future__ import annotations

import math
import threading
from datetime import datetime
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.plan import Observation
from journeyman.errors import DeadlineError
from journeyman.ports import Clock

RETRIES: Final = 30
"""How many requests a run may repeat in all. A server in trouble must not be asked several times for each of hundreds of
writes; a run that has used them up ends with the server's last answer, and its wake-up comes back later."""


class Usage(Struct, frozen=True, kw_only=True):
    """What was sent and received. Each attempt is a request; bytes are those of bodies, compressed as on the wire."""

    requests: int = 0
    writes: int = 0  # those that are no GETs, repeated ones counted once
    retries: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0

    def observations(self, controller: str) -> tuple[Observation, ...]:
        """As metrics of the run of a step; none if nothing was asked."""
        if not self.requests:
            return ()
        counted = {
            "journeyman_kube_requests_total": self.requests,
            "journeyman_kube_retries_total": self.retries,
            "journeyman_kube_sent_bytes_total": self.sent_bytes,
            "journeyman_kube_received_bytes_total": self.received_bytes,
        }
        labels = {"controller": controller}
        return tuple(Observation(name=name, value=value, labels=labels) for name, value in counted.items())


class Allowance:
    """One run's share; safe to use from several threads.

    Args:
        clock: Tells how much of its time is left.
        until: When the run ends; None: nobody ends it.
        retries: How many requests it may repeat in all.
    """

    def __init__(self, *, clock: Clock | None = None, until: datetime | None = None, retries: float = RETRIES) -> None:
        self._clock = clock
        self._until = until
        self._retries = retries
        self._lock = threading.Lock()
        self._usage = Usage()

    @property
    def usage(self) -> Usage:
        """What has been spent so far."""
        return self._usage

    def seconds_left(self) -> float:
        """How long the run may still go on; negative once it may not."""
        if self._clock is None or self._until is None:
            return math.inf
        return (self._until - self._clock.now()).total_seconds()

    def at_most(self, seconds: float) -> float:
        """That long, or less if the run ends earlier.

        Raises:
            DeadlineError: It has ended.
        """
        left = self.seconds_left()
        if left <= 0:
            raise DeadlineError("the run's time is up; nothing more is asked of the API server")
        return min(seconds, left)

    def sent(self, size: int, *, is_write: bool) -> None:
        """A request goes out with a body of that many bytes."""
        with self._lock:
            used = self._usage
            self._usage = replace(
                used, requests=used.requests + 1, writes=used.writes + is_write, sent_bytes=used.sent_bytes + size
            )

    def received(self, size: int) -> None:
        """That many bytes of an answer have come."""
        with self._lock:
            self._usage = replace(self._usage, received_bytes=self._usage.received_bytes + size)

    def may_repeat(self, *, wait_seconds: float) -> bool:
        """Take one retry, if one is left and its wait ends before the run does."""
        if wait_seconds >= self.seconds_left():
            return False
        with self._lock:
            if self._usage.retries >= self._retries:
                return False
            self._usage = replace(self._usage, requests=self._usage.requests + 1, retries=self._usage.retries + 1)
            return True
