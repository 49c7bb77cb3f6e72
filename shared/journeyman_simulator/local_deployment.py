"""Runs the deployed application on a simulated cluster and cloud, in this process (`LocalDeployment`).

Each cloud has a deployment of its own (`local_aws`, `local_alibaba`), which creates the resources of the deployed template in
a simulated account, loads the deployed handlers, and replaces three parts of the runtime: the cluster by an in-memory API
server, the clock by a virtual one, and the account. Parsers, steps, cloud adapter and queues are the deployed ones. The demo,
event replay and end-to-end tests use it.
"""

from __future__ import annotations

import io
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Final

from msgspec import Struct
from typing_extensions import Self

from journeyman.core.api.objects import NODECLAIM, Resource
from journeyman.core.plan import Step
from journeyman.observe.logs import SERVICE
from journeyman.runtime.adapters import logger
from journeyman.runtime.composition import Runtime, installed
from journeyman_simulator.apiserver import ApiServer
from journeyman_simulator.clock import VirtualClock
from journeyman_simulator.kube_scheduler import KubeScheduler
from journeyman_simulator.kubelet import BOOT, Kubelets, MachineSource
from journeyman_simulator.lambda_functions import LambdaFunction
from journeyman_simulator.local_forwarder import LocalForwarder
from journeyman_simulator.workload_controllers import WorkloadControllers
from journeyman_simulator.world import Actor, World

ACTOR: Final = "journeyman"
LogLine = Mapping[str, Any]


class CloudFacts(Struct, frozen=True, kw_only=True):
    """What the demo says about a cloud: its names, its currency, and the price of its functions."""

    account: str  # as in "a simulated … account"
    functions: str  # the product that runs the functions
    spot_warning: str  # the name of the event that announces a reclaim
    reclaims: str  # who reclaims Spot nodes, and with which notice
    notice: timedelta
    currency: str  # its sign
    gigabyte_second: float  # price of a function's memory, in that currency
    request: float  # price of an invocation
    launch_operation: str  # the request that launches an instance


class LocalDeployment(ABC):
    """A context manager that deploys the application on entry; `world` then runs it."""

    facts: CloudFacts
    node_class: Resource[Any]

    def __init__(
        self, *, start: datetime, cluster: str, boot: timedelta = BOOT, on_log: Callable[[LogLine], None] | None = None
    ) -> None:
        """Prepare a deployment.

        Args:
            start: The virtual time at the start; aware.
            cluster: The registered cluster's name.
            boot: The time from a running instance to a registered node.
            on_log: Called with each log line of the functions, parsed.
        """
        self.cluster = cluster
        self.clock = VirtualClock(start)
        self.server = ApiServer(self.clock)
        self._boot = boot
        self._on_log = on_log
        self._opened = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            runtime, machines, actors = self._deploy(opened)
            opened.enter_context(captured_logs(self._on_log))
            opened.enter_context(installed(runtime))
            self.world = World(
                self.clock,
                [
                    WorkloadControllers(self.server.acting_as("kube-controller-manager"), self.clock),
                    KubeScheduler(self.server.acting_as("kube-scheduler"), self.clock),
                    Kubelets(self.server.acting_as("kubelet"), self.clock, machines, boot=self._boot),
                    *actors[:1],  # the account, whose instances change before the forwarder looks
                    LocalForwarder(self.server, self.clock, self.cluster, self._send, self.node_class),
                    *actors[1:],
                ],
            )
            self._opened = opened.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._opened.close()

    @abstractmethod
    def _deploy(self, opened: ExitStack) -> tuple[Runtime, MachineSource, Sequence[Actor]]:
        """Create the deployed resources; return the runtime, the machines, and the actors, the account first.

        Args:
            opened: Closes what the deployment opens.
        """

    @abstractmethod
    def _send(self, step: Step, body: str, message_id: str) -> None:
        """Send a message of the forwarder to a step."""

    @property
    @abstractmethod
    def functions(self) -> Sequence[LambdaFunction]:
        """Return the deployed functions."""

    @property
    @abstractmethod
    def price_per_hour(self) -> float:
        """Return the price per hour of all pending and running instances, in the cloud's currency."""

    @abstractmethod
    def calls(self) -> Mapping[str, int]:
        """Return the number of requests to the account by operation."""

    @abstractmethod
    def interrupt(self, provider_id: str) -> None:
        """Reclaim a Spot instance with the cloud's notice."""

    @abstractmethod
    def _live_instances(self) -> list[str]:
        """Return a description of each instance that is not being deleted."""

    @abstractmethod
    def _dead_letters(self) -> list[str]:
        """Return the names of the queues with dead letters."""

    def leftovers(self) -> tuple[str, ...]:
        """Return the NodeClaims, live instances and dead letters, which a cluster without workloads must not have; sorted."""
        claims = [f"NodeClaim {c.metadata.name}" for c in self.server.list(NODECLAIM).items]
        letters = [f"dead letter in {queue}" for queue in self._dead_letters()]
        return tuple(sorted([*claims, *self._live_instances(), *letters]))


@contextmanager
def captured_logs(on_log: Callable[[LogLine], None] | None) -> Iterator[None]:
    """Pass each line of the process's logger, including debug lines, to `on_log` instead of printing it."""
    logger()  # creates the handler whose formatter `capture` uses
    ours = logging.getLogger(SERVICE)
    handlers, level = list(ours.handlers), ours.level
    capture = logging.StreamHandler(_ParsedLines(on_log))
    capture.setFormatter(handlers[0].formatter)
    ours.handlers[:] = [capture]
    ours.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        ours.handlers[:] = handlers
        ours.setLevel(level)


class _ParsedLines(io.StringIO):
    """A log stream that parses each line and passes it to `on_log`."""

    def __init__(self, on_log: Callable[[LogLine], None] | None) -> None:
        super().__init__()
        self._on_log = on_log

    def write(self, text: str) -> int:
        if self._on_log and text.strip():
            self._on_log(json.loads(text))
        return len(text)
