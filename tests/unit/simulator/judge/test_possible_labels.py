"""Tests of matching requirements with possible labels of offerings, compared with trying every value."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journeyman.core.api.objects import NodeSelectorRequirement
from journeyman.core.scheduling.verify.matching import is_met
from journeyman_simulator.judge.possible_labels import PossibleLabels

NUMBERS = st.integers(0, 6).map(str)
REQUIREMENTS = st.one_of(
    st.builds(
        NodeSelectorRequirement,
        key=st.just("size"),
        operator=st.sampled_from(["Gt", "Lt"]),
        values=st.tuples(NUMBERS),
    ),
    st.builds(
        NodeSelectorRequirement,
        key=st.just("size"),
        operator=st.sampled_from(["In", "NotIn"]),
        values=st.lists(NUMBERS, min_size=1, max_size=3, unique=True).map(tuple),
    ),
    st.builds(NodeSelectorRequirement, key=st.just("size"), operator=st.sampled_from(["Exists", "DoesNotExist"])),
)
TRIED = (None, *(str(n) for n in range(-1, 9)))


@given(st.lists(REQUIREMENTS, min_size=1, max_size=3))
def test_undecided_label_meets_requirements_when_some_value_meets_them(wanted):
    """The rows are kept exactly if some value, or the missing label, meets all requirements."""
    possible = any(all(is_met(requirement, value) for requirement in wanted) for value in TRIED)

    assert PossibleLabels(0b11, {}).narrowed(wanted).rows == (0b11 if possible else 0)


@given(
    st.lists(REQUIREMENTS, min_size=1, max_size=3),
    st.dictionaries(st.integers(0, 5), st.sampled_from(["1", "2", "4"])),
)
def test_narrowed_keeps_only_rows_whose_label_meets_all_requirements(wanted, value_of):
    """Some rows have one value of the label; the other rows do not have the label."""
    column = {frozenset(): 0}
    for row in range(6):
        values = frozenset({value_of[row]} if row in value_of else set())
        column[values] = column.get(values, 0) | 1 << row
    labels = PossibleLabels(0b111111, {"size": column})

    expected = sum(
        1 << row for row in range(6) if all(is_met(requirement, value_of.get(row)) for requirement in wanted)
    )

    assert labels.narrowed(wanted).rows == expected


def test_column_yields_every_row_in_exactly_one_entry():
    """It omits entries without rows, keeps a row of two entries in the first, and yields undecided rows last."""
    labels = PossibleLabels(
        0b1111, {"size": {frozenset({"1"}): 0b10011, frozenset({"2"}): 0b0110, frozenset({"3"}): 0b110000}}
    )

    assert list(labels.column("size")) == [(frozenset({"1"}), 0b0011), (frozenset({"2"}), 0b0100), (None, 0b1000)]
    assert list(labels.column("other")) == [(None, 0b1111)]
    assert labels.values("size", 0b0101) == {"1", "2"}
    assert labels.values("size", 0b1100) == {"2"}


def any_requirement(draw, key):
    """Return a random requirement over small numbers."""
    operator = draw.choice(("In", "NotIn", "Gt", "Gte", "Lt", "Lte", "Exists", "DoesNotExist"))
    if operator in {"Exists", "DoesNotExist"}:
        return NodeSelectorRequirement(key=key, operator=operator)
    count = draw.randint(1, 3) if operator in {"In", "NotIn"} else 1
    return NodeSelectorRequirement(key=key, operator=operator, values=tuple(draw.sample("0123", count)))


@pytest.mark.parametrize("seed", range(150))
def test_possible_labels_agree_with_trying_every_value(seed):
    """Labels of rows have one of several values, are missing, or are undecided; alternatives cover two labels."""
    draw = random.Random(seed)
    rows, keys = range(5), ("size", "zone")
    values = {
        (row, key): draw.choice((None, frozenset(), *(frozenset(draw.sample("0123", n)) for n in (1, 1, 2, 3))))
        for row in rows
        for key in keys
    }
    columns = {key: {} for key in keys}
    for (row, key), having in values.items():
        if having is not None:
            columns[key][having] = columns[key].get(having, 0) | 1 << row
    possible = PossibleLabels(0b11111, columns)
    wanted = [any_requirement(draw, draw.choice(keys)) for _ in range(draw.randint(1, 3))]
    alternatives = [
        tuple(tuple(any_requirement(draw, draw.choice(keys)) for _ in range(draw.randint(1, 2))) for _ in range(count))
        for count in (draw.randint(1, 3), draw.randint(0, 2))
    ]

    def left_of(row, key):
        """Return whether the label may be missing, and which of its values meet the requirements."""
        about = [r for r in wanted if r.key == key]
        having = values[row, key]
        lacks = not having and all(is_met(r, None) for r in about)
        tried = having if having is not None else {*"0123", "-1", "4"}
        return lacks, {value for value in tried if all(is_met(r, value) for r in about)}

    narrowed = possible.narrowed(wanted)
    kept = [row for row in rows if all(any(left_of(row, r.key)) for r in wanted)]
    assert narrowed.rows == sum(1 << row for row in kept)
    for key in {r.key for r in wanted}:
        for row in kept:
            lacks, met = left_of(row, key)
            if values[row, key]:
                assert narrowed.values(key, 1 << row) == met
            else:
                assert not narrowed.values(key, 1 << row) if lacks else narrowed.values(key, 1 << row) <= met

    def holds(row, requirement, *, surely):
        tried = values[row, requirement.key] or (None,)
        return (all if surely else any)(is_met(requirement, value) for value in tried)

    for surely, found in (
        (True, possible.rows_meeting(alternatives)),
        (False, possible.rows_possibly_meeting(alternatives)),
    ):
        expected = [
            row
            for row in rows
            if all(any(all(holds(row, r, surely=surely) for r in term) for term in terms) for terms in alternatives)
        ]
        assert found == sum(1 << row for row in expected)
