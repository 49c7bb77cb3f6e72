"""How much of a shared device's capacity a request consumes.

Restates: karpenter pkg/scheduling/dynamicresources/consumable_capacity.go `calculateConsumedCapacity`,
`violatesPolicy`.
"""

from __future__ import annotations

from msgspec import Struct

from journeyman.core.api import quantity
from journeyman.core.api.dra import DeviceCapacity
from journeyman.core.api.objects import QuantityText
from journeyman.errors import InvalidQuantityError


class Capacity(Struct, frozen=True, kw_only=True):
    """One capacity of a device, in nano units: `total`, and what may be asked for.

    `default` is what a request gets that asks for nothing; `values` (ascending) or `lowest` to `highest` in steps of
    `step` are the amounts there are, others are rounded up. Without either every amount will do.
    """

    total: int
    default: int | None = None
    values: tuple[int, ...] = ()
    lowest: int | None = None
    highest: int | None = None
    step: int | None = None

    @classmethod
    def of(cls, published: DeviceCapacity) -> Capacity:
        """The capacity as a driver publishes it. Raises InvalidQuantityError."""
        policy = published.request_policy
        total = amount(published.value)
        if policy is None:
            return cls(total=total)
        default = _optional(policy.default)
        allowed = policy.valid_range
        if allowed is None:
            return cls(total=total, default=default, values=tuple(amount(value) for value in policy.valid_values))
        return cls(
            total=total,
            default=default,
            lowest=_optional(allowed.min) or 0,
            highest=_optional(allowed.max),
            step=_optional(allowed.step),
        )

    def consumed(self, asked: int | None) -> int | None:
        """What a request for so much takes (None: it says nothing); None if the device never gives that."""
        if asked is None:
            return self.total if self.default is None else self.default
        if self.values:
            return next((value for value in self.values if value >= asked), None)
        taken = asked if self.lowest is None else self._in_range(asked, self.lowest)
        return None if self.highest is not None and taken > self.highest else taken

    def _in_range(self, asked: int, lowest: int) -> int:
        if asked <= lowest or not self.step:
            return max(asked, lowest)
        return lowest - (lowest - asked) // self.step * self.step


def amount(text: QuantityText) -> int:
    """A quantity in nano units. Raises InvalidQuantityError, also if it is negative."""
    nano = quantity.parse(text).nano
    if nano < 0:
        raise InvalidQuantityError(f"{text!r} is negative", quantity=str(text))
    return nano


def _optional(text: QuantityText | None) -> int | None:
    return None if text is None else amount(text)
