"""Bounds how long AWS calls may take: one attempt, one call with its retries, and all calls of an invocation.

The SDK by itself would wait for two minutes: four attempts, each as long as one may take. By then Lambda has ended the function
in the middle of a write, or the Lease has lapsed and another run does the same work. Errors that come at once are retried
within the call; a call that gets no answer is left to the next run.

========================================  =================================================
an attempt starts                         while the run has time
a retry of the same call starts           if it can end before the call's and the run's end
a call, all of its attempts together      `CALL_SECONDS`, half of a Lease's duration
========================================  =================================================

The end belongs to the run, not to the process: up to 16 clusters are run side by side by one process and share its boto3
clients. It is a context variable, so each run's thread has its own; adapters that start threads hand their context on.
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
CALL_SECONDS: Final = 30  # a Lease is renewed when half of its minute is gone
_ATTEMPT: Final = timedelta(seconds=CONNECT_SECONDS + READ_SECONDS)
_STARTED_AT: Final = "journeyman.started_at"

_run_ends_at: Final[ContextVar[datetime | None]] = ContextVar("run_ends_at", default=None)


@contextmanager
def calls_end_by(moment: datetime) -> Iterator[None]:
    """Let calls to AWS made inside, by this thread and by threads that copy its context, end by `moment`."""
    token = _run_ends_at.set(moment)
    try:
        yield
    finally:
        _run_ends_at.reset(token)


class CallDeadline:
    """Checks every attempt of the boto3 clients that it watches against the end of the run that makes it.

    Args:
        clock: The time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def watch(self, client: Any) -> Any:
        """Return the client; from now on its attempts are checked."""
        client.meta.events.register_first("request-created", self._check_attempt)
        return client

    def _check_attempt(self, request: AWSRequest, operation_name: str, **_: Any) -> None:
        """Allow an attempt that is about to start.

        Raises:
            DeadlineError: The run's time is up.
            CloudUnavailableError: The call has taken too long already.
        """
        now, run_ends_at = self._clock.now(), _run_ends_at.get()
        if run_ends_at is not None and now >= run_ends_at:
            raise DeadlineError("the run's time is up, so AWS is not called any more", operation=operation_name)
        started_at = request.context.setdefault(_STARTED_AT, now)
        call_ends_at = started_at + timedelta(seconds=CALL_SECONDS)
        latest_end = call_ends_at if run_ends_at is None else min(call_ends_at, run_ends_at)
        if started_at is not now and now + _ATTEMPT > latest_end:
            seconds = (now - started_at).total_seconds()
            raise CloudUnavailableError(
                f"{operation_name} failed for {seconds:.0f} s; the next run calls it again", operation=operation_name
            )
