"""The rules between pods as they concern one row, and what they leave it of a label's domains at this moment.

Restates: karpenter pkg/controllers/provisioning/scheduling/topologygroup.go `nextDomainTopologySpread`,
`nextDomainAffinity`, `nextDomainAntiAffinity`.
Differs: several rules over one label must agree on a domain before one is chosen, where Karpenter lets each choose
alone and fails if they differ.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import Struct, field

from journeyman.core.scheduling.arrays import Bools
from journeyman.core.scheduling.one_by_one.tallies import DomainTally, HostTally


class SpreadRule(Struct, frozen=True):
    """A spread over a label's domains; `own` is 1 if it counts its own pods.

    `eligible` are the domains whose emptiest the others are compared with.
    """

    tally: DomainTally
    max_skew: int
    min_domains: int
    own: int
    eligible: frozenset[str]

    @property
    def highest(self) -> int:
        """The most pods a domain may hold before one more of these goes there."""
        counts = self.tally.counts
        few = len(self.eligible) < self.min_domains
        floor = 0 if few else min((counts.get(domain, 0) for domain in self.eligible), default=0)
        return floor + self.max_skew - self.own


class JoinRule(Struct, frozen=True):
    """Affinity over a label's domains; `starts`: where nobody is whom it could join, a pod may be the first.

    `reaches` tells whether the pod's node selector and affinity allow a domain; `within` which ones it can have a node in.
    """

    tally: DomainTally
    starts: bool
    reaches: Callable[[str], bool]
    within: Callable[[], frozenset[str]]

    @property
    def options(self) -> frozenset[str]:
        """The domains with someone to join."""
        return frozenset(d for d, n in self.tally.counts.items() if n > 0 and self.reaches(d))


class KeyRules(Struct):
    """All rules over one label other than the host name.

    `apart`: there may be nobody of these in the domain; `repelled`: domains that running pods keep free of it;
    `beside`: better where these are already. `binding`: its node must be bound to one domain. `needs_label`: a node
    without the label will not do.
    """

    key: str
    spreads: list[SpreadRule] = field(default_factory=list)
    joins: list[JoinRule] = field(default_factory=list)
    apart: list[DomainTally] = field(default_factory=list)
    beside: list[DomainTally] = field(default_factory=list)
    repelled: frozenset[str] = frozenset()
    binding: bool = False
    needs_label: bool = False

    @property
    def merely_wishes(self) -> bool:
        """Whether they are nothing but wishes to keep away."""
        strict = self.spreads or self.joins or self.repelled
        return not strict and all(tally.as_claimed for tally in self.apart)

    @property
    def awaiting(self) -> JoinRule | None:
        """An affinity to pods that are all on nodes whose domain is open: one of these must be bound first."""
        return next((rule for rule in self.joins if rule.tally.undecided and not rule.options), None)

    def now(self) -> Choice | None:
        """What they leave at this moment; None if certainly nothing, or if a node must be bound first (`awaiting`)."""
        joined: frozenset[str] | None = None
        starting = False
        for rule in self.joins:
            options = rule.options
            if not options:
                if not rule.starts or rule.tally.undecided:
                    return None
                starting = True
                continue
            joined = options if joined is None else joined & options
        highest = tuple(spread.highest for spread in self.spreads)
        return Choice(self, highest, joined, self.binding or starting)


class Choice(Struct, frozen=True):
    """What is left of a label's domains for a pod right now.

    `highest`, by spread: the most pods a domain may hold. `joined`: the domains it may join (None: any). `binding`: its
    node must be bound to one domain.
    """

    rules: KeyRules
    highest: tuple[int, ...]
    joined: frozenset[str] | None
    binding: bool

    def admits(self, domain: str) -> bool:
        """Whether the pod may go to this domain."""
        rules = self.rules
        if self.joined is not None and domain not in self.joined:
            return False
        if domain in rules.repelled or any(tally.counts.get(domain) for tally in rules.apart):
            return False
        return all(
            spread.tally.possible.get(domain, 0) <= most
            for spread, most in zip(rules.spreads, self.highest, strict=True)
        )

    def rank(self, domain: str) -> tuple[int, ...]:
        """Smaller is better: the emptiest by spread; then where others are already of whom some keep away."""
        counts = [spread.tally.counts.get(domain, 0) for spread in self.rules.spreads]
        return (*counts, sum(not tally.counts.get(domain) for tally in self.rules.beside))


class HostRules(Struct):
    """All rules over the host name.

    `most`: counts that a place may not exceed; `joins`: somebody of these must be there (True: or nobody anywhere);
    `repelled`: existing nodes that running pods keep free of it, as places.
    """

    most: list[tuple[HostTally, int]] = field(default_factory=list)
    joins: list[tuple[HostTally, bool]] = field(default_factory=list)
    repelled: tuple[int, ...] = ()

    def admit(self, size: int) -> Bools:
        """Which of the first `size` places will do."""
        found: Bools = np.ones(size, dtype=bool)
        for tally, most in self.most:
            found &= tally.up_to(size) <= most
        for tally, starts in self.joins:
            if tally.total or not starts:
                found &= tally.up_to(size) > 0
        if self.repelled:
            found[list(self.repelled)] = False
        return found

    @property
    def admit_new(self) -> bool:
        """Whether a node of its own will do."""
        return all(most >= 0 for _, most in self.most) and all(starts and not t.total for t, starts in self.joins)


class Rules(Struct):
    """The rules of one row."""

    hosts: HostRules
    keys: tuple[KeyRules, ...]
