"""What was called and what went wrong where: counted per story, added up over many, shown as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import groupby

import msgspec
from msgspec import Struct, field

from journeyman_simulator.faults.sites import kinds_of
from journeyman_simulator.faults.story import Kind


class Coverage(Struct, kw_only=True):
    """Counts of one story, or of many."""

    stories: int = 0
    calls: Counter[str] = field(default_factory=Counter)  # by site
    fired: dict[str, Counter[str]] = field(default_factory=dict)  # by site, by kind
    messages: dict[str, Counter[str]] = field(default_factory=dict)  # by queue, by kind

    def called(self, site: str) -> None:
        """A call was made."""
        self.calls[site] += 1

    def fell(self, site: str, kind: str) -> None:
        """A call went wrong."""
        self.fired.setdefault(site, Counter())[kind] += 1

    def lost(self, queue: str, kind: str) -> None:
        """A message went wrong."""
        self.messages.setdefault(queue, Counter())[kind] += 1

    def add(self, other: Coverage) -> None:
        """Count another's, too."""
        self.stories += other.stories
        self.calls.update(other.calls)
        for mine, theirs in ((self.fired, other.fired), (self.messages, other.messages)):
            for place, counts in theirs.items():
                mine.setdefault(place, Counter()).update(counts)

    def untouched(self, sites: Iterable[str], *kinds: Kind) -> tuple[str, ...]:
        """Those of these sites at which none of these kinds has fired."""
        return tuple(site for site in sites if not any(self._fired(site, kind) for kind in kinds))

    def table(self) -> str:
        """For each step, its calls by kinds; "." is a cell that is possible and has not fired, blank one that is impossible."""
        sites = sorted({*self.calls, *self.fired})
        width = max((len(site) for site in sites), default=0)
        lines: list[str] = []
        for step, own in groupby(sites, key=lambda site: site.partition(":")[0]):
            lines += ["", " ".join([f"{step:{width}}", f"{'calls':>8}", *(kind.value for kind in Kind)])]
            lines += [self._row(site, width) for site in own]
        lines.append("")
        for queue, counts in sorted(self.messages.items()):
            told = ", ".join(f"{number} {kind}" for kind, number in sorted(counts.items()))
            lines.append(f"messages to {queue}: {told}")
        return "\n".join(lines)

    def _row(self, site: str, width: int) -> str:
        call = f"  {site.partition(': ')[2]}"
        cells = (f"{self._cell(site, kind):>{len(kind.value)}}" for kind in Kind)
        return " ".join([f"{call:{width}}", f"{self.calls[site]:>8}", *cells]).rstrip()

    def _cell(self, site: str, kind: Kind) -> str:
        fired = self._fired(site, kind)
        return str(fired) if fired else "." if kind in kinds_of(site) else ""

    def _fired(self, site: str, kind: Kind) -> int:
        return self.fired[site][kind.value] if site in self.fired else 0


def to_json(coverage: Coverage) -> bytes:
    """For one process to hand to another."""
    return msgspec.json.encode(coverage)


def from_json(raw: bytes) -> Coverage:
    """What another process counted."""
    return msgspec.json.decode(raw, type=Coverage, dec_hook=lambda _, counts: Counter(counts))
