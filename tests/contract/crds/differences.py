"""What Karpenter's CRDs and Journeyman's treat differently, each with its reason; docs/differences.md lists the same.

Everything else they admit or refuse alike, with the same defaults. Of what both admit Journeyman's models reject what cannot
work (`Reported`): the steps skip the object, set a condition and record an Event.
"""

from __future__ import annotations

import re
from enum import Enum


class Difference(Enum):
    """A difference: a regular expression for the error ("field: message"), the reason for it, and the only kind that has it, if any."""

    def __init__(self, error: str, because: str, only: str = "") -> None:
        self.error = re.compile(error, re.DOTALL)
        self.because = because
        self.only = only


class Reported(Difference):
    """Values that both CRDs admit and the models reject; the expression is for the model's error."""

    NOT_A_KEY = (r"is not a label key", "Kubernetes has no such label or taint")
    NOT_A_VALUE = (r"is not a label value|single whole number", "no label has such a value")
    NO_CAPACITY_TYPE = (
        r"capacity-type with operator In must (name one of|have at least minValues)",
        "there is no such capacity type, so nothing can be launched",
    )
    TAINT_TWICE = (r"taint .* appears \d+ times", "a node has one taint of a key and effect")
    KNOWN_RESOURCE = (r"set by the cloud provider; only extended", "the provider knows how much there is")
    NO_PRICE = (r"is too large for a price", "it is infinite")
    NEGATIVE = (r"is negative", "there is no negative amount of a resource")
    NO_QUANTITY = (
        r"is not a quantity",
        "`1e1.5` is none; the CRD of CapacityBuffers, which is the Kubernetes autoscalers', admits it",
    )
    NO_SIZE = (r"is not a volume size", "`Ti` and `T` alone have no number")
    NO_SPEC = (r"spec.*Field required|spec.*required, but missing", "there is nothing to launch from")
    TOO_MANY_TAGS = (r"tags are too many", "a resource in EC2 has at most 50")


class Refused(Difference):
    """Values that only Journeyman's CRDs refuse; the expression is for the API server's error."""

    UNREADABLE_DURATION = (
        r"2562047h47m16s",
        "Go cannot read a duration of over 292 years: with one such object Karpenter can list none of its kind",
    )
    UNREADABLE_QUANTITY = (
        r"should match '\^\[\+-\]\?\(\[0-9\]\+",
        (
            "an exponent with a point (`1e1.5`) is no quantity: with one such object Karpenter can list none of its kind; "
            "and with one of more than three digits it computes that many"
        ),
    )
    OTHER_CLOUDS_LABEL = (
        r"label domain \"karpenter[.](k8s[.]alibabacloud|alibabacloud[.]com|k8s[.]huawei)\" is restricted",
        (
            "the labels of Alibaba Cloud's and Huawei Cloud's instances are reserved as those of AWS's are; Karpenter's CRDs have "
            "those of one cloud"
        ),
    )
    ADDED_FIELD = (
        (
            r"spec[.](tags|preInstall|postInstall|agencyName|metadataOptions|securityReinforcementType|spotPriceLimit"
            r"|imsSelector[.]imageID)"
        ),
        "karpenter-provider-huawei does not have these fields of a CCENodeClass, and drops them",
        "CCENodeClass",
    )


class Admitted(Difference):
    """Values that only Karpenter's CRDs refuse; the expression is for the API server's error."""

    LATER_DEFAULT = (
        r"disruption[.]consolidateAfter: Required",
        "Karpenter 1.15 gives `consolidateAfter` a default inside `disruption`, too",
    )
    LATER_LABEL = (
        r"label domain \"karpenter.k8s.aws\" is restricted",
        (
            "Karpenter 1.15 has the label `karpenter.k8s.aws/nitro-sandbox`; NodeOverlays may also select by tenancy, placement "
            "group and capacity reservation, which Karpenter's CRD has for NodePools only"
        ),
    )
    LATER_KUBELET = (
        r"spec[.]kubelet",
        "Karpenter 1.15 admits every kubelet setting; a mistake there is the condition ValidationSucceeded",
    )
    EVERY_SIZE = (r"volumeSize: .*should match", "Karpenter's pattern omits 18Ti, 19Ti, 28Ti and so on")
    EMPTY = (
        r"aints\[\d+\][.]value: .*should match|'id' is mutually exclusive, cannot be set along with",
        "a taint's empty value and an empty list of capacity reservations are the same as none",
    )


def explained(causes: tuple[str, ...], kind: type[Difference], of: str = "") -> bool:
    """Return whether all errors, of an object of the kind `of`, are listed differences of this kind."""
    listed = [difference for difference in kind if difference.only in ("", of)]
    return all(any(difference.error.search(cause) for difference in listed) for cause in causes)
