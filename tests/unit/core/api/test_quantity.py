"""Quantities, compared with Kubernetes' parser."""

import json
from decimal import Decimal
from pathlib import Path

import pytest

from journeyman.core.api import quantity
from journeyman.core.api.quantity import NANO, Format, Quantity
from journeyman.errors import InvalidQuantityError

RECORDED = json.loads((Path(__file__).parent / "recorded" / "quantities.json").read_text())["cases"]


@pytest.mark.parametrize(("text", "canonical", "amount"), RECORDED)
def test_quantities_equal_kubernetes(text, canonical, amount):
    """Validity, exact amount and canonical text equal those recorded from Kubernetes."""
    if not canonical:
        with pytest.raises(InvalidQuantityError):
            quantity.parse(text)
        return
    parsed = quantity.parse(text)
    assert parsed.nano == Decimal(amount) * NANO
    assert str(parsed) == canonical


@pytest.mark.parametrize(
    ("value", "nano"), [(2, 2 * NANO), (0.5, NANO // 2), (1e22, 10**22 * NANO), (1e-9, 1), (-3, -3 * NANO)]
)
def test_json_numbers_are_read_as_printed(value, nano):
    """A float is the decimal that it shows, not its binary value."""
    assert quantity.parse(value).nano == nano


@pytest.mark.parametrize(
    "value", ["m", "Ki", ".", "1e1000", "1e-1000", "1e1.5", "\uff11", "1\n", "inf", float("nan"), True, None, [1]]
)
def test_invalid_quantity_is_rejected_with_the_text(value):
    """Absurd lengths and exponents and other alphabets are invalid, too."""
    with pytest.raises(InvalidQuantityError, match=r"is not a quantity: ") as caught:
        quantity.parse(value)
    assert str(value)[:60] in str(caught.value)


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("1e100", 10**100),
        ("1e-999", 1),
        ("9" * 65, 10**65 - 1),
        (f"{'0' * 5000}7", 7),
        (f"0.{'0' * 5000}1", 1),
        ("9" * 5000, 10**2000 - 1),
        ("1e0000000000000100", 10**100),
    ],
    ids=("exponent", "small", "digits", "zeros", "fraction", "too many digits", "zeros in the exponent"),
)
def test_quantities_of_any_length_are_read(text, units):
    """Kubernetes reads them, too; of over 2,000 digits the number is as good as infinite."""
    assert quantity.parse(text).units(round_up=True) == units


@pytest.mark.parametrize(
    ("text", "up", "down"), [("1500m", 2, 1), ("-1500m", -1, -2), ("2", 2, 2), ("1n", 1, 0), ("0", 0, 0)]
)
def test_units_round_up_or_down(text, up, down):
    """Requests round up and capacity down, below zero too."""
    parsed = quantity.parse(text)
    assert (parsed.units(round_up=True), parsed.units(round_up=False)) == (up, down)


def test_millicores_round_up_or_down():
    """A ten-thousandth of a core is a millicore when requested, and none when available."""
    parsed = quantity.parse("0.0001")
    assert (parsed.milli(round_up=True), parsed.milli(round_up=False)) == (1, 0)


def test_amount_is_formatted_in_the_given_notation():
    """Memory is in powers of two, cores are in thousandths."""
    assert str(quantity.from_units(3 * 2**30, Format.BINARY_SI)) == "3Gi"
    assert str(quantity.from_milli(1500)) == "1500m"
    assert str(Quantity(nano=10**30)) == "1e21"
