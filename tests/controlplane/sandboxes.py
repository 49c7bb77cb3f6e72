"""Run the functions in a separate process, as Lambda does, and kill it with SIGKILL during invocations.

The next invocation starts a new process. A fork server that has imported all modules forks it, so it starts fast.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import random
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from statistics import median
from typing import Any

from journeyman.runtime.composition import installed
from journeyman_simulator.deployment_files import load_handler
from journeyman_simulator.lambda_functions import LambdaHandler
from journeyman_simulator.moto_account.moto_server import client_for
from tests.controlplane.adapters import runtime
from tests.controlplane.clock import JumpingClock

_FIRST_SECONDS = 0.5  # assumed for a function that has not completed yet
_MOST_RECEIVES = 3  # of a message; after a fourth failure it goes to the dead-letter queue
_SHARES = defaultdict(lambda: 0.6, {"sweep.lambda_handler": 0.1})
"""The share of a handler's invocations that are killed while kills are left. Most sweeps have nothing to interrupt."""


class SandboxDiedError(Exception):
    """The process was killed during an invocation."""


class Deaths:
    """Draws when a process is killed: a random time, up to a fifth more than the function's median duration so far.

    Args:
        number: How many processes are killed.
        seed: The seed of the draws. Which statement a kill interrupts still differs from run to run.
    """

    def __init__(self, number: int, seed: int) -> None:
        self.left = number
        self._random = random.Random(seed)
        self._took: dict[str, list[float]] = defaultdict(list)

    def after(self, handler: str, event: Mapping[str, Any]) -> float | None:
        """Return the seconds until this invocation's process is killed; None if it is not, as at a message's last receive."""
        receives = [int(r["attributes"]["ApproximateReceiveCount"]) for r in event.get("Records", ())]
        if not self.left or max(receives, default=1) >= _MOST_RECEIVES or self._random.random() > _SHARES[handler]:
            return None
        took = self._took[handler]
        return self._random.uniform(0, 1.2 * (median(took) if took else _FIRST_SECONDS))

    def record_duration(self, handler: str, seconds: float) -> None:
        """Record the duration of an invocation that completed."""
        self._took[handler].append(seconds)


class Sandboxes:
    """Runs all functions in one process at a time. A context manager, which kills the process at its end.

    Args:
        variables: The functions' environment variables.
        endpoint: The AWS endpoint.
        clock: The scenario's clock, which each invocation receives.
        deaths: Draws when the process is killed.
        log: The file for the functions' standard output.
    """

    def __init__(
        self, variables: Callable[[], Mapping[str, str]], endpoint: str, clock: JumpingClock, deaths: Deaths, log: Path
    ) -> None:
        self.deaths = deaths
        self.killed: list[str] = []
        self._variables, self._endpoint, self._clock, self._log = variables, endpoint, clock, log
        self._forking = multiprocessing.get_context("forkserver")
        self._forking.set_forkserver_preload(["tests.controlplane.preloaded"])
        self._process: ForkServerProcess | None = None
        self._connection: Connection

    def __enter__(self) -> Sandboxes:
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()

    def handler(self, name: str) -> LambdaHandler:
        """Return a function that runs a handler, given as in the template's `Handler`, in the process."""

        def invoke(event: dict[str, Any], context: Any) -> Any:
            if self._process is None:
                self._start()
            began = time.monotonic()
            self._connection.send((name, event, context, self._clock))
            after = self.deaths.after(name, event)
            if after is not None and not self._connection.poll(after):
                self._kill()
                self.deaths.left -= 1
                self.killed.append(name)
                raise SandboxDiedError(f"{name} was killed after {after:.3f} s")
            answer, error = self._connection.recv()
            self.deaths.record_duration(name, time.monotonic() - began)
            if error:
                raise RuntimeError(error)
            return answer

        return invoke

    def _start(self) -> None:
        self._connection, child_end = self._forking.Pipe()
        arguments = (child_end, dict(self._variables()), self._endpoint, str(self._log))
        self._process = self._forking.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        child_end.close()

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._connection.close()
            self._process = None


def _serve(connection: Connection, variables: Mapping[str, str], endpoint: str, log: str) -> None:
    """Run invocations that arrive over the connection until the process is killed."""
    os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT), 1)
    clients: dict[str, Any] = {}

    def client(service: str) -> Any:
        if service not in clients:
            clients[service] = client_for(endpoint, service, region=variables["AWS_REGION"])
        return clients[service]

    clock = JumpingClock()
    with installed(runtime(variables, clock, client, io.StringIO())):
        while True:
            name, event, context, now = connection.recv()
            clock.follow(now)
            try:
                connection.send((load_handler(name)(event, context), ""))
            except Exception as error:  # noqa: BLE001 - Lambda reports whatever a handler raises
                connection.send((None, f"{type(error).__name__}: {error}"))
