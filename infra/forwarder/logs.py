"""Log lines: JSON, with the keys of the functions' lines."""

from __future__ import annotations

import json
import logging
import sys
import threading
from datetime import datetime, timezone
from typing import TextIO


class JsonLines(logging.Formatter):
    """One line of JSON for each record; `extra` fields named in `FIELDS` go along."""

    FIELDS = ("id",)

    def __init__(self, cluster: str) -> None:
        super().__init__()
        self._cluster = cluster

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line = {
            "level": record.levelname,
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "logger": record.name,
            "message": record.getMessage(),
            "cluster": self._cluster,
            **{name: getattr(record, name) for name in self.FIELDS if hasattr(record, name)},
        }
        if record.exc_info:
            line["stacktrace"] = self.formatException(record.exc_info)
        return json.dumps(line)


def set_up(cluster: str, level: str, stream: TextIO = sys.stdout) -> None:
    """Log to `stream`; what kills a thread is logged, too."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines(cluster))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("forwarder").setLevel(level)
    threading.excepthook = _thread_failed


def _thread_failed(failure: threading.ExceptHookArgs) -> None:
    name = failure.thread.name if failure.thread else "a thread"
    what = (failure.exc_type, failure.exc_value or failure.exc_type(), failure.exc_traceback)
    logging.getLogger("forwarder").error("%s ended with an error; /healthz says so", name, exc_info=what)
