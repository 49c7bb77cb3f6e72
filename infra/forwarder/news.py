"""What is worth telling, and what is owed: news is collapsed into one open batch for each step, and kept until delivered.

Pure: time is a parameter. Nothing here grows with the cluster or with the length of an outage: a lane keeps a count for
each cause, and one number that stands for the news in it.

==================  ==================  ===========================================================================
cause               wakes               because
==================  ==================  ===========================================================================
pod unschedulable   provision           it needs a node
node joined         provision           it is to be registered: labels, taints, pod nominations
node ready          provision           it is to be initialized
node not ready      terminate           its instance may be gone
node deleting       terminate           it is to be drained, and its claim goes with it
node gone           provision,          what ran there pends;
                    terminate           what its claim still holds is to be let go
claim created       provision           somebody else made it (without a NodePool); ours are launched by who made them
claim deleting      terminate           it is to be drained
claim gone          provision           its share of the pool's limits is free again
pool changed        provision           it is new or asks for something else: it is judged, and may have room for pods
class changed       provision           the same, of a NodeClass; one in deletion is to be let go
started             provision,          what happened while nobody watched is unknown;
                    terminate           only a cluster that has claims can have missed anything
==================  ==================  ===========================================================================
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final, NamedTuple

from infra.forwarder.batching import Batch


class Step(str, Enum):
    """The steps that the forwarder wakes; each has a lane of its own."""

    PROVISION = "provision"
    TERMINATE = "terminate"


class Cause(str, Enum):
    """Why a step is woken; the value is the key in the message's counts."""

    POD_UNSCHEDULABLE = "podsNewlyUnschedulable"
    NODE_JOINED = "nodesJoined"
    NODE_READY = "nodesReady"
    NODE_NOT_READY = "nodesNotReady"
    NODE_DELETING = "nodesDeleting"
    NODE_GONE = "nodesGone"
    CLAIM_CREATED = "claimsCreated"
    CLAIM_DELETING = "claimsDeleting"
    CLAIM_GONE = "claimsGone"
    POOL_CHANGED = "nodePoolsChanged"
    CLASS_CHANGED = "nodeClassesChanged"
    STARTED = "forwarderStarted"


_BOTH: Final = (Step.PROVISION, Step.TERMINATE)
WAKES: Final[Mapping[Cause, tuple[Step, ...]]] = {
    Cause.POD_UNSCHEDULABLE: (Step.PROVISION,),
    Cause.NODE_JOINED: (Step.PROVISION,),
    Cause.NODE_READY: (Step.PROVISION,),
    Cause.NODE_NOT_READY: (Step.TERMINATE,),
    Cause.NODE_DELETING: (Step.TERMINATE,),
    Cause.NODE_GONE: _BOTH,
    Cause.CLAIM_CREATED: (Step.PROVISION,),
    Cause.CLAIM_DELETING: (Step.TERMINATE,),
    Cause.CLAIM_GONE: (Step.PROVISION,),
    Cause.POOL_CHANGED: (Step.PROVISION,),
    Cause.CLASS_CHANGED: (Step.PROVISION,),
    Cause.STARTED: _BOTH,
}


class News(NamedTuple):
    """One thing worth telling: what happened, to which object, at which of its versions."""

    cause: Cause
    name: str
    version: str

    @property
    def fingerprint(self) -> int:
        """The same number in every process that sees this."""
        text = "/".join((self.cause.value, self.name, self.version))
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "big")


class Parcel(NamedTuple):
    """A batch that was taken to be sent. `id` is the same in every replica that collected the same news."""

    step: Step
    counts: Mapping[Cause, int]
    fingerprint: int

    @property
    def id(self) -> str:
        """For deduplication: at most 128 letters and digits and dashes, as SQS wants it."""
        return f"{self.step.value}-{self.fingerprint:032x}"


class _Lane:
    """What one step is owed."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.counts: Counter[Cause] = Counter()
        self.fingerprint = 0

    def add(self, counts: Mapping[Cause, int], fingerprint: int) -> None:
        self.counts.update(counts)
        self.fingerprint ^= fingerprint

    def parcel(self, step: Step) -> Parcel:
        taken = Parcel(step, self.counts, self.fingerprint)
        self.counts, self.fingerprint = Counter(), 0
        return taken


class Ledger:
    """What is owed to each step. Not safe for several threads by itself.

    Args:
        idle_seconds: A batch closes after so long without news.
        max_seconds: And so long after it opened at the latest.
    """

    def __init__(self, idle_seconds: float = 1.0, max_seconds: float = 10.0) -> None:
        self._lanes = {step: _Lane(Batch(idle_seconds, max_seconds)) for step in Step}

    def note(self, news: Iterable[News], now: float) -> bool:
        """Take in what happened; True if anything did."""
        noted = False
        for item in news:
            noted = True
            for step in WAKES[item.cause]:
                self._lanes[step].add({item.cause: 1}, item.fingerprint)
                self._lanes[step].batch.add(now)
        return noted

    def due(self) -> float | None:
        """When the next batch is to be sent; None if nothing is owed."""
        return min((due for lane in self._lanes.values() if (due := lane.batch.due()) is not None), default=None)

    def take(self, now: float, *, hurry: bool = False) -> tuple[Parcel, ...]:
        """The batches that are due, or with `hurry` all there are; each must be said to be `delivered` or `failed`."""
        return tuple(
            lane.parcel(step)
            for step, lane in self._lanes.items()
            if (lane.batch.hurry() if hurry else lane.batch.take(now))
        )

    def delivered(self, parcel: Parcel) -> None:
        """It was handed over, or turned out not to be worth it."""
        self._lanes[parcel.step].batch.sent()

    def failed(self, parcel: Parcel, now: float, *, least_seconds: float = 0.0, jitter: float = 1.0) -> None:
        """It was not: what it held is owed again, after a pause (`Batch.failed`)."""
        lane = self._lanes[parcel.step]
        lane.add(parcel.counts, parcel.fingerprint)
        lane.batch.failed(now, least_seconds=least_seconds, jitter=jitter)
