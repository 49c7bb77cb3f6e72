"""Where runs call the outside: "<step>: <verb> <Kind>[/<subresource>]" or "<step>: <service> <Operation>".

The list is kept by hand and held against what scenarios meet, so that a new outside call fails the build until it stands here;
from then on scenarios make it fail, and make it the last thing a process does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from journeyman.core.api.objects import Resource
from journeyman_simulator.faults.fault_scenario import FaultKind

KUBE_READS: Final = frozenset({"list", "get", "version"})
SERVICES: Final = frozenset({"ec2", "iam", "pricing", "sqs", "ssm"})
_READING_OPERATIONS: Final = ("Describe", "Get", "List")
_HISTORICAL: Final = frozenset({"ec2 DescribeInstances", "ec2 DescribeLaunchTemplates", "iam GetInstanceProfile"})
"""Answers of an account that time changes within a scenario."""

_ANY: Final = (
    FaultKind.FAIL_BEFORE,
    FaultKind.TIMEOUT_BEFORE,
    FaultKind.THROTTLE,
    FaultKind.CRASH_BEFORE,
    FaultKind.CRASH_AFTER,
    FaultKind.PAUSE,
)
_EFFECT: Final = (FaultKind.FAIL_AFTER, FaultKind.TIMEOUT_AFTER)

CALL_SITES: Final = tuple(
    f"{step}: {call}"
    for step, calls in {
        "consolidate": (
            "apply OfferingState",
            "create Event",
            "create Lease",
            "create NodeClaim",
            "create NodeDisruption",
            "delete NodeClaim",
            "ec2 CreateFleet",
            "ec2 CreateLaunchTemplate",
            "ec2 DescribeInstanceTypeOfferings",
            "ec2 DescribeInstanceTypes",
            "ec2 DescribeInstances",
            "ec2 DescribeLaunchTemplates",
            "ec2 DescribeSpotPriceHistory",
            "get Event",
            "get Lease",
            "list CSINode",
            "list DaemonSet",
            "list EC2NodeClass",
            "list Namespace",
            "list Node",
            "list NodeClaim",
            "list NodeDisruption",
            "list NodePool",
            "list OfferingState",
            "list PersistentVolume",
            "list PersistentVolumeClaim",
            "list Pod",
            "list PodDisruptionBudget",
            "list StorageClass",
            "patch Event",
            "patch Lease",
            "patch Node",
            "patch NodeClaim",
            "patch NodeClaim/status",
            "patch NodeDisruption/status",
            "patch OfferingState/status",
            "sqs SendMessageBatch",
        ),
        "interrupt": (
            "apply OfferingState",
            "create Event",
            "delete NodeClaim",
            "ec2 DescribeInstances",
            "get Event",
            "list Node",
            "list NodeClaim",
            "list NodePool",
            "patch Event",
            "patch Node",
            "patch NodeClaim",
            "patch OfferingState/status",
            "sqs SendMessageBatch",
        ),
        "provision": (
            "apply OfferingState",
            "create Event",
            "create Lease",
            "create NodeClaim",
            "delete NodeClaim",
            "ec2 CreateFleet",
            "ec2 CreateLaunchTemplate",
            "ec2 DeleteLaunchTemplate",
            "ec2 DescribeImages",
            "ec2 DescribeInstanceTypeOfferings",
            "ec2 DescribeInstanceTypes",
            "ec2 DescribeInstances",
            "ec2 DescribeLaunchTemplates",
            "ec2 DescribeSecurityGroups",
            "ec2 DescribeSpotPriceHistory",
            "ec2 DescribeSubnets",
            "get Event",
            "get Lease",
            "get NodeClaim",
            "get NodePool",
            "iam AddRoleToInstanceProfile",
            "iam CreateInstanceProfile",
            "iam DeleteInstanceProfile",
            "iam GetInstanceProfile",
            "iam ListInstanceProfiles",
            "iam RemoveRoleFromInstanceProfile",
            "list CSINode",
            "list DaemonSet",
            "list EC2NodeClass",
            "list Namespace",
            "list Node",
            "list NodeClaim",
            "list NodeDisruption",
            "list NodePool",
            "list OfferingState",
            "list PersistentVolume",
            "list PersistentVolumeClaim",
            "list Pod",
            "list PodDisruptionBudget",
            "list StorageClass",
            "patch EC2NodeClass",
            "patch EC2NodeClass/status",
            "patch Event",
            "patch Lease",
            "patch Node",
            "patch NodeClaim",
            "patch NodeClaim/status",
            "patch NodePool",
            "patch NodePool/status",
            "patch OfferingState",
            "patch OfferingState/status",
            "patch Pod/status",
            "sqs SendMessageBatch",
            "ssm GetParameters",
            "version",
        ),
        "sweep": (
            "list EC2NodeClass",
            "list NodeClaim",
            "list NodePool",
            "list Pod",
            "sqs SendMessageBatch",
        ),
        "terminate": (
            "create Event",
            "create Lease",
            "delete Node",
            "delete NodeClaim",
            "delete Pod",
            "ec2 DescribeInstanceStatus",
            "ec2 DescribeInstances",
            "ec2 TerminateInstances",
            "evict Pod",
            "get Event",
            "get Lease",
            "get NodeClaim",
            "list Node",
            "list NodeClaim",
            "list NodePool",
            "list Pod",
            "list VolumeAttachment",
            "patch Event",
            "patch Lease",
            "patch Node",
            "patch NodeClaim",
            "patch NodeClaim/status",
            "patch NodePool",
            "patch NodePool/status",
            "sqs SendMessageBatch",
        ),
    }.items()
    for call in calls
)
"""All of them, by step."""


def kube_site(step: str, verb: str, resource: Resource[Any] | None, subresource: str = "") -> str:
    """The name of a call to the API server; no resource for its version."""
    kind = "" if resource is None else f" {resource.kind}"
    return f"{step}: {verb}{kind}{'/' + subresource if subresource else ''}"


def aws_site(step: str, service: str, operation: str) -> str:
    """The name of a call to the account; `operation` as AWS writes it."""
    return f"{step}: {service} {operation}"


def kinds_of(site: str) -> tuple[FaultKind, ...]:
    """What can go wrong with calls at a site, in the order of `Kind`.

    A read that fails afterwards has failed before. Nobody writes to an account behind our back.
    """
    call = site.partition(": ")[2]
    verb, _, object_ = call.partition(" ")
    possible = set(_ANY)
    if verb in SERVICES:
        if call in _HISTORICAL:
            possible.add(FaultKind.STALE)
        if not object_.startswith(_READING_OPERATIONS):
            possible.update(_EFFECT)
    elif verb == "list":
        possible.update({FaultKind.STALE, FaultKind.LAG})
    elif verb not in KUBE_READS:
        possible.update({*_EFFECT, FaultKind.CONFLICT} if verb != "create" else _EFFECT)
    return tuple(kind for kind in FaultKind if kind in possible)


def has_effect(site: str) -> bool:
    """Whether calls at the site change something outside."""
    return FaultKind.FAIL_AFTER in kinds_of(site)


class FaultCoverage(Struct, kw_only=True):
    """Counts of one scenario, or of many."""

    scenarios: int = 0
    calls: Counter[str] = field(default_factory=Counter)  # by site
    fired: dict[str, Counter[str]] = field(default_factory=dict)  # by site, by kind
    messages: dict[str, Counter[str]] = field(default_factory=dict)  # by queue, by kind

    def count_call(self, site: str) -> None:
        """A call was made."""
        self.calls[site] += 1

    def count_fault(self, site: str, kind: str) -> None:
        """A call went wrong."""
        self.fired.setdefault(site, Counter())[kind] += 1

    def count_message_fault(self, queue: str, kind: str) -> None:
        """A message went wrong."""
        self.messages.setdefault(queue, Counter())[kind] += 1

    def add(self, other: FaultCoverage) -> None:
        """Count another's, too."""
        self.scenarios += other.scenarios
        self.calls.update(other.calls)
        for mine, theirs in ((self.fired, other.fired), (self.messages, other.messages)):
            for place, counts in theirs.items():
                mine.setdefault(place, Counter()).update(counts)

    def sites_without(self, sites: Iterable[str], *kinds: FaultKind) -> tuple[str, ...]:
        """Those of these sites at which none of these kinds has fired."""
        return tuple(site for site in sites if not any(self._fired(site, kind) for kind in kinds))

    def table(self) -> str:
        """For each step, its calls by kinds; "." is a cell that is possible and has not fired, blank one that is impossible."""
        sites = sorted({*self.calls, *self.fired})
        width = max((len(site) for site in sites), default=0)
        lines: list[str] = []
        for step, own in groupby(sites, key=lambda site: site.partition(":")[0]):
            lines += ["", " ".join([f"{step:{width}}", f"{'calls':>8}", *(kind.value for kind in FaultKind)])]
            lines += [self._row(site, width) for site in own]
        lines.append("")
        for queue, counts in sorted(self.messages.items()):
            counted = ", ".join(f"{number} {kind}" for kind, number in sorted(counts.items()))
            lines.append(f"messages to {queue}: {counted}")
        return "\n".join(lines)

    def _row(self, site: str, width: int) -> str:
        call = f"  {site.partition(': ')[2]}"
        cells = (f"{self._cell(site, kind):>{len(kind.value)}}" for kind in FaultKind)
        return " ".join([f"{call:{width}}", f"{self.calls[site]:>8}", *cells]).rstrip()

    def _cell(self, site: str, kind: FaultKind) -> str:
        fired = self._fired(site, kind)
        return str(fired) if fired else "." if kind in kinds_of(site) else ""

    def _fired(self, site: str, kind: FaultKind) -> int:
        return self.fired[site][kind.value] if site in self.fired else 0


def to_json(coverage: FaultCoverage) -> bytes:
    """For one process to hand to another."""
    return msgspec.json.encode(coverage)


def from_json(raw: bytes) -> FaultCoverage:
    """What another process counted."""
    return msgspec.json.decode(raw, type=FaultCoverage, dec_hook=lambda _, counts: Counter(counts))
