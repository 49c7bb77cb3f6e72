"""Everything that happened in a scenario, in order: what a digest is made of, what a person reads, what stale reads go back to."""

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
    """Somebody did something."""

    at: datetime
    who: str  # "provision#12", or a user of the API server
    what: str

    def __str__(self) -> str:
        return f"{self.at:%H:%M:%S}  {self.who:<16} {self.what}"


class History:
    """Writes (`on_write` of an API server) and whatever else is told.

    Args:
        clock: The scenario's.
        who: Names the run under way; empty if there is none, then the writer's user is told.
        on_moment: Is told of each, as it happens.
    """

    def __init__(
        self, clock: Clock, who: Callable[[], str], on_entry: Callable[[HistoryEntry], None] | None = None
    ) -> None:
        self._clock = clock
        self._who = who
        self._on_moment = on_entry
        self._digest = hashlib.sha256()
        self._times: list[datetime] = []
        self._versions: list[int] = []
        self.entries: list[HistoryEntry] = []

    @property
    def digest(self) -> str:
        """The same for the same history, to the last byte of every write."""
        return self._digest.hexdigest()

    def on_write(self, write: Write) -> None:
        """An accepted write."""
        now = self._clock.now()
        self._times.append(now)
        self._versions.append(write.version)
        self._digest.update(msgspec.json.encode(write.body, order="deterministic"))
        ours = self._who() if write.user.startswith(RUN_USER_PREFIX) else ""
        self.note(_told(write) if write.resource.kind == "Event" else _done(write), ours or write.user)

    def note(self, what: str, who: str = "") -> None:
        """Anything else."""
        moment = HistoryEntry(self._clock.now(), who or self._who(), what)
        self._digest.update(f"{moment.at.isoformat()} {moment.who} {what}\n".encode())
        self.entries.append(moment)
        if self._on_moment:
            self._on_moment(moment)

    def version_at(self, moment: datetime) -> int:
        """The API server's version at the end of that moment; 1, an empty cluster, if nothing was written before."""
        before = bisect_right(self._times, moment)
        return self._versions[before - 1] if before else 1


def _done(write: Write) -> str:
    subresource = f"/{write.subresource}" if write.subresource else ""
    return f"{write.verb} {write.resource.kind}{subresource} {write.name}"


def _told(write: Write) -> str:
    """What an Event says, to whom it happened; and how often by now."""
    event = write.result
    about, count = event["involvedObject"], event.get("count", 1)
    times = f" ({count} times)" if count > 1 else ""
    return f"Event {event['reason']} of {about['kind']} {about['name']}: {event['message']}{times}"
