"""What a checker may see of a scenario that is being told: the cluster, the account, the queues, the runs.

Those who look on are told at once: of every write (`apiserver.Write`, before its caller is answered), of what happens to
instances (`CloudEvent`) and of errors that runs report (`RunError`). Whatever else they ask for, they ask the `Scene`.

Who did something is a name: "journeyman/<step>" for a run, "someone" for a person's hand, "cloud" for the account by
itself; the cluster's own controllers go by theirs (kube-scheduler, kubelet, kube-controller-manager…).
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
    """An instance as EC2 itself knows it now, never stale."""

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
        """The NodeClaim it was launched for; empty if nobody says."""
        return self.tags.get("karpenter.sh/nodeclaim", "")

    @property
    def runs(self) -> bool:
        """Whether it is paid for: neither terminated nor about to be."""
        return self.state not in {"shutting-down", "terminated"}


class CloudEvent(Struct, frozen=True, kw_only=True):
    """Something happened to an instance: it was launched, its end was asked for, or its state changed."""

    at: datetime
    kind: Literal["launched", "terminate", "state"]
    instance: CloudInstance  # after it
    by: str


class RunError(Struct, frozen=True, kw_only=True):
    """A run reported an error. `expected` is one of `journeyman.errors` that may happen; the others are bugs."""

    at: datetime
    run: str  # "provision#12"
    error: str  # the class's name
    message: str
    expected: bool
    stack: str = ""


class WaitingMessage(Struct, frozen=True, kw_only=True):
    """A message on its way to a step, or being handled: `at` is when it can be received, in the requeue queue when it is due."""

    step: Step
    at: datetime


class ScenarioView(Protocol):
    """The scenario as it stands. What is read here is the truth: no fault, no staleness."""

    scenario: FaultScenario
    server: ApiServer
    quiet: bool  # the storm is over, nothing goes wrong any more

    @property
    def clock(self) -> Clock:
        """Virtual time, as it is."""
        ...

    def instances(self) -> tuple[CloudInstance, ...]:
        """Every instance that ever was, by launch."""
        ...

    def waiting(self) -> tuple[WaitingMessage, ...]:
        """Messages that will wake a step, by time; those that a fault holds back included."""
        ...

    def busy(self) -> tuple[str, ...]:
        """Runs under way, parked ones: "provision#12"."""
        ...

    def dead_letters(self) -> tuple[str, ...]:
        """Bodies of messages that ended in a dead-letter queue."""
        ...
