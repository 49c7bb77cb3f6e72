"""Quantities against Kubernetes' own parser, and what is refused."""

import json
from decimal import Decimal
from pathlib import Path

import pytest

from journeyman.core.api import quantity
from journeyman.core.api.quantity import NANO, Format, Quantity
from journeyman.errors import InvalidQuantityError

RECORDED = json.loads((Path(__file__).parent / "recorded" / "quantities.json").read_text())["cases"]


@pytest.mark.parametrize(("text", "canonical", "amount"), RECORDED)
def test_texts_mean_what_they_mean_to_kubernetes(text, canonical, amount):
    """Same verdict, same exact amount, same canonical text as the recorded upstream answers."""
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
def test_json_numbers_are_taken_as_they_print(value, nano):
    """Hand-written YAML holds bare numbers; a float is the decimal it shows, not its binary value."""
    assert quantity.parse(value).nano == nano


@pytest.mark.parametrize(
    "value", ["m", "Ki", ".", "1e100", "1e-100", "9" * 65, "\uff11", "1\n", "inf", float("nan"), True, None, [1]]
)
def test_what_is_no_quantity_is_refused_with_the_text_and_the_way_out(value):
    """Absurd lengths, exponents and other alphabets included."""
    with pytest.raises(InvalidQuantityError, match=r"is not a quantity: ") as caught:
        quantity.parse(value)
    assert str(value)[:60] in str(caught.value)


@pytest.mark.parametrize(
    ("text", "up", "down"), [("1500m", 2, 1), ("-1500m", -1, -2), ("2", 2, 2), ("1n", 1, 0), ("0", 0, 0)]
)
def test_rounding_to_units_goes_the_way_that_is_asked(text, up, down):
    """Requests round up, capacity rounds down, below zero too."""
    parsed = quantity.parse(text)
    assert (parsed.units(round_up=True), parsed.units(round_up=False)) == (up, down)


def test_rounding_to_millicores_goes_the_way_that_is_asked():
    """A ten-thousandth of a core asked for takes a millicore; one on offer gives none."""
    parsed = quantity.parse("0.0001")
    assert (parsed.milli(round_up=True), parsed.milli(round_up=False)) == (1, 0)


def test_an_amount_is_written_in_the_notation_it_is_given():
    """Memory is shown in powers of two, cores in thousandths."""
    assert str(quantity.from_units(3 * 2**30, Format.BINARY_SI)) == "3Gi"
    assert str(quantity.from_milli(1500)) == "1500m"
    assert str(Quantity(nano=10**30)) == "1e21"
