"""Defines the invariant checkers' view of a running scenario: cluster, account, queues and runs.

The simulation calls the checkers for every write (`apiserver.Write`, before its caller receives the response), every
change of an instance (`CloudEvent`) and every error that a run reports (`RunError`). Checkers read all other state from
the `ScenarioView`.

Actors are names: "journeyman/<step>" for a run, "human" for a user, "cloud" for the account itself; the cluster's
controllers have their own names (kube-scheduler, kubelet, kube-controller-manager…).
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

HUMAN: Final = "human"
CLOUD: Final = "cloud"
RUN_USER_PREFIX: Final = "journeyman/"


class CloudInstance(Struct, frozen=True, kw_only=True):
    """An instance in its current state."""

    provider_id: str
    instance_type: str
    zone: str
    capacity_type: str
    price: float  # per hour, of its offering
    state: str  # pending, running, stopping, stopped, shutting-down, terminated
    launched_at: datetime
    tags: Mapping[str, str] = field(default_factory=dict)  # at its launch; a user may have edited them since

    @property
    def claim(self) -> str:
        """Return the NodeClaim for which it was launched; empty if the instance lacks the tag."""
        return self.tags.get("karpenter.sh/nodeclaim", "")

    @property
    def runs(self) -> bool:
        """Whether the instance is neither terminated nor shutting down, and so billed."""
        return self.state not in {"shutting-down", "terminated"}


class CloudEvent(Struct, frozen=True, kw_only=True):
    """The launch of an instance, a request to terminate it, or a change of its state."""

    at: datetime
    kind: Literal["launched", "terminate", "state"]
    instance: CloudInstance  # after the event
    by: str


class RunError(Struct, frozen=True, kw_only=True):
    """An error that a run reported. `expected` errors are those of `journeyman.errors`; the others are bugs."""

    at: datetime
    run: str  # "provision#12"
    error: str  # class name
    message: str
    expected: bool
    stack: str = ""


class PendingMessage(Struct, frozen=True, kw_only=True):
    """A message to a step, in a queue or in processing. `at` is when it can be received; for a requeue, when it is due."""

    step: Step
    at: datetime


class ScenarioView(Protocol):
    """The state of the scenario, without the faults and stale reads that runs see."""

    scenario: FaultScenario
    server: ApiServer

    @property
    def clock(self) -> Clock:
        """Return the virtual clock, without clock skew."""
        ...

    def instances(self) -> tuple[CloudInstance, ...]:
        """Return every instance that was launched for this cluster, in order of launch; none of another one with its name."""
        ...

    def pending_messages(self) -> tuple[PendingMessage, ...]:
        """Return the messages that will start a step, including delayed ones, by time."""
        ...

    def active_runs(self) -> tuple[str, ...]:
        """Return the names of the runs in progress, including paused ones: "provision#12"."""
        ...

    def schedule_entries(self) -> Mapping[str, datetime]:
        """Return when each entry for a window's edge fires, by name; empty on a cloud without a scheduler."""
        ...

    def dead_letters(self) -> tuple[str, ...]:
        """Return the bodies of the messages in dead-letter queues."""
        ...
