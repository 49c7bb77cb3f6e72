"""Why a pod has no place, per NodePool and in words that say what to change.

Each pool is asked step by step (taints, labels, size, stock, limits), and the first step at which nothing is left is
its reason, with counts. The nearer a pool came to taking the pod, the more its reason says, so those come first.

Restates: karpenter pkg/controllers/provisioning/scheduling/nodeclaim.go `InstanceTypeFilterError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Final

from journeyman.core.api import labels
from journeyman.core.scheduling.arrays import Bools, Ints
from journeyman.core.scheduling.demand.classes import PodClass
from journeyman.core.scheduling.demand.topology import Group
from journeyman.core.scheduling.explaining.pool_view import Ask, Found, PoolView, ask_of
from journeyman.core.scheduling.explaining.smallest_change import (
    Case,
    in_words,
    rules_at_work,
    smallest_change,
    where_volumes_are,
)
from journeyman.core.scheduling.limits import Headroom
from journeyman.core.scheduling.offering.stalls import Stall
from journeyman.core.scheduling.requirements import EMPTY
from journeyman.core.scheduling.results import PodError, PoolReason
from journeyman.core.scheduling.taints import in_words as taint_in_words

# Most helpful first: the nearer a pool came to taking the pod, the more its reason says.
_RANKS: Final = ("rules", "min-values", "limits", "offerings", "resources", "requirements", "taints", "not-usable")
# What the stock of an offering is marked with when it could not be had, in words
_STOCK: Final = {"InsufficientCapacity": "out of stock", "SpotInterruption": "interrupted lately", "": "unavailable"}
_NAMED_RESOURCES: Final = 2

MOST_SEARCHES: Final = 256
"""For so many kinds of pods the smallest change is looked for; a cluster with more has one cause, not thousands."""


class Explainer:
    """Explains what is left of one pass; pods that ask for the same are explained once."""

    def __init__(
        self,
        *,
        axes: Sequence[str],
        stalls: Sequence[Stall],
        headroom: Sequence[Headroom],
        set_aside: Mapping[str, str],
        others: Iterable[Group] = (),
        strict_min_values: bool = True,
        searches: int = MOST_SEARCHES,
    ) -> None:
        """Explain how things stand at the end of the pass.

        Args:
            axes: Resource names.
            stalls: All NodePools in use, in order.
            headroom: Their limits as they stand now.
            set_aside: NodePools not in use, with why.
            others: Whom other pods keep away from, whether they run or are to be placed as well.
            strict_min_values: Whether a pool whose minValues cannot be met opens no node.
            searches: For how many kinds of pods the smallest change is looked for at most (0: where nobody reads it).
        """
        self._axes = axes
        self._stalls, self._headroom = stalls, headroom
        self._strict_min_values = strict_min_values
        self._set_aside = set_aside
        self._others = tuple({group.id: group for group in others}.values())
        self._searches = searches
        self._known: dict[object, PodError] = {}

    @cached_property
    def _pools(self) -> tuple[PoolView, ...]:
        """Made when first asked, so that a pass that leaves nothing pays nothing."""
        both = zip(self._stalls, self._headroom, strict=True)
        return tuple(PoolView(stall, room, strict_min_values=self._strict_min_values) for stall, room in both)

    def explain(self, cls: PodClass, request: Ints, *, stuck: str = "") -> PodError:
        """The error of a class's pods that no existing node and no NodePool took.

        Args:
            cls: The class at its last rung, where nothing is merely preferred.
            request: What one pod takes, along the axes.
            stuck: What the rules about other pods say, in words.
        """
        rules = tuple(group.id for group in (*(s.group for s in cls.spreads), *cls.anti_affinities, *cls.affinities))
        key = (cls.terms, cls.volume_terms, cls.tolerations, request.tobytes(), stuck, rules, cls.ports)
        if key not in self._known:
            self._known[key] = self._explain(cls, ask_of(cls, request), stuck)
        return self._known[key]

    def _explain(self, cls: PodClass, ask: Ask, stuck: str) -> PodError:
        unusable = [PoolReason(node_pool=n, kind="not-usable", detail=why) for n, why in self._set_aside.items()]
        case = Case(cls=cls, ask=ask, axes=self._axes, pools=self._pools, others=self._others)
        found = [_reason(pool, case, stuck or _rules_in_words(case)) for pool in self._pools]
        reasons = sorted((*found, *unusable), key=lambda r: (_RANKS.index(r.kind), r.node_pool))
        details = {r.node_pool: r.detail for r in reasons}
        if not found:
            why = "; ".join(f"{name}: {detail}" for name, detail in details.items())
            message = f"no NodePool can be used ({why})" if why else "there is no NodePool: create one"
            return PodError(kind="no-nodepool", message=message, by_node_pool=details, reasons=tuple(reasons))
        message = "; ".join(f"NodePool {name}: {detail}" for name, detail in details.items())
        change = self._change(case)
        return PodError(
            kind="limits" if reasons[0].kind == "limits" else "unschedulable",
            message=f"{message}. Smallest change: {change}" if change else message,
            by_node_pool=details,
            reasons=tuple(reasons),
            smallest_change=change,
        )

    def _change(self, case: Case) -> str:
        if self._searches <= 0 or case.cls.claims:  # what would be enough of devices is not looked for
            return ""
        self._searches -= 1
        return smallest_change(case)


def _reason(pool: PoolView, case: Case, stuck: str) -> PoolReason:
    """The first step at which a pool has nothing left for the pod."""
    found = pool.find(case.ask)
    kind, detail, until = _first_failure(pool, case, found, stuck)
    return PoolReason(
        node_pool=pool.name,
        kind=kind,
        detail=detail,
        types_total=pool.types_total,
        types_suiting=int(found.suiting.sum()),
        types_fitting=int(found.fitting.sum()),
        types_available=int(found.had.sum()),
        unavailable_until=until,
    )


def _first_failure(pool: PoolView, case: Case, found: Found, stuck: str) -> tuple[str, str, datetime | None]:
    ask, axes = case.ask, case.axes
    taint = pool.untolerated(ask)
    if taint is not None:
        return "taints", f"the pod did not tolerate taint {taint_in_words(taint)}", None
    if not found.suiting.any():
        unmet = pool.unmet(ask) or "all that the pod requires of its node"
        none = f"none of its {pool.types_total} instance types has {unmet}"
        return "requirements", f"{pool.refusal(ask) or none}{_volumes_in_words(case.cls)}", None
    if not found.fitting.any():
        return "resources", _too_small(pool, ask, found, axes), None
    fits = f"{_needs(pool, ask, found, axes)}{int(found.fitting.sum())} of {pool.types_total} types fit"
    if not found.had.any():
        words, until = _out_of_stock(pool, ask, found.rows)
        return "offerings", f"{fits}, none offered{words}{_volumes_in_words(case.cls)}", until
    if not found.allowed.any():
        left = ", ".join(
            in_words(name, max(int(n), 0)) for name, n in zip(pool.headroom.resources, pool.headroom.left, strict=True)
        )
        return "limits", f"{fits}, its limits leave no room for any of them (left: {left})", None
    alike = pool.too_alike(found.allowed)
    if alike:
        return "min-values", f"{fits}, too few to choose from for its minValues ({alike})", None
    if pool.only_reserved(found):
        return "offerings", f"{fits}, but only as reserved capacity, of which none is left", None
    return "rules", f"{fits}, but {stuck}", None


def _rules_in_words(case: Case) -> str:
    """What to say if nobody knows more than that other pods are in the way: whose rules these may be."""
    own = "; ".join(rule for _, rule in rules_at_work(case.cls))
    if not own:
        return "the rules of other pods keep the pod off all of them"
    return f"the pod's rules keep it off all of them: {own}"


def _volumes_in_words(cls: PodClass) -> str:
    """Where the pod's volumes can be had, if that is not everywhere."""
    return "" if cls.volume_terms == (EMPTY,) else f" (its volumes: {where_volumes_are(cls)})"


def _needs(pool: PoolView, ask: Ask, found: Found, axes: Sequence[str]) -> str:
    """The resources that rule out the most types, if any do."""
    sizes = pool.stall.sizes[found.suiting]
    short = [(int((sizes[:, a] < ask.request[a]).sum()), name, int(ask.request[a])) for a, name in enumerate(axes)]
    worst = sorted((s for s in short if s[0]), key=lambda s: (-s[0], s[1]))[:_NAMED_RESOURCES]
    return f"needs {' and '.join(in_words(name, asked) for _, name, asked in worst)}: " if worst else ""


def _too_small(pool: PoolView, ask: Ask, found: Found, axes: Sequence[str]) -> str:
    """Which resources are short or not there at all, and how much of each there is at most."""
    sizes = pool.stall.sizes[found.suiting]
    absent = [name for a, name in enumerate(axes) if ask.request[a] > 0 >= sizes[:, a].max()]
    if absent:
        return f"none of the {len(sizes)} types that suit has any {' or '.join(absent)}"
    alone = [a for a in range(len(axes)) if (sizes[:, a] < ask.request[a]).all()]
    most = ", ".join(in_words(axes[a], int(sizes[:, a].max())) for a in alone)
    together = f" (at most {most} for pods)" if most else " (each is enough on some type, but on none together)"
    return f"{_needs(pool, ask, found, axes)}none of the {len(sizes)} types that suit is large enough{together}"


def _out_of_stock(pool: PoolView, ask: Ask, rows: Bools) -> tuple[str, datetime | None]:
    """Where nothing can be had, why and until when, from the offerings that would have done."""
    causes = pool.lack(rows)
    until = min((time for _, time in causes if time is not None), default=None)
    reasons = sorted({reason for reason, _ in causes})
    why = ", ".join(_STOCK.get(reason, reason) for reason in reasons)
    when = f" until {until:%H:%M} UTC" if until is not None else " now" if reasons == [""] else ""
    return f"{_where(ask)}: {why}{when}", until


def _where(ask: Ask) -> str:
    """The zones and capacity types that the pod is bound to, in words."""
    words = ""
    for key, name in ((labels.ZONE, "zone"), (labels.CAPACITY_TYPE, "capacity type")):
        wishes = [term.get(key) for term in ask.terms]
        values = {value for wish in wishes if wish is not None and not wish.complement for value in wish.values}
        if values and None not in wishes:
            words += f" in {name} {' or '.join(sorted(values))}"
    return words
