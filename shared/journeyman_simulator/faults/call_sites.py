"""Lists the calls that runs make to the API server and to the cloud with the faults possible at each, and counts both.

A call site is "<step>: <verb> <Kind>[/<subresource>]" or "<step>: <service> <Operation>", with the cloud's names. `call_site_recording` records
the list from a fixed sample of scenarios; a test fails until the recording contains a new call. Scenarios then inject
faults into the call and crash the process there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from journeyman.core.api.objects import Resource
from journeyman_simulator.faults.fault_scenario import FaultKind
from journeyman_simulator.faults.recorded_call_sites import RECORDED_CALL_SITES
from journeyman_simulator.faults.scenario_clouds import CLOUDS

KUBE_READS: Final = frozenset({"list", "get", "version"})
_KUBE_VERBS: Final = KUBE_READS | {"create", "patch", "apply", "delete", "evict"}
_READING_OPERATIONS: Final = ("Describe", "Get", "List", "Show")
_CHANGING_READS: Final = frozenset(call for facts in CLOUDS.values() for call in facts.changing_reads)

_AT_EVERY_CALL: Final = (
    FaultKind.FAIL_BEFORE,
    FaultKind.TIMEOUT_BEFORE,
    FaultKind.THROTTLE,
    FaultKind.CRASH_BEFORE,
    FaultKind.CRASH_AFTER,
    FaultKind.PAUSE,
)
_AFTER_AN_EFFECT: Final = (FaultKind.FAIL_AFTER, FaultKind.TIMEOUT_AFTER)

CALL_SITES: Final[Mapping[str, tuple[str, ...]]] = RECORDED_CALL_SITES
"""All call sites by cloud, sorted. The generator draws faults from them, and crash coverage requires a crash at each."""

UNFINISHED_PHASES: Final = ("Proposed", "Validated", "Replacing", "Draining")
"""Phases in which a command is continued by the next run after a crash; crash coverage requires a crash in each."""

CALLS_AFTER_FAILURES: Final = frozenset(
    {
        "consolidate: cce ShowJob",
        "consolidate: delete FleetPlan",
        "consolidate: patch OfferingState",
        "interrupt: ecs DescribeInstanceHistoryEvents",
        "interrupt: list Event",
        "interrupt: patch NodePool",
        "interrupt: patch NodePool/status",
        "provision: create ChurnLedger",
        "provision: get ChurnLedger",
        "provision: patch ChurnLedger/status",
        "terminate: apply OfferingState",
        "terminate: patch OfferingState/status",
    }
)
"""Calls that steps make only after another call failed, after hours, for pods that do not use their nodes, or for instances that end
as soon as they have started; the recorded sample of some clouds has none of these."""


def kube_site(step: str, verb: str, resource: Resource[Any] | None, subresource: str = "") -> str:
    """Return the site of a call to the API server; the verb `version` has no resource."""
    kind = "" if resource is None else f" {resource.kind}"
    return f"{step}: {verb}{kind}{'/' + subresource if subresource else ''}"


def cloud_site(step: str, service: str, operation: str) -> str:
    """Return the site of a call to the cloud; `operation` is the cloud's name, such as "CreateFleet"."""
    return f"{step}: {service} {operation}"


def step_of(site: str) -> str:
    """Return the step whose runs make the call."""
    return site.partition(":")[0]


def kinds_of(site: str) -> tuple[FaultKind, ...]:
    """Return the faults possible at a site, in the order of `FaultKind`.

    Only calls with an effect can fail after it, and only writes of Kubernetes objects can conflict with another client's.
    """
    call = site.partition(": ")[2]
    verb, _, object_ = call.partition(" ")
    possible = set(_AT_EVERY_CALL)
    if verb not in _KUBE_VERBS:
        if call in _CHANGING_READS:
            possible.add(FaultKind.STALE)
        if not object_.startswith(_READING_OPERATIONS):
            possible.update(_AFTER_AN_EFFECT)
    elif verb == "list":
        possible.update({FaultKind.STALE, FaultKind.LAG})
    elif verb not in KUBE_READS:
        possible.update({*_AFTER_AN_EFFECT, FaultKind.CONFLICT} if verb != "create" else _AFTER_AN_EFFECT)
    return tuple(kind for kind in FaultKind if kind in possible)


def has_effect(site: str) -> bool:
    """Whether calls at the site change the cluster or the account."""
    return FaultKind.FAIL_AFTER in kinds_of(site)


class FaultCoverage(Struct, kw_only=True):
    """Counts of calls and injected faults, of one scenario or of many."""

    scenarios: int = 0
    calls: Counter[str] = field(default_factory=Counter)  # by site
    fired: dict[str, Counter[str]] = field(default_factory=dict)  # by site, by kind
    messages: dict[str, Counter[str]] = field(default_factory=dict)  # by queue, by kind
    crashes: dict[str, Counter[str]] = field(default_factory=dict)  # by method and phase of an unfinished command

    def count_call(self, site: str) -> None:
        """Count a call."""
        self.calls[site] += 1

    def count_fault(self, site: str, kind: str) -> None:
        """Count a fault injected at a call."""
        self.fired.setdefault(site, Counter())[kind] += 1

    def count_message_fault(self, queue: str, kind: str) -> None:
        """Count a fault injected at a message."""
        self.messages.setdefault(queue, Counter())[kind] += 1

    def count_crash_in_phase(self, method: str, phase: str) -> None:
        """Count a crash of the process that continues a command while it was in this phase."""
        self.crashes.setdefault(method, Counter())[phase] += 1

    def add(self, other: FaultCoverage) -> None:
        """Add the counts of `other` to these."""
        self.scenarios += other.scenarios
        self.calls.update(other.calls)
        for counts_here, counts_there in (
            (self.fired, other.fired),
            (self.messages, other.messages),
            (self.crashes, other.crashes),
        ):
            for place, counts in counts_there.items():
                counts_here.setdefault(place, Counter()).update(counts)

    def sites_without(self, sites: Iterable[str], *kinds: FaultKind) -> tuple[str, ...]:
        """Return the sites at which no fault of these kinds was injected."""
        return tuple(site for site in sites if not any(self._fired(site, kind) for kind in kinds))

    def phases_without_crash(self) -> tuple[str, ...]:
        """Return the phases of unfinished commands in which no process crashed."""
        crashed = {phase for counts in self.crashes.values() for phase in counts}
        return tuple(phase for phase in UNFINISHED_PHASES if phase not in crashed)

    def table(self) -> str:
        """Return a table of sites by fault kinds; "." marks a possible fault that was not injected."""
        sites = sorted({*self.calls, *self.fired})
        width = max((len(site) for site in sites), default=0)
        lines: list[str] = []
        for step, own in groupby(sites, key=step_of):
            lines += ["", " ".join([f"{step:{width}}", f"{'calls':>8}", *(kind.value for kind in FaultKind)])]
            lines += [self._row(site, width) for site in own]
        lines.append("")
        for queue, counts in sorted(self.messages.items()):
            counted = ", ".join(f"{number} {kind}" for kind, number in sorted(counts.items()))
            lines.append(f"messages to {queue}: {counted}")
        for method, counts in sorted(self.crashes.items()):
            counted = ", ".join(f"{counts[phase]} {phase}" for phase in UNFINISHED_PHASES if counts[phase])
            lines.append(f"commands of {method} at a crash of consolidate: {counted}")
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
    """Encode the counts for another process."""
    return msgspec.json.encode(coverage)


def from_json(raw: bytes) -> FaultCoverage:
    """Decode the counts of another process."""
    return msgspec.json.decode(raw, type=FaultCoverage, dec_hook=lambda _, counts: Counter(counts))
