"""What can be bought for a set of pods: offerings of all NodePools of one order, reduced to those worth considering.

For every wish and every offering there is one bit: may they meet? Offerings with the same bits, the same type and pool
differ in price only, so the cheapest stands for them; and one that is neither cheaper nor larger anywhere than another
of the same bits can be left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct

from journeyman.core.scheduling.arrays import Bools, Floats, Ints, numbered, undominated
from journeyman.core.scheduling.offering.min_values import varied_sizes, with_variety
from journeyman.core.scheduling.offering.offers import OfferTable
from journeyman.core.scheduling.offering.stalls import Stall
from journeyman.core.scheduling.offering.wishes import Variant, Wish, variants_of


class Market(Struct, frozen=True, kw_only=True, eq=False):
    """Offers for a list of wishes, by price, then pool order, then type name.

    Arrays run over offers. `stalls` are indices into the stalls given, `variants` into `variants_by_stall`, `types`
    into the template's types. `signatures` index `allowed`, which tells by signature and wish whether they may meet.
    `prices` include what the pool charges for a node as such, `fees`. `stock` is the reservation that an offer draws
    on, an index into `reservations`, or -1.
    """

    stalls: Ints
    variants: Ints
    types: Ints
    prices: Floats
    fees: Floats
    sizes: Ints
    signatures: Ints
    allowed: Bools
    stock: Ints
    reservations: tuple[str, ...]
    variants_by_stall: tuple[tuple[Variant, ...], ...]

    def only(self, offers: Bools | Ints) -> Market:
        """The same with some of the offers."""
        return Market(
            stalls=self.stalls[offers],
            variants=self.variants[offers],
            types=self.types[offers],
            prices=self.prices[offers],
            fees=self.fees[offers],
            sizes=self.sizes[offers],
            signatures=self.signatures[offers],
            allowed=self.allowed,
            stock=self.stock[offers],
            reservations=self.reservations,
            variants_by_stall=self.variants_by_stall,
        )


def open_market(stalls: Sequence[Stall], wishes: Sequence[Wish], varied: Ints | None = None) -> Market:
    """All offers that suit any wish; per stall, variant, type and signature the cheapest.

    Args:
        stalls: NodePools of one order.
        wishes: What there is to place.
        varied: The axes that anybody asks for; if given, offers of pools with minValues are only as large as enough
            differing types are.
    """
    variants = tuple(variants_of(stall.template, wishes) for stall in stalls)
    reservations = tuple(sorted({name for stall in stalls for name in stall.template.table.reservations}))
    signatures: dict[bytes, int] = {}
    parts = [
        part
        for index, stall in enumerate(stalls)
        for part in _parts(_Place(index, stall, variants[index], reservations, varied), wishes, signatures)
    ]
    place = np.concatenate([p[0] for p in parts] or [np.zeros((5, 0), dtype=np.int64)], axis=1)
    stall, variant, types, numbers, stock = place
    fees = np.array([s.template.node_surcharge for s in stalls])[stall]
    prices = np.concatenate([p[1] for p in parts] or [np.zeros(0)]) + fees
    order = np.lexsort((types, variant, stall, prices))
    packed = np.frombuffer(b"".join(signatures), dtype=np.uint8).reshape(len(signatures), -(-len(wishes) // 8))
    sizes = np.concatenate((*(p[2] for p in parts), stalls[0].sizes[:0]))
    return Market(
        stalls=stall[order],
        variants=variant[order],
        types=types[order],
        prices=prices[order],
        fees=fees[order],
        sizes=sizes[order],
        signatures=numbers[order],
        allowed=np.unpackbits(packed, axis=1, count=len(wishes)).astype(bool),
        stock=stock[order],
        reservations=reservations,
        variants_by_stall=variants,
    )


_Part = tuple[Ints, Floats, Ints]
"""Some offers: (stall, variant, type, signature, stock) by column, prices, sizes."""


class _Place(Struct, frozen=True):
    """One stall among those of a market."""

    index: int
    stall: Stall
    variants: Sequence[Variant]
    reservations: Sequence[str]
    varied: Ints | None

    def stock_of(self, rows: Ints) -> Ints:
        """The reservations that rows draw on, as the market numbers them."""
        table = self.stall.template.table
        numbers = [-1, *(self.reservations.index(name) for name in table.reservations)]
        stock: Ints = np.array(numbers, dtype=np.int64)[table.row_reservation[rows] + 1]
        return stock


def _parts(place: _Place, wishes: Sequence[Wish], signatures: dict[bytes, int]) -> Iterator[_Part]:
    """The offers of one stall by variant; `signatures` numbers the packed bits, and learns new ones."""
    stall = place.stall
    table = stall.template.table
    served = [(w, wish) for w, wish in enumerate(wishes) if stall.serves(wish)]
    if not served:
        return
    terms = [(w, term) for w, wish in served for term in wish.terms]
    by_term = np.array([rows for _, wish in served for rows in stall.rows_by_term(wish)], dtype=bool)
    rows = np.flatnonzero(np.logical_or.reduce(by_term, axis=0))
    codes, patterns = numbered(by_term[:, rows])
    rows, codes = _cheapest(table, rows, codes)
    owners = np.array([w for w, _ in terms])
    stock = place.stock_of(rows)
    for v, variant in enumerate(place.variants):
        admitted = np.array([variant.admits(term) for _, term in terms], dtype=bool)
        bits: Bools = np.zeros((len(wishes), len(patterns)), dtype=bool)
        np.logical_or.at(bits, owners, (patterns & admitted).T)
        wanted: Bools = bits.T
        types, sizes = table.row_type[rows], stall.sizes[table.row_type[rows]]
        if place.varied is not None and stall.template.min_values:
            wanted = with_variety(stall.template, types, codes, wanted)
            sizes = varied_sizes(stall.template, types, stall.sizes, (codes, wanted), place.varied)
        packed = np.packbits(wanted, axis=1)
        numbers = np.array([signatures.setdefault(row.tobytes(), len(signatures)) for row in packed], dtype=np.int64)
        kept = np.flatnonzero(np.logical_or.reduce(wanted, axis=1)[codes])
        columns = (
            np.full(len(kept), place.index),
            np.full(len(kept), v),
            types[kept],
            numbers[codes[kept]],
            stock[kept],
        )
        yield np.stack(columns), table.prices[rows[kept]], sizes[kept]


def _cheapest(table: OfferTable, rows: Ints, codes: Ints) -> tuple[Ints, Ints]:
    """Of rows with equal type, code and reservation the cheapest, in the table's order."""
    types, stock, prices = table.row_type[rows], table.row_reservation[rows], table.prices[rows]
    order = np.lexsort((rows, prices, stock, codes, types))
    groups = np.stack((types, codes, stock))[:, order]
    first = np.flatnonzero(np.concatenate(([True], (groups[:, 1:] != groups[:, :-1]).any(axis=0))))
    chosen = np.sort(order[first])
    return rows[chosen], codes[chosen]


def worth_considering(market: Market, axes: Ints) -> Bools:
    """Offers that no other of the same signature beats: at most its price and at least its size on every axis.

    One that draws on a reservation may run out, and so beats only others that draw on the same.
    """
    worth: Bools = np.zeros(len(market.prices), dtype=bool)
    sizes = market.sizes[:, axes]
    groups = market.signatures * (len(market.reservations) + 1) + market.stock + 1
    order = np.lexsort((-sizes.sum(axis=1), market.prices, groups))  # of equally dear ones the larger first
    known: dict[bytes, Ints] = {}  # many groups offer the same at the same prices
    for members in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1):
        offered = sizes[members]
        key = offered.tobytes()
        if key not in known:
            known[key] = undominated(offered)
        worth[members[known[key]]] = True
    return worth
