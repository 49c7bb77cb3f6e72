"""When to send: a batch closes after a quiet second, or ten seconds after it opened, whichever comes first.

Pure: time is a parameter, in seconds of any steady clock. A batch that could not be sent stays open, with a growing pause
between attempts; what arrives meanwhile joins it.

Restates: karpenter pkg/controllers/provisioning/batcher.go (BATCH_IDLE_DURATION, BATCH_MAX_DURATION).
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0


@dataclass(slots=True)
class Batch:
    """The open batch, if any."""

    idle_seconds: float = 1.0
    max_seconds: float = 10.0
    _opened: float | None = None
    _latest: float = 0.0
    _failures: int = 0
    _not_before: float = 0.0

    def add(self, now: float) -> None:
        """Something to tell has happened."""
        self._opened = now if self._opened is None else self._opened
        self._latest = now

    def due(self) -> float | None:
        """When to send; None if there is nothing to tell."""
        if self._opened is None:
            return None
        return max(min(self._latest + self.idle_seconds, self._opened + self.max_seconds), self._not_before)

    def take(self, now: float) -> bool:
        """Close the batch if it is due; True means: send now, then say `sent` or `failed`."""
        due = self.due()
        if due is None or due > now:
            return False
        self._opened = None
        return True

    def hurry(self) -> bool:
        """Close the batch at once, whatever its windows; True if one was open."""
        was_open, self._opened = self._opened is not None, None
        return was_open

    def sent(self) -> None:
        """It was handed over."""
        self._failures = 0
        self._not_before = 0.0

    def failed(self, now: float, *, least_seconds: float = 0.0, jitter: float = 1.0) -> None:
        """It was not: open it again, to be tried after a pause.

        Args:
            now: The time.
            least_seconds: The shortest pause, if whoever refused asked for one; the longest still holds.
            jitter: A share of the pause, above 0 up to 1, drawn so that many senders do not come back together.
        """
        grown = jitter * min(FIRST_PAUSE_SECONDS * 2**self._failures, LONGEST_PAUSE_SECONDS)
        self._failures = min(self._failures + 1, 16)  # the pause stopped growing long before
        self._not_before = now + min(max(grown, least_seconds), LONGEST_PAUSE_SECONDS)
        self.add(now)
