"""Parses and formats Kubernetes quantities exactly: `1500m`, `1.5Gi`, `2e3`, `-0.5`. Integers only, never floats.

A `Quantity` is a whole number of nano units (10⁻⁹), which is the finest step Kubernetes knows, and the notation it
was written in, which decides how it is written back.

Restates: k8s.io/apimachinery pkg/api/resource/quantity.go `ParseQuantity`, `CanonicalizeBytes`, suffix.go.
Differs: a number needs at least one digit (upstream reads a bare `m` as zero); exponents beyond ±999 are rejected, of
numbers with over 2,000 digits the first count; a decimal amount of 10²¹ and more is written with an exponent, where
upstream drops the suffix it has no letter for.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache
from typing import Final

from msgspec import Struct

from journeyman.errors import InvalidQuantityError

NANO: Final = 10**9
"""Nano units in one whole unit."""

PATTERN: Final = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?0*[0-9]{1,3})?$"
"""The pattern of quantities, for CRDs. Kubernetes' own also matches ones that it cannot read, such as `1e1.5`."""

_GRAMMAR: Final = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<fraction>[0-9]*))?(?P<suffix>[KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?",
    re.ASCII,
)
_DECIMAL_EXPONENTS: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY_EXPONENTS: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL_SUFFIXES: Final = {exponent: suffix for suffix, exponent in _DECIMAL_EXPONENTS.items()}
_BINARY_SUFFIXES: Final = {exponent: suffix for suffix, exponent in _BINARY_EXPONENTS.items()}
_MAX_SHOWN: Final = 64  # characters of a text in messages
_MAX_CACHED: Final = 64  # characters of a text that is kept
_MAX_EXPONENT: Final = 999
_MAX_DIGITS: Final = 2000  # before and after the point; Python converts up to 4,300
_MAX_BINARY: Final = (2**63 - 1) * NANO  # quantity.go `maxAllowed`: caps binary notation only
ALLOWED: Final = "write a number such as 2, 0.5 or 1e3, or one with a suffix: n u m k M G T P E (decimal), Ki Mi Gi Ti Pi Ei (binary)"


class Format(str, Enum):
    """The notation of a quantity."""

    DECIMAL_SI = "DecimalSI"
    BINARY_SI = "BinarySI"
    DECIMAL_EXPONENT = "DecimalExponent"


class Quantity(Struct, frozen=True, kw_only=True):
    """An exact amount in units of 10⁻⁹ (`nano`); `str()` returns Kubernetes' canonical text."""

    nano: int
    format: Format = Format.DECIMAL_SI

    def units(self, *, round_up: bool) -> int:
        """Return whole units (bytes, counts), rounded up or down."""
        return _divide(self.nano, NANO, round_up=round_up)

    def milli(self, *, round_up: bool) -> int:
        """Return thousandths (millicores), rounded up or down."""
        return _divide(self.nano, NANO // 1000, round_up=round_up)

    def __str__(self) -> str:
        if self.nano == 0:
            return "0"
        if self.format is Format.BINARY_SI and self.nano % NANO == 0 and abs(self.nano) >= 1024 * NANO:
            return _binary_text(self.nano // NANO)
        return _decimal_text(self.nano, with_exponent=self.format is Format.DECIMAL_EXPONENT)


def parse(value: str | int | float) -> Quantity:
    """Return the exact amount of a quantity.

    Args:
        value: The text, or a JSON number as hand-written YAML may hold it. A float is read as it prints.

    Raises:
        InvalidQuantityError: The value is not a quantity. The message says what is allowed.
    """
    if isinstance(value, str):
        return _parse_cached(value) if len(value) <= _MAX_CACHED else _parse_text(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidQuantityError(f"{value!r} is not a quantity: {ALLOWED}", quantity=repr(value))
    return _parse_cached(repr(value))


def from_milli(amount: int, format: Format = Format.DECIMAL_SI) -> Quantity:  # noqa: A002 - the field's name
    """Return a quantity of this many thousandths."""
    return Quantity(nano=amount * (NANO // 1000), format=format)


def from_units(amount: int, format: Format = Format.DECIMAL_SI) -> Quantity:  # noqa: A002 - the field's name
    """Return a quantity of this many units."""
    return Quantity(nano=amount * NANO, format=format)


@lru_cache(maxsize=16384)
def _parse_cached(text: str) -> Quantity:
    return _parse_text(text)


def _parse_text(text: str) -> Quantity:
    match = _GRAMMAR.fullmatch(text)
    if match is None or not (match["whole"] or match["fraction"]):
        shown = _shown(text)
        raise InvalidQuantityError(f"{shown!r} is not a quantity: {ALLOWED}", quantity=shown)
    whole, fraction = match["whole"].lstrip("0"), (match["fraction"] or "").rstrip("0")
    if len(whole) > _MAX_DIGITS:
        whole, fraction = "9" * _MAX_DIGITS, ""
    if len(fraction) > _MAX_DIGITS:
        fraction = f"{fraction[:_MAX_DIGITS]}1"  # amounts are rounded up
    nano, notation = _scale(int(whole + fraction or "0"), len(fraction), match["suffix"] or "", text)
    return Quantity(nano=-nano if match["sign"] == "-" else nano, format=notation)


def _shown(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def _scale(digits: int, decimals: int, suffix: str, text: str) -> tuple[int, Format]:
    """Return `digits` × 10^-decimals × suffix in nano units, rounded away from zero, and the notation."""
    if suffix in _BINARY_EXPONENTS:
        scaled = _divide(digits * NANO << _BINARY_EXPONENTS[suffix], 10**decimals, round_up=True)
        # Kubernetes formats an amount below one in decimal notation
        return min(scaled, _MAX_BINARY), Format.DECIMAL_SI if 0 < scaled < NANO else Format.BINARY_SI
    if suffix in _DECIMAL_EXPONENTS:
        exponent, notation = _DECIMAL_EXPONENTS[suffix], Format.DECIMAL_SI
    else:
        power_text = suffix[1:].lstrip("+-0")
        if len(power_text) > len(str(_MAX_EXPONENT)):
            shown = _shown(text)
            raise InvalidQuantityError(
                f"{shown!r} is not a quantity: its exponent is beyond ±{_MAX_EXPONENT}", quantity=shown
            )
        exponent, notation = int(power_text or "0") * (-1 if suffix[1] == "-" else 1), Format.DECIMAL_EXPONENT
    power = exponent - decimals + 9
    if power >= 0:
        return digits * 10**power, notation
    return _divide(digits, 10**-power, round_up=True), notation


def _divide(amount: int, divisor: int, *, round_up: bool) -> int:
    return -(-amount // divisor) if round_up else amount // divisor


def _binary_text(units: int) -> str:
    exponent = 0
    while units % 1024 == 0 and exponent < max(_BINARY_SUFFIXES):
        units //= 1024
        exponent += 10
    return f"{units}{_BINARY_SUFFIXES.get(exponent, '')}"


def _decimal_text(nano: int, *, with_exponent: bool) -> str:
    mantissa, exponent = nano, -9
    while mantissa % 1000 == 0:
        mantissa //= 1000
        exponent += 3
    if exponent == 0:
        return str(mantissa)
    if with_exponent or exponent not in _DECIMAL_SUFFIXES:
        return f"{mantissa}e{exponent}"
    return f"{mantissa}{_DECIMAL_SUFFIXES[exponent]}"
