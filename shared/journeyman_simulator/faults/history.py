"""Records the history of a scenario, for its digest, for printing, and for the versions that stale reads return."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable
from datetime import datetime

import msgspec
from msgspec import Struct

from journeyman.ports import Clock
from journeyman_simulator.apiserver.server import Write
from journeyman_simulator.faults.scenario_view import RUN_USER_PREFIX


class HistoryEntry(Struct, frozen=True):
    """An action of an actor at a time."""

    at: datetime
    who: str  # "provision#12", or a user of the API server
    what: str

    def __str__(self) -> str:
        return f"{self.at:%H:%M:%S}  {self.who:<16} {self.what}"


class History:
    """Records writes (`on_write` of an API server) and other entries.

    Args:
        clock: The virtual clock.
        who: Returns the name of the current run; if it is empty, the entry names the user of the write.
        on_entry: Called with each entry when it is recorded.
    """

    def __init__(
        self, clock: Clock, who: Callable[[], str], on_entry: Callable[[HistoryEntry], None] | None = None
    ) -> None:
        self._clock = clock
        self._who = who
        self._on_entry = on_entry
        self._digest = hashlib.sha256()
        self._times: list[datetime] = []
        self._versions: list[int] = []
        self.entries: list[HistoryEntry] = []

    @property
    def digest(self) -> str:
        """Return a digest of the history, including the bytes of every write."""
        return self._digest.hexdigest()

    def on_write(self, write: Write) -> None:
        """Record an accepted write."""
        now = self._clock.now()
        self._times.append(now)
        self._versions.append(write.version)
        self._digest.update(msgspec.json.encode(write.body, order="deterministic"))
        run = self._who() if write.user.startswith(RUN_USER_PREFIX) else ""
        self.record(_event_text(write) if write.resource.kind == "Event" else _write_text(write), run or write.user)

    def record(self, what: str, who: str = "") -> None:
        """Record an action that is not a write."""
        entry = HistoryEntry(self._clock.now(), who or self._who(), what)
        self._digest.update(f"{entry.at.isoformat()} {entry.who} {what}\n".encode())
        self.entries.append(entry)
        if self._on_entry:
            self._on_entry(entry)

    def version_at(self, moment: datetime) -> int:
        """Return the API server's version after all writes at or before `moment`; 1 (an empty cluster) if there are none."""
        before = bisect_right(self._times, moment)
        return self._versions[before - 1] if before else 1


def _write_text(write: Write) -> str:
    subresource = f"/{write.subresource}" if write.subresource else ""
    return f"{write.verb} {write.resource.kind}{subresource} {write.name}"


def _event_text(write: Write) -> str:
    """Return an Event's reason, object, message and count as text."""
    event = write.result
    about, count = event["involvedObject"], event.get("count", 1)
    times = f" ({count} times)" if count > 1 else ""
    return f"Event {event['reason']} of {about['kind']} {about['name']}: {event['message']}{times}"
