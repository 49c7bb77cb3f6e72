"""Reads several answers of a cloud at once, since a cold start waits for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def read_each(read: Callable[[K], V], keys: Sequence[K], *, in_parallel: bool) -> dict[K, V]:
    """Return what `read` returns for each key, in their order; raises what it raises for the first key.

    Args:
        read: Sends one request; called in threads with copies of the caller's context, which has the end of the run.
        keys: Distinct arguments.
        in_parallel: False to read one after another, so that a simulation is reproducible.
    """
    if not in_parallel or len(keys) < 2:
        return {key: read(key) for key in keys}
    with ThreadPoolExecutor(max_workers=len(keys), thread_name_prefix="read") as pool:
        reading = {key: pool.submit(copy_context().run, read, key) for key in keys}
        return {key: future.result() for key, future in reading.items()}
