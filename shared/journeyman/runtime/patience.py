"""How long AWS is waited for: by one call, and by a run that has an end.

The SDK would wait for two minutes: four attempts, each as long as one may take. By then a function's time is up, and the
platform ends it in the middle of something; or its Lease has lapsed, and another run does the same beside it. What fails at
once is repeated within a call, what is not answered is left to the next run: whoever waited that long waits elsewhere.

========================================  =================================================
an attempt is begun                       as long as the run has time
a further one of the same call            if it can end before the call or the run has to
a call, all of its attempts together      `CALL_SECONDS`, half of what a Lease lasts
========================================  =================================================
"""

from __future__ import annotations

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
_BEGAN: Final = "journeyman.began"


class Patience:
    """Watches the attempts of boto3 clients; one for all clients of a process, whose runs all end with it.

    Args:
        clock: The time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.until: datetime | None = None
        """When the runs under way have to end; None: nobody ends them."""

    def watch(self, client: Any) -> Any:
        """The client, from now on with as much patience as there is time."""
        client.meta.events.register_first("request-created", self._begins)
        return client

    def _begins(self, request: AWSRequest, operation_name: str, **_: Any) -> None:
        """An attempt is about to be made.

        Raises:
            DeadlineError: The run has to end.
            CloudUnavailableError: The call has taken too long already.
        """
        now = self._clock.now()
        if self.until is not None and now >= self.until:
            raise DeadlineError("the run's time is up; nothing more is asked of AWS", operation=operation_name)
        began = request.context.setdefault(_BEGAN, now)
        if began is not now and now + _ATTEMPT > self._latest_end(began):
            raise CloudUnavailableError(
                f"{operation_name} came to nothing within {(now - began).total_seconds():.0f} s; the next run asks again",
                operation=operation_name,
            )

    def _latest_end(self, began: datetime) -> datetime:
        end = began + timedelta(seconds=CALL_SECONDS)
        return end if self.until is None else min(end, self.until)
