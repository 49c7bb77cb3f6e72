"""Properties of every quantity."""

from fractions import Fraction

from hypothesis import example, given
from hypothesis import strategies as st

from journeyman.core.api import quantity
from journeyman.core.api.quantity import NANO, Format, Quantity

SUFFIXES = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "e3": Fraction(1000),
    "E-2": Fraction(1, 100),
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
}
numbers = st.from_regex(r"[+-]?[0-9]{1,9}(\.[0-9]{0,9})?", fullmatch=True)
amounts = st.integers(min_value=-(2**63), max_value=2**63)
formats = st.sampled_from(Format)


@given(number=numbers, suffix=st.sampled_from(sorted(SUFFIXES)))
def test_amount_is_exact_and_rounded_away_from_zero_to_nano(number, suffix):
    """Without floating point."""
    exact = Fraction(number) * SUFFIXES[suffix] * NANO
    away = -(-exact.numerator // exact.denominator) if exact >= 0 else exact.numerator // exact.denominator
    assert quantity.parse(number + suffix).nano == away


@given(nano=amounts, notation=formats)
@example(nano=15_625_000 * NANO, notation=Format.BINARY_SI)  # printed as 15625000, and then as 15625k
def test_formatted_quantity_parses_to_the_same_amount(nano, notation):
    """And prints as the same text. A binary one without suffix is read as decimal, as in Kubernetes."""
    text = str(Quantity(nano=nano, format=notation))
    again = quantity.parse(text)
    assert again.nano == nano
    assert str(again) == (str(Quantity(nano=nano)) if text[-1].isdigit() and notation is Format.BINARY_SI else text)


@given(nano=amounts)
def test_rounding_up_and_down_enclose_the_amount(nano):
    """By less than one unit."""
    exact = Quantity(nano=nano)
    up, down = exact.units(round_up=True), exact.units(round_up=False)
    assert down * NANO <= nano <= up * NANO
    assert up - down == (1 if nano % NANO else 0)


@given(text=st.text(max_size=20))
def test_any_text_parses_or_raises_invalid_quantity(text):
    """No other error, whatever the text."""
    try:
        parsed = quantity.parse(text)
    except quantity.InvalidQuantityError:
        return
    assert str(parsed)
