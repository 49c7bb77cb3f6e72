"""The smallest change that would give a pod a place: tried, not guessed.

Changes are tried in the order in which people are likely to want them (a toleration, another zone or capacity type, a
smaller request, a higher limit, patience, volumes elsewhere, a NodePool more); the first kind is told that suffices
alone. Where nothing but rules between pods is in the way, it is one of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.resources import CPU, MEMORY, PODS, format_amount
from journeyman.core.scheduling.arrays import Ints, distinct
from journeyman.core.scheduling.demand.classes import PodClass
from journeyman.core.scheduling.demand.topology import Group
from journeyman.core.scheduling.explaining.pool_view import Ask, PoolView, ask_of
from journeyman.core.scheduling.requirements import EMPTY, Requirements, likely_meant, of, requirement
from journeyman.core.scheduling.taints import in_words as taint_in_words

_SHORT_NAMES = {labels.ZONE: "zone", labels.CAPACITY_TYPE: "capacity type", labels.INSTANCE_TYPE: "instance type"}


class Case(Struct, frozen=True, kw_only=True, eq=False):
    """A pod without a place: its class, what it asks, and the pools there are.

    `others` is whom other pods keep away from, whether they run or are to be placed as well.
    """

    cls: PodClass
    ask: Ask
    axes: Sequence[str]
    pools: Sequence[PoolView]
    others: Sequence[Group]


def smallest_change(case: Case) -> str:
    """The change, in words."""
    if any(pool.takes(case.ask) for pool in case.pools):
        return _relaxed_rule(case)
    for attempt in (_tolerated, _allowed_value, _smaller_request, _raised_limit, _later, _moved_volumes):
        found = attempt(case)
        if found:
            return found
    return "create a NodePool that suits it"


def _tolerated(case: Case) -> str:
    taints = {taint_in_words(t): t for pool in case.pools if (t := pool.untolerated(case.ask)) is not None}
    for name in sorted(taints):
        ask = case.ask.tolerating(taints[name])
        if any(pool.takes(ask) for pool in case.pools):
            return f"tolerate taint {name}"
    return ""


def _allowed_value(case: Case) -> str:
    """One label that is written as it was probably meant, or not asked about: with the cheapest value that would do."""
    asked = {key for term in case.cls.terms for key in term}
    for key in (*(k for k in _SHORT_NAMES if k in asked), *sorted(asked - _SHORT_NAMES.keys())):
        found = _respelled(case, key) or _without(case, key)
        if found:
            return found
    return ""


def _respelled(case: Case, key: str) -> str:
    known = {name for pool in case.pools for name in pool.stall.template.requirements}
    if key in known or key in labels.WELL_KNOWN:
        return ""
    meant = likely_meant(key, known)
    terms = [of(replace(r, key=meant) if k == key else r for k, r in t.items()) for t in case.cls.terms]
    ask = ask_of(case.cls, case.ask.request, terms)
    return f"write label {key} as {meant}" if meant and any(pool.takes(ask) for pool in case.pools) else ""


def _without(case: Case, key: str) -> str:
    terms = [Requirements({k: r for k, r in term.items() if k != key}) for term in case.cls.terms]
    ask = ask_of(case.cls, case.ask.request, terms)
    taking = [pool for pool in case.pools if pool.takes(ask)]
    if not taking:
        return ""
    value = min(filter(None, (_cheapest_value(pool, ask, key) for pool in taking)), default=(0.0, ""))[1]
    if value and any(pool.takes(_also(case, key, value)) for pool in taking):
        return f"allow {_SHORT_NAMES[key]} {value}" if key in _SHORT_NAMES else f"allow label {key}={value}"
    return f"drop its requirement on {_SHORT_NAMES.get(key, f'label {key}')}"


def _also(case: Case, key: str, value: str) -> Ask:
    """The same with one more value allowed for a label."""
    terms = [
        Requirements(
            {**term, key: requirement(key, "In", (*term[key].values, value) if not term[key].complement else (value,))}
        )
        for term in case.cls.terms
        if key in term
    ]
    return ask_of(case.cls, case.ask.request, terms)


def _cheapest_value(pool: PoolView, ask: Ask, key: str) -> tuple[float, str] | None:
    """(Price, value of the label) of the pool's cheapest offering for the pod; None if that leaves the label open."""
    template = pool.stall.template
    table, found = template.table, pool.find(ask)
    rows = np.flatnonzero(found.rows & table.available & found.allowed[table.row_type])
    price = float(table.prices[rows].min())
    codes, values = table.row_values(key)
    cheapest = distinct(codes[rows[table.prices[rows] == price]])
    own = template.requirements.get(key)
    open_to = min(values[code] or "" for code in cheapest)
    value = open_to or (own.single if own is not None else None)
    return (price, value) if value else None


def _smaller_request(case: Case) -> str:
    """The largest amount of one resource that some node would have; of several resources the one that changes least."""
    request = case.ask.request
    found: list[tuple[float, str, int]] = []
    for a in map(int, np.flatnonzero(request)):
        name, asked = case.axes[a], int(request[a])
        most = max((_most(pool, case.ask, a) for pool in case.pools), default=0)
        if name != PODS and 0 <= most < asked and (most or name not in (CPU, MEMORY)):
            found.append((1 - most / asked, name, most))
    if not found:
        return ""
    _, name, most = min(found)
    asked = int(request[list(case.axes).index(name)])
    if not most:
        return f"request no {name}, or create a NodePool whose instance types have it"
    return f"request at most {in_words(name, most)} (it asks for {in_words(name, asked)})"


def _most(pool: PoolView, ask: Ask, axis: int) -> int:
    """How much of one resource a pod could ask of the pool, all else as it is; -1 if it would not help."""
    if pool.untolerated(ask) is not None:
        return -1
    request: Ints = ask.request.copy()
    request[axis] = 0
    allowed = pool.find(replace(ask, request=request)).allowed
    request[axis] = most = int(pool.stall.sizes[allowed, axis].max(initial=-1))
    return most if most >= 0 and pool.takes(replace(ask, request=request)) else -1


def _raised_limit(case: Case) -> str:
    """The least that a pool's limits would have to grow: fewest resources first, then the least in proportion."""
    found = [raised for pool in case.pools if (raised := _least_raise(pool, case.ask)) is not None]
    return min(found)[2] if found else ""


def _least_raise(pool: PoolView, ask: Ask) -> tuple[int, float, str] | None:
    """(Resources to raise, by how much in proportion to a node, in words) for one pool; None if that would not help."""
    types = np.flatnonzero(pool.find(ask).had)
    if not len(types) or pool.untolerated(ask) is not None:
        return None
    room = pool.headroom
    short = np.maximum(room.costs[types] - room.left, 0)
    shares = (short / np.maximum(room.costs[types], 1)).sum(axis=1)
    counts = np.count_nonzero(short, axis=1)
    best = int(np.lexsort((shares, counts))[0])
    if not counts[best]:
        return None
    lacking = ((name, int(n)) for name, n in zip(room.resources, short[best], strict=True) if n)
    words = " and ".join(f"{name} by {format_amount(name, n)}" for name, n in lacking)
    return int(counts[best]), float(shares[best]), f"raise NodePool {pool.name}'s limit on {words}"


def _later(case: Case) -> str:
    """The earliest time at which an offering may be had again that would do."""
    times: list[datetime] = []
    for pool in case.pools:
        if pool.untolerated(case.ask) is None:
            table, found = pool.stall.template.table, pool.find(case.ask)
            lost = found.rows & ~table.available & pool.room[table.row_type]
            times += [until for _, until in pool.lack(lost) if until is not None]
    return f"wait until {min(times):%Y-%m-%d %H:%M} UTC, when stock is looked for again" if times else ""


def _moved_volumes(case: Case) -> str:
    ask = replace(case.ask, terms=case.cls.terms)
    helps = case.cls.volume_terms != (EMPTY,) and any(pool.takes(ask) for pool in case.pools)
    return f"have its volumes elsewhere than {where_volumes_are(case.cls)}" if helps else ""


def where_volumes_are(cls: PodClass) -> str:
    """Where the pods' volumes can be had, in words."""
    return " or ".join(" and ".join(map(str, term.values())) for term in cls.volume_terms)


def _relaxed_rule(case: Case) -> str:
    """The one rule about other pods that can be in the way, where there is but one."""
    rules, keys = list(rules_at_work(case.cls)), _kept_away_over(case)
    if len(rules) == 1 and not keys:
        verb, rule = rules[0]
        return f"{verb} its {rule}"
    if keys and not rules:
        return f"relax the pod anti-affinity of other pods over {' and '.join(keys)}, which keeps it away"
    return "relax its rules about other pods, or theirs about it"


def _kept_away_over(case: Case) -> list[str]:
    """The labels over which other pods keep away from the class's, by rules that it does not have itself."""
    cls, own = case.cls, {group.id for group in case.cls.anti_affinities}
    wide = (g for g in case.others if g.id not in own and g.key != labels.HOSTNAME)
    return sorted({group.key for group in wide if group.counts(cls.namespace, cls.labels)})


def rules_at_work(cls: PodClass) -> Iterator[tuple[str, str]]:
    """Each rule that could keep the class's pods off a new node, in words, and what could be done with it.

    A new node has a host name of its own, so that no spread or anti-affinity over host names closes it.
    """
    for spread in cls.spreads:
        if spread.key != labels.HOSTNAME:
            least = f", minDomains {spread.min_domains}" if spread.min_domains > 1 else ""
            yield "relax", f"topology spread over {spread.key} (maxSkew {spread.max_skew}{least})"
    for group in cls.anti_affinities:
        if group.key != labels.HOSTNAME:
            yield "give up", f"pod anti-affinity over {group.key} to {group.in_words}"
    for group in cls.affinities:
        yield "give up", f"pod affinity over {group.key} to {group.in_words}"
    for port in cls.ports:
        yield "give up", f"host port {port.port}"


def in_words(name: str, amount: int) -> str:
    """An amount with the resource's name, as one says it."""
    return f"{amount / 1000:g} vCPU" if name == CPU else f"{format_amount(name, amount)} {name}"
