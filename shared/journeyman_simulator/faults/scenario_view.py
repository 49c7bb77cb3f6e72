"""The view of a running scenario for invariant checkers: cluster, account, queues and runs.

Checkers are called on every write (`apiserver.Write`, before its caller is answered), on every change of an instance
(`CloudEvent`) and on errors that runs report (`RunError`). Everything else they read from the `ScenarioView`.

Actors are names: "journeyman/<step>" for a run, "human" for a person, "cloud" for the account by itself; the cluster's own
controllers use theirs (kube-scheduler, kubelet, kube-controller-manager…).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final, Literal, Protocol

from msgspec import Struct, field

from journeyman.core.plan import Step
from journeyman.ports import Clock
from journeyman_simulator.apiserver import ApiServer
from journeyman_simulator.faults.fault_scenario import FaultScenario

HUMAN: Final = "someone"
CLOUD: Final = "cloud"
RUN_USER_PREFIX: Final = "journeyman/"


class CloudInstance(Struct, frozen=True, kw_only=True):
    """An instance as EC2 knows it now, never stale."""

    provider_id: str
    instance_type: str
    zone: str
    capacity_type: str
    price: float  # per hour, of its offering
    state: str  # pending, running, stopping, stopped, shutting-down, terminated
    launched_at: datetime
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def claim(self) -> str:
        """The NodeClaim it was launched for; empty without the tag."""
        return self.tags.get("karpenter.sh/nodeclaim", "")

    @property
    def runs(self) -> bool:
        """Whether it is billed: neither terminated nor shutting down."""
        return self.state not in {"shutting-down", "terminated"}


class CloudEvent(Struct, frozen=True, kw_only=True):
    """An instance was launched, was asked to terminate, or changed its state."""

    at: datetime
    kind: Literal["launched", "terminate", "state"]
    instance: CloudInstance  # after the event
    by: str


class RunError(Struct, frozen=True, kw_only=True):
    """An error that a run reported. `expected` errors are of `journeyman.errors` and may happen; others are bugs."""

    at: datetime
    run: str  # "provision#12"
    error: str  # class name
    message: str
    expected: bool
    stack: str = ""


class WaitingMessage(Struct, frozen=True, kw_only=True):
    """A message to a step, waiting or in processing: `at` is when it can be received, in the requeue queue when it is due."""

    step: Step
    at: datetime


class ScenarioView(Protocol):
    """The true state of the scenario: without faults or staleness."""

    scenario: FaultScenario
    server: ApiServer
    quiet: bool  # whether faults have ended

    @property
    def clock(self) -> Clock:
        """Virtual time, without clock skew."""
        ...

    def instances(self) -> tuple[CloudInstance, ...]:
        """Return every instance ever launched, by launch."""
        ...

    def waiting(self) -> tuple[WaitingMessage, ...]:
        """Return messages that will start a step, by time; delayed ones included."""
        ...

    def busy(self) -> tuple[str, ...]:
        """Return the names of runs in progress and paused runs: "provision#12"."""
        ...

    def dead_letters(self) -> tuple[str, ...]:
        """Return the bodies of messages in dead-letter queues."""
        ...
