"""Columns are converted as a whole, and equal keys have the same value."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from journeyman.kube.protobuf.reader import CachedConverter, each, listed, replaced, unless, within

KEYS = st.binary(max_size=2)
COLUMNS = st.lists(st.lists(KEYS, min_size=1, max_size=12), max_size=12)


class Maker:
    """A converter that returns a list for each key and records the columns of its calls."""

    def __init__(self):
        self.columns = []

    def __call__(self, column):
        self.columns.append(list(column))
        return [[one] for one in column]


@given(COLUMNS)
@example([[b"a"], [b"b", b"a", b"c", b"b"]])
def test_equal_keys_are_converted_once(columns):
    """The new keys of a column are one column, without the cached ones."""
    maker = Maker()
    converter = CachedConverter(maker)
    made = {}
    for column in columns:
        new = set(column) - set(made)
        values = converter(column)
        assert values == [[key] for key in column]
        assert all(made.setdefault(key, value) is value for key, value in zip(column, values, strict=True))
        assert not new or sorted(maker.columns[-1]) == sorted(new)
    asked = [key for column in maker.columns for key in column]
    assert sorted(asked) == sorted(made), "each was made once"


def test_known_values_are_never_converted():
    """The bytes of a missing message cannot be parsed; that also holds after the cache is cleared."""
    maker = Maker()
    converter = CachedConverter(maker, {b"": None})
    assert converter([b"", b"a"]) == [None, [b"a"]]
    many = [number.to_bytes(3, "big") for number in range(5000)]
    assert converter(many) == [[key] for key in many]
    assert converter([b"", b""]) == [None, None]
    assert not any(b"" in column for column in maker.columns)


def test_memory_is_bounded():
    maker = Maker()
    converter = CachedConverter(maker)
    longest, longer = b"a" * 4096, b"b" * 4097
    for _ in range(2):
        converter([longest, longer])
    assert maker.columns == [maker.columns[0], [longer]], "the longer one was made again"
    converter([number.to_bytes(3, "big") for number in range(4095)])
    converter([longest])
    assert maker.columns[-1] != [longest], "4096 values were kept"
    converter([b"another"])
    converter([longest])
    assert maker.columns[-1] == [longest], "all were forgotten"


@given(st.lists(st.lists(st.integers()).map(tuple), min_size=1))
def test_items_of_tuples_are_converted_together(column):
    columns = []

    def negative(numbers):
        assert numbers, "converters get no empty columns"
        columns.append(numbers)
        return [-number for number in numbers]

    assert [*within(negative)(column)] == [tuple(-number for number in one) for one in column]
    assert len(columns) <= 1


def test_converters_can_be_combined():
    """A missing value becomes the default; lists become tuples."""
    lengths = each(len)
    assert unless(b"-", 7, lengths)([b"ab", b"-", b""]) == [2, 7, 0]
    assert replaced("", None)(["a", "", "b"]) == ["a", None, "b"]
    assert listed(each(sum))([[1, 2], [], [3]]) == [3, 0, 3]
