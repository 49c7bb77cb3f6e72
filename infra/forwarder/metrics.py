"""Numbers for Prometheus, in its text format 0.0.4. A client library would do, for a twentieth of all the memory there is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Final

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PREFIX: Final = "journeyman_forwarder_"

EVENTS: Final = "events_total"
WATCHES: Final = "watches_total"
BYTES: Final = "received_bytes_total"
_HELP: Final[Mapping[str, tuple[str, str]]] = {
    "pending_pods": ("gauge", "Pods that have no node."),
    "unschedulable_pods": ("gauge", "Pods that kube-scheduler found no node for."),
    "oldest_pending_seconds": ("gauge", "Age of the oldest unschedulable pod; 0 without one."),
    "owed_seconds": ("gauge", "How long the oldest event that is not delivered has been owed; 0 without one."),
    EVENTS: ("counter", "Events by step, sink and outcome (sent, failed, needless)."),
    WATCHES: ("counter", "Watches by resource and how they ended (ended, expired, failed)."),
    BYTES: ("counter", "Bytes from the API server by resource, compressed where they were."),
}


class Metrics:
    """Counters, and gauges that are asked for when somebody looks. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: dict[tuple[str, tuple[tuple[str, str], ...]], int] = {}

    def count(self, name: str, number: int = 1, **labels: str) -> None:
        """Add to a counter."""
        key = (name, tuple(sorted(labels.items())))
        with self._lock:
            self._counters[key] = self._counters.get(key, 0) + number

    def value(self, name: str, **labels: str) -> int:
        """Where a counter stands."""
        with self._lock:
            return self._counters.get((name, tuple(sorted(labels.items()))), 0)

    def text(self, gauges: Callable[[], Mapping[str, float]]) -> str:
        """All of them as Prometheus reads them."""
        with self._lock:
            counters = dict(self._counters)
        samples = {(name, ()): value for name, value in gauges().items()} | counters
        lines: list[str] = []
        for name, (kind, explained) in _HELP.items():
            lines += [f"# HELP {PREFIX}{name} {explained}", f"# TYPE {PREFIX}{name} {kind}"]
            lines += [_sample(name, labels, value) for (n, labels), value in sorted(samples.items()) if n == name]
        return "\n".join(lines) + "\n"


def _sample(name: str, labels: tuple[tuple[str, str], ...], value: float) -> str:
    inside = ",".join(f'{key}="{text}"' for key, text in labels)
    return f"{PREFIX}{name}{{{inside}}} {value:g}" if inside else f"{PREFIX}{name} {value:g}"
