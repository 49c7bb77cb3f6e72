"""Carries the lineage of a message in X-Ray's trace header, by which Lambda detects recursive loops.

Lambda puts the header into `_X_AMZN_TRACE_ID` before each invocation, botocore sends it with every request, SQS keeps it with
the message (`AWSTraceHeader`), and Lambda counts this function's run in it when it receives the message. Lambda does not
publish the form of the lineage; here it is `function:runs|function:runs`.

Restates: Lambda developer guide, "Use Lambda recursive loop detection to prevent infinite loops"; botocore
handlers.py `add_recursion_detection_header`.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final
from urllib.parse import unquote

MAX_RUNS: Final = 16
"""The number of runs of one function in one lineage; Lambda stops the next one. AWS says "approximately 16"."""
REQUEST_HEADER: Final = "X-Amzn-Trace-Id"
MESSAGE_ATTRIBUTE: Final = "AWSTraceHeader"

_VARIABLES: Final = ("_X_AMZN_TRACE_ID", "AWS_LAMBDA_FUNCTION_NAME")
_current: Final[ContextVar[str]] = ContextVar("trace", default="")
_lock: Final = threading.Lock()
_running: Final[
    list[tuple[str, str]]
] = []  # (header, function) of the invocations that run now, in threads of their own
_outside: Final[dict[str, str | None]] = {}  # the variables before the first of them


def runs_in_lineage(header: str, function: str) -> int:
    """Return how often the function ran in the header's lineage; 0 without a header."""
    return _lineage(header).get(_key(function), 0)


def header_of_invocation(received: Iterable[str], function: str, request_id: str) -> str:
    """Return the header of an invocation: the lineages of its messages, the longest of each function, and one run more."""
    runs: dict[str, int] = {}
    for header in received:
        for key, number in _lineage(header).items():
            runs[key] = max(number, runs.get(key, 0))
    own = _key(function)
    runs[own] = runs.get(own, 0) + 1
    root = hashlib.sha256(request_id.encode()).hexdigest()
    lineage = "|".join(f"{key}:{number}" for key, number in sorted(runs.items()))
    return f"Root=1-{root[:8]}-{root[8:32]};Sampled=0;Lineage={lineage}"


@contextmanager
def traced(header: str, function: str) -> Iterator[None]:
    """Make the requests inside the context carry the header: those of boto3's clients, and this thread's simulated ones."""
    invocation = (header, function)
    with _lock:
        if not _running:
            _outside.update({name: os.environ.get(name) for name in _VARIABLES})
        _running.append(invocation)
        _set_variables()
    token = _current.set(header)
    try:
        yield
    finally:
        _current.reset(token)
        with _lock:
            _running.remove(invocation)
            _set_variables()


def current_trace() -> str:
    """Return the header of this thread's invocation; empty outside of any."""
    return _current.get()


def sent_header(request_headers: Mapping[str, str]) -> str:
    """Return the header of a request over HTTP, which botocore quotes; empty if it has none."""
    return unquote(request_headers.get(REQUEST_HEADER) or "")


def _set_variables() -> None:
    """Set the process's variables to those of the last invocation that still runs, or as they were before any ran."""
    values = dict(zip(_VARIABLES, _running[-1], strict=True)) if _running else _outside
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _lineage(header: str) -> dict[str, int]:
    parts = dict(part.partition("=")[::2] for part in header.split(";"))
    pairs = (pair.rpartition(":") for pair in parts.get("Lineage", "").split("|") if pair)
    return {key: int(number) for key, _, number in pairs}


def _key(function: str) -> str:
    return hashlib.sha256(function.encode()).hexdigest()[:8]
