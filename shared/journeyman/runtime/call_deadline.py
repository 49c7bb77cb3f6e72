"""Bounds the duration of AWS calls: of one attempt, of one call with its retries, and of all calls of a run.

The SDK's own timeouts add up to two minutes. By then Lambda has ended the function in the middle of a write, or the Lease
has expired and another run does the same work. Errors that come quickly are retried within the call; after a call without
response the next run calls again.

========================================  =================================================
an attempt starts                         while the run has time
a retry of the same call starts           if it can end before the call's and the run's end
a call, with all its attempts, lasts      `CALL_SECONDS`: a Lease that was just checked outlasts it
========================================  =================================================

Each run has its own end, because one process runs up to 16 clusters in parallel, which share its boto3 clients. The end is
a context variable, so that each run's thread has its own; adapters that start threads copy their context.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from journeyman.errors import CloudUnavailableError, DeadlineError
from journeyman.ports import Clock

if TYPE_CHECKING:
    from botocore.awsrequest import AWSRequest

CONNECT_SECONDS: Final = 2
READ_SECONDS: Final = 15  # CreateFleet takes up to ten
CALL_SECONDS: Final = 30  # a Lease lasts 40 s, and is renewed when 10 of them are over
_ATTEMPT: Final = timedelta(seconds=CONNECT_SECONDS + READ_SECONDS)
_STARTED_AT: Final = "journeyman.started_at"

_run_ends_at: Final[ContextVar[datetime | None]] = ContextVar("run_ends_at", default=None)


@contextmanager
def calls_end_by(moment: datetime) -> Iterator[None]:
    """End AWS calls inside the block by `moment`, in this thread and in threads that copy its context."""
    token = _run_ends_at.set(moment)
    try:
        yield
    finally:
        _run_ends_at.reset(token)


def run_ends_at() -> datetime | None:
    """Return when the run of this context ends; None outside of a run."""
    return _run_ends_at.get()


class CallDeadline:
    """Checks every attempt of boto3 clients against the end of the call and of the run."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def watch(self, client: Any) -> Any:
        """Check the client's attempts from now on; return the client."""
        client.meta.events.register_first("request-created", self._check_attempt)
        return client

    def _check_attempt(self, request: AWSRequest, operation_name: str, **_: Any) -> None:
        """Check an attempt that is about to start.

        Raises:
            DeadlineError: The run's time is up.
            CloudUnavailableError: The call has taken too long already.
        """
        now, ends_at = self._clock.now(), run_ends_at()
        if ends_at is not None and now >= ends_at:
            raise DeadlineError("not calling AWS: the run's time is up", operation=operation_name)
        started_at = request.context.setdefault(_STARTED_AT, now)
        call_ends_at = started_at + timedelta(seconds=CALL_SECONDS)
        latest_end = call_ends_at if ends_at is None else min(call_ends_at, ends_at)
        if started_at is not now and now + _ATTEMPT > latest_end:
            seconds = (now - started_at).total_seconds()
            raise CloudUnavailableError(
                f"{operation_name} failed for {seconds:.0f} s; the next run calls it again", operation=operation_name
            )
