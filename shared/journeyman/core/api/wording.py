"""Parts of messages: numbers with their nouns, lists that stay short, and amounts as people write them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from journeyman.core.api.resources import (
    CPU,
    EPHEMERAL_STORAGE,
    MEMORY,
    NODES,
    PODS,
    format_amount,
    is_huge_pages,
)

SHOWN: Final = 5
"""How many entries of a list a message shows."""
_UNITS: Final = tuple((unit, 1024**power) for power, unit in reversed(tuple(enumerate("KMGTPE", 1))))
_HUNDREDTHS: Final = 100


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: `1 node`, `0 nodes`. `plural` is the noun's plural, by default with an `s`."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def verb_of(number: int, singular: str, plural: str) -> str:
    """Return the verb's form for so many things: `is` or `are`."""
    return singular if number == 1 else plural


def listed(items: Iterable[str], joint: str = "or", shown: int = SHOWN) -> str:
    """Return the items as text, `a, b or c`; of many the first ones, and how many more there are."""
    entries = list(items)
    more = len(entries) - shown
    if more > 1:  # one more is as short as its number
        return f"{', '.join(entries[:shown])} {joint} {more} others"
    return f" {joint} ".join(filter(None, (", ".join(entries[:-1]), *entries[-1:])))


def describe_amount(name: str, amount: int, *, round_up: bool = False) -> str:
    """Return an amount with the name of its resource: `1.5 vCPU`, `7.45Gi memory`, `2 nvidia.com/gpu`.

    Bytes are rounded down to hundredths of their unit, or up.
    """
    if name == CPU:
        return f"{amount / 1000:g} vCPU"
    if name in {NODES, PODS}:
        return counted(amount, name.removesuffix("s"))
    text = readable(name, amount, round_up=round_up)
    return f"{text} of {name}" if text.endswith(("byte", "bytes")) else f"{text} {name}"


def readable(name: str, amount: int, *, round_up: bool = False) -> str:
    """Return an amount of a resource with its unit, in few digits: `1.5`, `7.45Gi`, `12 bytes`."""
    if name not in {MEMORY, EPHEMERAL_STORAGE} and not is_huge_pages(name):
        return format_amount(name, amount)
    for unit, size in _UNITS:
        if abs(amount) >= size:
            hundredths = -(-amount * _HUNDREDTHS // size) if round_up else amount * _HUNDREDTHS // size
            whole, part = divmod(hundredths, _HUNDREDTHS)
            return f"{whole}.{part:02d}".rstrip("0").rstrip(".") + f"{unit}i"
    return counted(amount, "byte")
