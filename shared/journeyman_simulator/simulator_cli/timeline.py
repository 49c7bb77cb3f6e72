"""Prints the demo's timeline: a row for each event and each change, when it happens."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from journeyman.ports import Clock

_COLUMNS: Final = ("time", "event", "decision", "node", "price")
_FIXED_WIDTHS: Final = {"time": 8, "price": 7}
_MAX_WIDTH: Final = 150
_MIN_NODE_WIDTH: Final = 16  # the width of a name such as `default-79xcs2g1`
_HIDDEN_MESSAGES: Final = (
    "is due:",
    "is already being deleted",
    "created nodeclaim",
    "created nodedisruption",
    "left, evicting",
    "is not ours",
)
_NOUNS: Final = {"nodeclaim": "NodeClaim", "pod": "pod", "node": "node"}
_PLURAL: Final = re.compile(rf"(\d+) ((?:new )?)({'|'.join(_NOUNS)})\(s\)")
_STYLES: Final = {"launched": "green", "disrupting": "yellow", "initiating delete": "yellow", "error": "red"}


class Timeline:
    """Prints rows for the functions' log lines and for external events."""

    def __init__(
        self, console: Console, clock: Clock, price: Callable[[], float], *, currency: str = "$", quiet: bool = False
    ) -> None:
        self._console = console
        self._clock = clock
        self._price = price
        self._currency = currency
        self._quiet = quiet
        self._triggers: dict[str, str] = {}
        self.errors: list[str] = []

    def heading(self) -> None:
        """Print the names of the columns."""
        if not self._quiet:
            titles = {**dict(zip(_COLUMNS, _COLUMNS, strict=True)), "price": f"{self._currency}/hour"}
            self._print({name: f"[bold]{title}[/bold]" for name, title in titles.items()})

    def phase(self, title: str) -> None:
        """Print the title of a phase."""
        if not self._quiet:
            self._console.rule(f"[bold]{escape(title)}[/bold]", align="left")

    def external_event(self, event: str, decision: str = "", node: str = "") -> None:
        """Print an action of a user, the cluster or the cloud."""
        self._row(f"[cyan]{escape(event)}[/cyan]", escape(decision), node)

    def log_line(self, line: Mapping[str, Any]) -> None:
        """Print a log line that reports a change. The first row of a run also shows the run's trigger."""
        run, message, level = str(line.get("reconcileID", "")), str(line["message"]), str(line["level"])
        if "trigger" in line:
            self._triggers[run] = f"{line.get('controller')}: {line.get('reason') or line['trigger']}"
        if level in {"ERROR", "WARNING"}:
            self.errors.append(message)
        if (
            level == "DEBUG"
            or any(word in message for word in _HIDDEN_MESSAGES)
            or message.startswith("found provisionable")
        ):
            return
        style = "red" if level == "ERROR" else next((s for word, s in _STYLES.items() if message.startswith(word)), "")
        text = escape(_decision(message, line))
        event = self._triggers.pop(run, "")
        self._row(escape(event), f"[{style}]{text}[/{style}]" if style else text, _node(line))

    def _row(self, event: str, decision: str, node: str) -> None:
        if not self._quiet:
            time: datetime = self._clock.now()
            self._print(
                {
                    "time": f"[dim]{time:%H:%M:%S}[/dim]",
                    "event": event,
                    "decision": decision,
                    "node": escape(node),
                    "price": f"{self._price():.4f}",
                }
            )

    def _print(self, cells: Mapping[str, str]) -> None:
        grid = Table.grid(padding=(0, 1))
        for name, width in _widths(min(self._console.width, _MAX_WIDTH)).items():
            grid.add_column(width=width, justify="right" if name == "price" else "left", overflow="fold")
        grid.add_row(*(cells[name] for name in _COLUMNS))
        self._console.print(grid)


def _widths(total: int) -> dict[str, int]:
    """Return column widths that fill the terminal: the widest for the decision, then the trigger, then the node."""
    free = total - sum(_FIXED_WIDTHS.values()) - len(_COLUMNS)
    event, node = free * 28 // 100, max(free * 24 // 100, _MIN_NODE_WIDTH)
    flexible = {"event": event, "decision": free - event - node, "node": node}
    return {name: _FIXED_WIDTHS.get(name) or flexible[name] for name in _COLUMNS}


def _decision(message: str, line: Mapping[str, Any]) -> str:
    if message.startswith("disrupting"):
        return f"{message}: {line['command']}"
    if message.startswith("launched"):
        return f"launched {line['instance-type']} ({line['capacity-type']}) in {line['zone']}"
    for verb in ("registered", "initialized"):
        if message.startswith(verb):
            return f"{verb} {message.rsplit(' ', 1)[-1]}"
    return _PLURAL.sub(lambda m: f"{m[1]} {m[2]}{_NOUNS[m[3]]}{'' if m[1] == '1' else 's'}", message)


def _node(line: Mapping[str, Any]) -> str:
    for kind in ("NodeClaim", "Node", "NodeDisruption"):
        if isinstance(line.get(kind), Mapping):
            return str(line[kind].get("name", ""))
    words = str(line["message"]).split()
    return words[words.index("NodeClaim") + 1] if "NodeClaim" in words[:-1] else ""
