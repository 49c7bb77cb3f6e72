"""Writes JSON log lines with Karpenter's keys, so that alerts on its logs keep working.

``{"level":"INFO","time":"2026-11-21T09:00:00.000Z","logger":"journeyman","message":"created nodeclaim",
"controller":"provision","reconcileID":"…","NodeClaim":{"name":"default-x7k2p"},…}``

Restates: karpenter pkg/operator/logging/logging.go (keys and their order).
Differs: adds `correlation_id` (the message that started the run) and `cluster`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import IO, Any, Final

from aws_lambda_powertools import Logger
from aws_lambda_powertools.logging.formatter import LambdaPowertoolsFormatter
from aws_lambda_powertools.logging.types import LogRecord

SERVICE: Final = "journeyman"
ORDER: Final = ["level", "timestamp", "logger", "message", "commit", "controller", "reconcileID", "cluster"]
LEVELS: Final[Mapping[str, int]] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}

_RESERVED: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
"""Attributes of LogRecord; `logging` rejects fields of the same name."""


class KarpenterFormatter(LambdaPowertoolsFormatter):
    """Powertools' formatter with Karpenter's keys."""

    def serialize(self, log: LogRecord) -> str:
        """Return one JSON line, with `timestamp` renamed to `time`."""
        renamed: Any = {"time" if key == "timestamp" else key: value for key, value in log.items()}
        return super().serialize(renamed)


def json_logger(
    *, service: str = SERVICE, level: str = "info", commit: str = "", stream: IO[str] | None = None
) -> Logger:
    """Return the logger of one process.

    Args:
        service: The logger's name.
        level: debug, info, warning or error (Karpenter's LOG_LEVEL).
        commit: The build's commit, on every line as in Karpenter.
        stream: Where lines are written; standard output if None.
    """
    formatter = KarpenterFormatter(
        log_record_order=ORDER,
        location=None,
        logger=service,
        commit=commit or None,
        datefmt="%Y-%m-%dT%H:%M:%S.%FZ",
        utc=True,
    )
    return Logger(
        service=service, level=LEVELS.get(level.lower(), logging.INFO), stream=stream, logger_formatter=formatter
    )


def write(logger: Logger, level: str, message: str, fields: Mapping[str, Any]) -> None:
    """Write one line; an underscore is appended to the names of fields that `logging` reserves."""
    extra = {f"{name}_" if name in _RESERVED else name: value for name, value in fields.items()}
    writers = {"debug": logger.debug, "warning": logger.warning, "error": logger.error}
    writers.get(level.lower(), logger.info)(message, extra=extra)
