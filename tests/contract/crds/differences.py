"""Values that Karpenter's CRDs accept and Journeyman's reject, each with its reason: none of them works with Karpenter.

Journeyman's CRDs accept every other value that Karpenter's accept, with the same defaults. Karpenter rejects most of these
values later, when it marks the object as not ready; Journeyman rejects them when they are applied. Stored objects stay valid:
the API server validates only the changed fields of an update.
"""

from __future__ import annotations

import re
from enum import Enum


class Difference(Enum):
    """A difference: a regular expression for Journeyman's error ("field: message"), and the reason for it."""

    NOT_A_KEY = (
        r"[.](key|value): .*(should match|Too long|at most 253)|labels: .*qualified names",
        "Kubernetes has no such label or taint; Karpenter marks the NodePool as not ready",
    )
    NOT_A_VALUE = (
        r"[.]values\[\d+\]: .*(should match|Too long)|must have a single positive integer",
        "no label has such a value; Karpenter's pattern is at the list, where it says nothing, and its scheduler reads digits alone",
    )
    NO_CAPACITY_TYPE = (
        r"capacity-type' with operator 'In'",
        "nothing can be launched; Karpenter marks the NodePool as not ready",
    )
    TAINT_TWICE = (
        r"same key and effect twice",
        "a node has one taint of a key and effect; Karpenter marks the NodePool as not ready",
    )
    KNOWN_RESOURCE = (
        r"capacity: .*resource restricted",
        "the provider knows how much there is; Karpenter marks the NodeOverlay as not ready",
    )
    UNREADABLE_DURATION = (
        r"2562047h47m16s",
        "Go cannot read it: with one such object in the cluster Karpenter can list none of its kind",
    )
    UNREADABLE_QUANTITY = (
        r"(limits|requests|capacity)[.].*(should match '\^\\\+\?|Too long)",
        "no quantity, though Kubernetes' published pattern has it: with one such object Karpenter can list none of its kind",
    )
    NEGATIVE = (
        r"(limits|requests|capacity)[.].*(should match '\^\\\+\?|greater than or equal to 0)",
        "there is no negative amount of a resource",
    )
    NO_SIZE = (
        r"volumeSize: .*should match",
        "`Ti` alone, an empty alternative in Karpenter's pattern; EC2 refuses the launch",
    )
    NO_SPEC = (
        r"spec: Required",
        "there is nothing to launch from an EC2NodeClass without spec",
    )
    NO_SUCH_NAME = (
        r"nodeClassRef[.](group|kind|name): Too long",
        "no object or kind has so long a name",
    )
    TOO_MUCH = (
        r"(values|[tT]aints|capacity|tags): Too many|(expireAfter|Period|After|duration|schedule|nodes|price|priceAdjustment): Too long",
        "what a rule costs is estimated from bounds: 1,000 values, 100 taints, 100 tags (EC2 takes 50), 64 letters of a duration",
    )

    def __init__(self, refusal: str, because: str) -> None:
        self.refusal = re.compile(refusal, re.DOTALL)
        self.because = because


def explained(causes: tuple[str, ...]) -> bool:
    """Return whether all errors are listed differences."""
    return all(any(difference.refusal.search(cause) for difference in Difference) for cause in causes)
