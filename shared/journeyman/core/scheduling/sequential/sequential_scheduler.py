"""One pod at a time: the first place that takes it, tried in Karpenter's order.

Restates: karpenter pkg/controllers/provisioning/scheduling/scheduler.go `add`, `addToExistingNode`,
`addToInflightNode`, `addToNewNodeClaim`; existingnode.go and nodeclaim.go `CanAdd`, `Add`.
Differs: a label that a pool knows nothing of cannot be asked for, be it that another pod of the node refused some
values of it, where Karpenter takes that for a definition; pools of equal weight compete on price; where rules leave
several domains that are equally good, the one that is cheapest for most types is chosen; a node that draws on reserved
capacity is bound to one reservation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np
from msgspec import Struct

from journeyman.core.scheduling.demand.host_ports import HostPort, host_ports
from journeyman.core.scheduling.instance_type_choice import reservation_of
from journeyman.core.scheduling.options import MinValuesPolicy
from journeyman.core.scheduling.problem import Draft, OpenNode, Question
from journeyman.core.scheduling.sequential.candidate_nodes import Attachments, Node, Places
from journeyman.core.scheduling.sequential.offering_masks import NONE, Book, Shares, Shelf, lowest
from journeyman.core.scheduling.sequential.pod_constraints import Ask, Equipped, Equipping, Opening
from journeyman.core.scheduling.sequential.topology_rules import Choice, JoinRule, RuleBook

_Settled = tuple[int, int, "Equipped | None"]
"""What a node is once a pod is on it: its requirements (a number), its offerings, and the devices it gets for the pod."""


class Way(Struct, frozen=True):
    """How to place.

    `generously`: a node has set aside at once what the largest type takes that it may become, else just what it needs
    now. `binding`: pods that required anti-affinity is about are bound to one domain each, else to none. `roomy`: of
    reserved capacity the largest type is taken, else the smallest that holds the pod. `thrifty`: of domains that are
    equally good that with the cheapest offering is chosen, else that which is cheapest for most types. `narrowly`:
    where minValues are a best effort, a node keeps no more choice of types than its pods leave it. `favourite`: which
    of the domains that are equally good is taken, by that order. `by_name`: of NodePools of equal weight that with the
    last name opens nodes, whatever they cost.
    """

    generously: bool = False
    binding: bool = False
    roomy: bool = False
    thrifty: bool = False
    narrowly: bool = False
    favourite: int = 0
    by_name: bool = False


class Placing:
    """All places as they stand, and who is on them."""

    def __init__(self, question: Question, draft: Draft, active: Sequence[int], way: Way) -> None:
        """Begin with what a draft has decided already; it is not changed.

        Args:
            question: What the pass is about.
            draft: The plan so far.
            active: The rows that pods may be placed by.
            way: How to decide what Karpenter leaves to chance, or to the next pass.
        """
        self._question = question
        self._book = Book()
        self._shelves = [Shelf(index, stall, self._book) for index, stall in enumerate(question.stalls)]
        self._tiers = [list(tier) for _, tier in groupby(self._shelves, key=lambda s: s.stall.template.order[0])]
        self._places = Places(question.existing, len(question.axes))
        self._way = way
        self.reserved = 0  # nodes opened on reserved capacity
        self._rules = RuleBook(question, self._shelves, self._book, self._places, active, binding=way.binding)
        self._reservations = draft.reservations.copy()
        self._headroom = [room.copy() for room in draft.headroom]
        self._shares = Shares(self._headroom, generously=way.generously, narrowly=way.narrowly)
        self._asks: dict[int, tuple[Ask, ...]] = {}
        self._added: dict[int, dict[int, int]] = {}
        self._attachments = Attachments(question.existing.rooms)
        self._equipping: Equipping | None = None  # where nobody has ResourceClaims
        if question.devices is not None and draft.devices is not None:
            self._equipping = Equipping(question.devices, draft.devices.copy(), self._book)
        self._standing_ports = [
            tuple(port for pod in node.pods if pod.key not in question.leaving for port in host_ports(pod))
            for node in question.existing.nodes
        ]
        for place, pods in draft.on_existing.items():
            for row, count in pods:
                self._settle_standing(place, row, count)
        for node in draft.opened:
            self._resume(node)

    def _asks_of(self, row: int) -> tuple[Ask, ...]:
        """What pods of a row ask for, term by term."""
        found = self._asks.get(row)
        if found is None:
            rules = self._rules.of(row)
            terms = self._question.rows[row].terms
            found = self._asks[row] = tuple(Ask(self._question, row, term, rules, self._book) for term in terms)
        return found

    def _resume(self, node: OpenNode) -> None:
        """Take over a node that was opened before."""
        shelf = self._shelves[node.stall]
        wanted = self._book.number(node.requirements)
        offerings = shelf.suiting(wanted) & (-1 if reservation_of(node.requirements) else shelf.ordinary)
        for axis, amount in enumerate(node.total.tolist()):
            offerings &= shelf.holding(axis, amount)
        made = Node(shelf=shelf, wanted=wanted, offerings=offerings, total=node.total.tolist(), share=node.share)
        made.variety = self._shares.variety(shelf, made.offerings)
        place = self._places.open(made)
        for row, count in node.pods:
            ports = self._question.rows[row].ports
            made.ports += ports
            made.offerings &= shelf.free_of(ports)
            made.pods[row] = made.pods.get(row, 0) + count
            self._rules.ledger.place_open(place, row, count)
        self._changed(place)

    # -- trying -------------------------------------------------------------------------------------------------------

    def place(self, row: int) -> bool:
        """Put one pod of a row on the first place that takes it."""
        choices: list[Choice] = []
        for rules in self._rules.of(row).keys:
            choice = rules.now()
            if choice is None and (awaiting := rules.awaiting) is not None and self._bind(awaiting):
                choice = rules.now()
            if choice is None:
                return False
            choices.append(choice)
        return any(self._place(ask, choices) for ask in self._asks_of(row))

    def _bind(self, rule: JoinRule) -> bool:
        """Bind a node that has pods to join, but may yet be in several domains, to one that the joiner can be in."""
        key, within = rule.tally.key, rule.within()
        for place in sorted(rule.tally.undecided):
            node = self._places.node(place)
            domains = node.shelf.domains(key, node.offerings, node.wanted)
            for domain in sorted(within & domains.keys(), key=lambda d: (lowest(domains[d]), d)):
                wanted = self._book.narrowed(node.wanted, self._book.pin(key, (domain,)))
                left = node.offerings & node.shelf.suiting(wanted) if wanted != NONE else 0
                if left and self._shares.usable(node.shelf, left, node.share, node.variety):
                    self._narrow(place, node, wanted, left)
                    return True
        return False

    def _narrow(self, place: int, node: Node, wanted: int, offerings: int) -> None:
        node.wanted, node.offerings = wanted, offerings
        if self._equipping is not None:
            self._equipping.decide(place, node.shelf, offerings, None)
        node.share = self._shares.take(node.shelf, offerings, node.share)
        self._measure(place)

    def _place(self, ask: Ask, choices: Sequence[Choice]) -> bool:
        places = self._places
        fitting = ask.may_go(places.size) & places.with_room(ask.amounts) & ask.rules.hosts.admit(places.size)
        for choice in choices:
            key = choice.rules.key
            admitted = [choice.admits(domain) for domain in places.known_domains(key)]
            fitting &= places.in_domains(key, admitted, lacking=not choice.rules.needs_label)
        for place in places.in_order(fitting):
            if self._take(place, ask, choices):
                return True
        return ask.rules.hosts.admit_new and self._open(ask, choices)

    def _take(self, place: int, ask: Ask, choices: Sequence[Choice]) -> bool:
        if place >= self._places.first_open:
            return self._extend(place, ask, choices)
        if _conflict(ask.ports, self._standing_ports[place]) or not self._attachments.admit(place, ask.cls):
            ask.rule_out(place)
            return False
        if ask.cls.claims and self._equipping is not None:
            there = self._added.get(place, {}).get(ask.row, 0)
            if not self._equipping.on_standing(place, ask, there):
                return False
        self._settle_standing(place, ask.row, 1)
        return True

    def _settle_standing(self, place: int, row: int, count: int) -> None:
        cls = self._question.rows[row]
        self._places.take(place, self._question.requests[row] * count)
        self._standing_ports[place] += cls.ports
        self._attachments.attach(place, cls, count)
        self._rules.ledger.place_standing(place, row, count)
        added = self._added.setdefault(place, {})
        added[row] = added.get(row, 0) + count

    def _extend(self, place: int, ask: Ask, choices: Sequence[Choice]) -> bool:
        """Put a pod on a node to open, if some offering then still does; rule the place out if it never will."""
        node = self._places.node(place)
        shelf = node.shelf
        offerings = 0 if not ask.tolerates(shelf) or _conflict(ask.ports, node.ports) else node.offerings
        offerings &= shelf.free_of(ask.ports)
        for axis, amount in ask.amounts:
            offerings &= shelf.holding(axis, node.total[axis] + amount)
        hopeless = True
        for wish in ask.wishes if offerings else ():
            if self._book.narrowed(shelf.offer, wish) == NONE:
                continue  # it asks for a label that only another pod's wish brought up
            wanted = self._book.narrowed(node.wanted, wish)
            if wanted == NONE or not (left := offerings & shelf.suiting(wanted)):
                continue
            hopeless = False
            settled = self._equipped(place, shelf, Opening(wanted, left), ask, choices)
            if settled is not None and self._shares.usable(shelf, settled[1], node.share, node.variety):
                self._put(place, node, ask, settled)
                return True
        if hopeless:
            ask.rule_out(place)
        return False

    def _open(self, ask: Ask, choices: Sequence[Choice]) -> bool:
        """Open a node for a pod: of the first pools by weight that can, the cheapest."""
        for tier in self._tiers:
            ways = [
                (self._rate(shelf, settled[1], opening), shelf.index, settled, opening.reservation)
                for shelf in tier
                for opening in ask.on_new(shelf)
                if (not opening.reservation or self._reservations.left.get(opening.reservation, 0) > 0)
                and (settled := self._equipped(self._places.size, shelf, opening, ask, choices)) is not None
                and self._shares.usable(shelf, settled[1], None, self._least_variety(shelf))
            ]
            if ways:
                _, index, settled, reservation = min(ways, key=lambda way: (*way[:2], way[2][:2], way[3]))
                if reservation:
                    self._reservations.take(reservation, 1)
                    self.reserved += 1
                shelf = self._shelves[index]
                node = Node(shelf=shelf, wanted=shelf.offer, offerings=0, total=[0] * len(self._question.axes))
                node.variety = self._shares.variety(shelf, settled[1])
                self._put(self._places.open(node), node, ask, settled)
                return True
        return False

    def _rate(self, shelf: Shelf, offerings: int, opening: Opening) -> float:
        """The less the better; what is reserved has a price that tells its size, and is paid for already."""
        if self._way.by_name:
            return 0.0  # they are in that order
        price = shelf.price(offerings)
        return -price if opening.reservation and self._way.roomy else price

    def _least_variety(self, shelf: Shelf) -> tuple[int, ...]:
        """What a new node must offer for minValues: all of it, or with BestEffort whatever there is."""
        asked = tuple(shelf.stall.template.min_values.values())
        return asked if self._question.options.min_values is MinValuesPolicy.STRICT else (0,) * len(asked)

    def _equipped(
        self, place: int, shelf: Shelf, opening: Opening, ask: Ask, choices: Sequence[Choice]
    ) -> _Settled | None:
        """The same as `_settled`, once the devices are found that the pod's claims ask for."""
        wanted, offerings, equipped = opening.wanted, opening.offerings, None
        if ask.cls.claims and self._equipping is not None:
            there = self._places.node(place).pods.get(ask.row, 0) if place < self._places.size else 0
            equipped = self._equipping.on_open(place, shelf, opening, ask, there)
            if equipped is None:
                return None
            wanted, offerings = equipped.wanted, equipped.offerings
        settled = self._settled(shelf, wanted, offerings, choices)
        return None if settled is None else (*settled, equipped)

    def _settled(self, shelf: Shelf, wanted: int, offerings: int, choices: Sequence[Choice]) -> tuple[int, int] | None:
        """Requirements and offerings once a domain is settled for every rule; None if that cannot be."""
        if not choices:
            return wanted, offerings
        choice, key = choices[0], choices[0].rules.key
        domains = shelf.domains(key, offerings, wanted)
        if not domains:
            return None if choice.rules.needs_label else self._settled(shelf, wanted, offerings, choices[1:])
        admitted = [domain for domain in domains if choice.admits(domain)]
        if choice.rules.merely_wishes and len(admitted) == len(domains):
            return self._settled(shelf, wanted, offerings, choices[1:])
        if choice.binding:
            admitted = self._by_preference(shelf, choice, {domain: domains[domain] for domain in admitted})
        for pinned in [(domain,) for domain in admitted] if choice.binding else [admitted] if admitted else []:
            narrowed = self._book.narrowed(wanted, self._book.pin(key, pinned))
            left = offerings & shelf.suiting(narrowed) if narrowed != NONE else 0
            settled = self._settled(shelf, narrowed, left, choices[1:]) if left else None
            if settled is not None:
                return settled
        return None

    def _by_preference(self, shelf: Shelf, choice: Choice, domains: Mapping[str, int]) -> list[str]:
        """The domains, given with their offerings, best first; among equally good ones the way has its favourite."""
        cheap = shelf.cheapest_for(domains)
        breadth = {domain: 0 if self._way.thrifty else -types for domain, types in cheap.items()}
        found = sorted(domains, key=lambda d: (choice.rank(d), breadth[d], lowest(domains[d]), d))
        best = sum(choice.rank(domain) == choice.rank(found[0]) for domain in found)
        first = self._way.favourite % best if found else 0
        return [*found[first:best], *found[:first], *found[best:]]

    def _put(self, place: int, node: Node, ask: Ask, settled: _Settled) -> None:
        node.wanted, node.offerings, equipped = settled
        if self._equipping is not None:
            self._equipping.decide(place, node.shelf, node.offerings, equipped)
        for axis, amount in ask.amounts:
            node.total[axis] += amount
        node.ports += ask.ports
        node.pods[ask.row] = node.pods.get(ask.row, 0) + 1
        node.share = self._shares.take(node.shelf, node.offerings, node.share)
        self._rules.ledger.place_open(place, ask.row)
        self._changed(place)

    def _changed(self, place: int) -> None:
        """An open node has one pod more: sort it in again, and bring the columns up to date."""
        self._places.moved(place, sum(self._places.node(place).pods.values()))
        self._measure(place)

    def _measure(self, place: int) -> None:
        """Bring the columns up to date with an open node."""
        node, places = self._places.node(place), self._places
        if node.offerings:
            places.resize(
                place, [node.shelf.largest(axis, node.offerings) - used for axis, used in enumerate(node.total)]
            )
        else:
            places.resize(place, [-1] * len(node.total))
        wanted = self._book[node.wanted]
        for key in places.watched:
            rule = wanted.get(key)
            if rule is not None and rule.single is not None:
                places.settle(place, key, rule.single)
                self._rules.ledger.decided(place, key, rule.single)

    def involves_keeping_apart(self, row: int) -> bool:
        """Whether required anti-affinity over a label other than the host name has a say about the row."""
        rules = self._rules.of(row)
        return any(key.apart for key in rules.keys)

    # -- the result ---------------------------------------------------------------------------------------------------

    def write(self, draft: Draft) -> None:
        """Put everything decided into a draft; nodes to open are in the order they were opened."""
        draft.reservations.left.update(self._reservations.left)
        for room, used in zip(draft.headroom, self._headroom, strict=True):
            room.left = used.left
        if self._equipping is not None:
            draft.devices = self._equipping.allocations
        draft.on_existing = {place: list(pods.items()) for place, pods in sorted(self._added.items())}
        draft.opened = [
            OpenNode(
                stall=node.shelf.index,
                requirements=self._book[node.wanted],
                pods=tuple(node.pods.items()),
                total=np.array(node.total, dtype=np.int64),
                share=node.share,
            )
            for node in self._places.nodes
        ]


def _conflict(ports: Sequence[HostPort], others: Sequence[HostPort]) -> bool:
    return any(port.conflicts(other) for port in ports for other in others)
