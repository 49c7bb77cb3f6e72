"""JSON log lines with Karpenter's keys, so that alerts written for its logs keep working.

``{"level":"INFO","time":"2026-11-21T09:00:00.000Z","logger":"journeyman","message":"created nodeclaim",
"controller":"provision","reconcileID":"…","NodeClaim":{"name":"default-x7k2p"},…}``

Restates: karpenter pkg/operator/logging/logging.go (keys and their order).
Differs: `correlation_id` (the message that woke us) and `cluster` come on top.
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
"""Names a LogRecord uses itself; `logging` refuses a field of that name."""


class KarpenterFormatter(LambdaPowertoolsFormatter):
    """Powertools' formatter with Karpenter's keys."""

    def serialize(self, log: LogRecord) -> str:
        """One JSON line; `timestamp` is called `time`."""
        renamed: Any = {"time" if key == "timestamp" else key: value for key, value in log.items()}
        return super().serialize(renamed)


def json_logger(
    *, service: str = SERVICE, level: str = "info", commit: str = "", stream: IO[str] | None = None
) -> Logger:
    """The logger of one process.

    Args:
        service: The logger's name; one name is one logger.
        level: debug, info, warning or error (Karpenter's LOG_LEVEL).
        commit: The build's commit, on every line as Karpenter has it.
        stream: Where lines go; standard output if None.
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
    """One line; a field whose name `logging` keeps to itself gets an underscore behind it."""
    extra = {f"{name}_" if name in _RESERVED else name: value for name, value in fields.items()}
    writers = {"debug": logger.debug, "warning": logger.warning, "error": logger.error}
    writers.get(level.lower(), logger.info)(message, extra=extra)
