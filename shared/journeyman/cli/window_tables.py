"""`journeyman budgets`: which windows of NodePools and CapacityBuffers are open now, and which open or close next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta, timezone, tzinfo
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from journeyman.core.api.capacity_buffer import CapacityBuffer
from journeyman.core.api.duration import time_after
from journeyman.core.api.model import parse
from journeyman.core.api.nodepool import NodePool
from journeyman.core.api.objects import CAPACITY_BUFFER, NODEPOOL, Resource
from journeyman.core.api.windows import YEAR
from journeyman.core.disruption.budgets import UNLIMITED, allowed_nodes, window_of
from journeyman.core.disruption.calendar import Calendar, CalendarWindow, calendar_of, next_edges
from journeyman.core.disruption.candidates import DisruptionReason
from journeyman.errors import ConfigurationError, JourneymanError, NotFoundError
from journeyman.ports import KubeStore

_REASONS: Final = (DisruptionReason.DRIFTED, DisruptionReason.EMPTY, DisruptionReason.UNDERUTILIZED)
_ANY_NUMBER: Final = 1000  # of nodes: whether a budget limits them does not depend on it


class CalendarObjects(Struct, frozen=True, kw_only=True):
    """NodePools and CapacityBuffers, by name, and what is wrong with the others."""

    pools: tuple[NodePool, ...]
    buffers: tuple[CapacityBuffer, ...]
    invalid: tuple[str, ...] = ()


def print_budgets(objects: CalendarObjects, now: datetime, count: int, console: Console) -> None:
    """Print the open windows, the next edges, and what is wrong; times are local to each object.

    Args:
        objects: The NodePools and CapacityBuffers.
        now: The time.
        count: How many edges to print.
        console: Where to print.
    """
    calendar = calendar_of(objects.pools, objects.buffers, now)
    console.print(_open_now(objects, calendar, now))
    edges = next_edges(calendar, now, count)
    if edges:
        table = _table("Next", "when", "in", "object", "window")
        for edge in edges:
            window = edge.calendar_window
            what = f"{window.title} {'opens' if edge.opens else 'closes'}"
            table.add_row(_local(edge.at, window.zone), _span(edge.at - now), str(window.ref), what)
        console.print(table)
    else:
        console.print("No window opens or closes within a year.")
    for message in (*(event.message for event in calendar.problems), *objects.invalid):
        console.print(f"[yellow]invalid[/yellow]  {message}", highlight=False)


def read_manifests(paths: Iterable[Path]) -> CalendarObjects:
    """Return the NodePools and CapacityBuffers in YAML or JSON files. Raises ConfigurationError if a file cannot be read."""
    return _parsed(raw for path in paths for raw in _flat(_documents(path)))


def _documents(path: Path) -> list[Any]:
    import yaml

    try:
        return list(yaml.safe_load_all(path.read_text()))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigurationError(f"cannot read the manifests in {path}: {error}", path=str(path)) from error


def read_cluster(store: KubeStore) -> CalendarObjects:
    """Return the NodePools and CapacityBuffers of a cluster, which may not serve CapacityBuffers. Raises KubeAPIError."""
    raws = [*store.list(NODEPOOL).items, *_if_served(store, CAPACITY_BUFFER)]
    return _parsed(raws)


def _if_served(store: KubeStore, resource: Resource[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    try:
        return store.list(resource).items
    except NotFoundError:
        return ()


def _flat(documents: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Yield the objects of documents, those inside of lists as well."""
    for document in documents:
        if isinstance(document, dict):
            items = document.get("items")
            if isinstance(items, list):
                yield from _flat(items)
            else:
                yield document


def _parsed(raws: Iterable[dict[str, Any]]) -> CalendarObjects:
    found = [_object(raw) for raw in raws]
    pools = (each for each in found if isinstance(each, NodePool))
    buffers = (each for each in found if isinstance(each, CapacityBuffer))
    return CalendarObjects(
        pools=tuple(sorted(pools, key=lambda pool: pool.metadata.name)),
        buffers=tuple(sorted(buffers, key=lambda buffer: buffer.key)),
        invalid=tuple(each for each in found if isinstance(each, str)),
    )


_MODELS: Final[Mapping[str, type[NodePool] | type[CapacityBuffer]]] = {
    NODEPOOL.kind: NodePool,
    CAPACITY_BUFFER.kind: CapacityBuffer,
}


def _object(raw: dict[str, Any]) -> NodePool | CapacityBuffer | str | None:
    """Return the NodePool or CapacityBuffer; why it is invalid; None if it is something else."""
    model = _MODELS.get(str(raw.get("kind", "")))
    if model is None:
        return None
    try:
        return parse(model, raw)
    except JourneymanError as error:
        return f"{raw['kind']} {(raw.get('metadata') or {}).get('name', '')}: {error.message}"


def _open_now(objects: CalendarObjects, calendar: Calendar, now: datetime) -> Table:
    table = _table("Open now", "object", "window", "until", "local time")
    for pool in objects.pools:
        of_pool = [w for w in calendar.windows if w.ref.resource is NODEPOOL and w.ref.name == pool.metadata.name]
        zone = of_pool[0].zone if of_pool else timezone.utc
        rows = [
            (f"budget {_nodes(budget)}", "always") for budget in pool.spec.disruption.budgets if not budget.schedule
        ]
        rows += [*_open_rows(of_pool, now), *_unlimited_row(pool, now, zone)]
        _add(table, f"NodePool {pool.metadata.name}", rows, _local(now, zone))
    for buffer in objects.buffers:
        of_buffer = [w for w in calendar.windows if w.ref.resource is CAPACITY_BUFFER and _key(w) == buffer.key]
        zone = of_buffer[0].zone if of_buffer else timezone.utc
        rows = _open_rows(of_buffer, now)
        if not of_buffer and buffer.reserves_capacity(now):
            rows = [("reserved capacity", "always")]
        _add(table, f"CapacityBuffer {buffer.key}", rows, _local(now, zone))
    return table


def _add(table: Table, name: str, rows: list[tuple[str, str]], local: str) -> None:
    for index, (window, until) in enumerate(rows or [("[dim]none[/dim]", "")]):
        table.add_row(*(("", window, until, "") if index else (name, window, until, local)))


def _open_rows(windows: Iterable[CalendarWindow], now: datetime) -> list[tuple[str, str]]:
    """Return title and end of each window that is open."""
    return [(w.title, _end(w, now)) for w in windows if w.is_open(now)]


def _unlimited_row(pool: NodePool, now: datetime, zone: tzinfo) -> list[tuple[str, str]]:
    """Return the reasons to which no open budget applies, so that it limits no node, and until when; nothing if there are none."""
    budgets = pool.spec.disruption.budgets
    reasons = [r.value for r in _REASONS if allowed_nodes(budgets, r, _ANY_NUMBER, now, zone) == UNLIMITED]
    if not reasons:
        return []
    applying = (b for b in budgets if not b.reasons or not set(reasons).isdisjoint(b.reasons))
    windows = (window_of(budget, zone) for budget in applying)
    edges = (window.next_edge(now, time_after(now, YEAR)) for window in windows if window is not None)
    until = min((edge for edge in edges if edge is not None), default=None)
    return [(f"unlimited ({', '.join(reasons)}): no budget applies", _local(until, zone) if until else "always")]


def _end(window: CalendarWindow, now: datetime) -> str:
    edge = next(window.edges(now, time_after(now, YEAR)), None)
    return _local(edge.at, window.zone) if edge is not None else "no end within a year"


def _nodes(budget: Any) -> str:
    return f"{budget.nodes} ({', '.join(budget.reasons)})" if budget.reasons else str(budget.nodes)


def _key(window: CalendarWindow) -> str:
    return f"{window.ref.namespace}/{window.ref.name}"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column)
    return table


def _local(at: datetime, zone: tzinfo) -> str:
    return f"{at.astimezone(zone):%a %d %b %H:%M %Z}"


def _span(span: timedelta) -> str:
    """Return a time span in its two largest units, such as `2d 3h`."""
    minutes = round(span / timedelta(minutes=1))
    days, hours, rest = minutes // 1440, minutes // 60 % 24, minutes % 60
    if days:
        return f"{days}d {hours}h"
    return f"{hours}h {rest}m" if hours else f"{rest}m"
