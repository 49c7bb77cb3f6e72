"""What is sent: a small event in Journeyman's wire format. Counts and an age, never objects: the step reads the truth itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Final

from infra.forwarder.news import Cause, Parcel, Step
from infra.forwarder.pods import Summary

_WORDS: Final[Mapping[Cause, str]] = {
    Cause.NODE_JOINED: "nodes joined",
    Cause.NODE_READY: "nodes became ready",
    Cause.NODE_NOT_READY: "nodes are no longer ready",
    Cause.NODE_DELETING: "nodes are being deleted",
    Cause.NODE_GONE: "nodes are gone",
    Cause.CLAIM_CREATED: "claims were made by hand",
    Cause.CLAIM_DELETING: "claims are being deleted",
    Cause.CLAIM_GONE: "claims are gone",
    Cause.POOL_CHANGED: "NodePools are new or changed",
    Cause.CLASS_CHANGED: "NodeClasses are new or changed",
}


def is_needless(parcel: Parcel, summary: Summary) -> bool:
    """Whether it tells of pods alone, and they have found a place meanwhile."""
    return not summary.unschedulable and parcel.counts.keys() <= {Cause.POD_UNSCHEDULABLE}


def message(cluster: str, parcel: Parcel, summary: Summary, now: datetime) -> str:
    """The body of the message for a parcel.

    Args:
        cluster: Its registered name.
        parcel: What happened.
        summary: The pods that wait now.
        now: When it is sent.
    """
    body: dict[str, object] = {
        "version": "1",
        "source": "forwarder",
        "id": parcel.id,
        "time": now.isoformat(),
        "cluster": cluster,
        "step": parcel.step.value,
        "reason": reason(parcel, summary),
        "counts": {"pending": summary.pending, "unschedulable": summary.unschedulable, **_counts(parcel)},
    }
    if summary.oldest is not None:
        body["oldestPendingTime"] = summary.oldest.isoformat()
    return json.dumps(body, separators=(",", ":"))


def reason(parcel: Parcel, summary: Summary) -> str:
    """The causes in a person's words."""
    said = [f"{parcel.counts[cause]} {words}" for cause, words in _WORDS.items() if parcel.counts.get(cause)]
    if Cause.STARTED in parcel.counts:
        said.append("the forwarder has started")
    if parcel.step is Step.PROVISION and summary.unschedulable:
        said.insert(0, f"{summary.unschedulable} pods are unschedulable")
    return ", ".join(said)


def _counts(parcel: Parcel) -> dict[str, int]:
    return {cause.value: parcel.counts[cause] for cause in Cause if parcel.counts.get(cause)}
