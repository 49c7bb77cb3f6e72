"""Values made a column at a time, of equal things the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from journeyman.kube.protobuf.columns import CachedConverter, each, listed, replaced, unless, within

KEYS = st.binary(max_size=2)
COLUMNS = st.lists(st.lists(KEYS, min_size=1, max_size=12), max_size=12)


class Maker:
    """Makes a list of each thing, and notes in which columns it was asked."""

    def __init__(self):
        self.columns = []

    def __call__(self, column):
        self.columns.append(list(column))
        return [[one] for one in column]


@given(COLUMNS)
def test_of_equal_things_there_is_one_value_made_once(columns):
    """Whatever the columns, and wherever in them things are seen first or again."""
    maker = Maker()
    converter = CachedConverter(maker)
    made = {}
    for column in columns:
        values = converter(column)
        assert values == [[key] for key in column]
        assert all(made.setdefault(key, value) is value for key, value in zip(column, values, strict=True))
    asked = [key for column in maker.columns for key in column]
    assert sorted(asked) == sorted(made), "each was made once"


def test_what_is_new_in_a_column_is_made_together():
    """It is asked for as a column, without what is known."""
    maker = Maker()
    converter = CachedConverter(maker)
    converter([b"a"])
    converter([b"b", b"a", b"c", b"b"])
    assert [sorted(column) for column in maker.columns] == [[b"a"], [b"b", b"c"]]


def test_what_is_given_is_never_made():
    """A missing message has no bytes that could be parsed; not even after everything else was forgotten."""
    maker = Maker()
    converter = CachedConverter(maker, {b"": None})
    assert converter([b"", b"a"]) == [None, [b"a"]]
    many = [number.to_bytes(3, "big") for number in range(5000)]
    assert converter(many) == [[key] for key in many]
    assert converter([b"", b""]) == [None, None]
    assert not any(b"" in column for column in maker.columns)


def test_memory_is_bounded():
    """Neither many values are kept nor such as were made of something long."""
    maker = Maker()
    converter = CachedConverter(maker)
    short, long = b"a", b"b" * 5000
    for _ in range(2):
        converter([short, long])
    assert maker.columns == [maker.columns[0], [long]], "the long one was made again"
    converter([number.to_bytes(3, "big") for number in range(5000)])
    converter([short])
    assert maker.columns[-1] == [short], "all were forgotten"


@given(st.lists(st.lists(st.integers()).map(tuple), min_size=1))
def test_tuples_are_made_of_all_that_is_in_them_at_once(column):
    """Each gets its own values back, in order, if there are many, one, or none."""
    columns = []

    def negative(numbers):
        assert numbers, "nobody is asked for nothing"
        columns.append(numbers)
        return [-number for number in numbers]

    assert [*within(negative)(column)] == [tuple(-number for number in one) for one in column]
    assert len(columns) <= 1


def test_makers_are_put_together():
    """What stands for nothing becomes the default; lists become tuples."""
    lengths = each(len)
    assert unless(b"-", 7, lengths)([b"ab", b"-", b""]) == [2, 7, 0]
    assert replaced("", None)(["a", "", "b"]) == ["a", None, "b"]
    assert listed(each(sum))([[1, 2], [], [3]]) == [3, 0, 3]
