"""Sets of rows by what their labels may become, compared with trying every value."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from journeyman.core.api.objects import NodeSelectorRequirement
from journeyman.core.scheduling.verify.matching import PossibleLabels, is_met

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
def test_an_undecided_label_can_meet_what_some_value_meets(wanted):
    """Rows are left exactly if a value, or a missing label, meets all requirements."""
    possible = any(all(is_met(requirement, value) for requirement in wanted) for value in TRIED)

    assert PossibleLabels(0b11, {}).narrowed(wanted).rows == (0b11 if possible else 0)


@given(
    st.lists(REQUIREMENTS, min_size=1, max_size=3),
    st.dictionaries(st.integers(0, 5), st.sampled_from(["1", "2", "4"])),
)
def test_rows_with_values_are_narrowed_to_those_that_meet(wanted, value_of):
    """Rows with one value each; the other rows have no such label."""
    column = {frozenset(): 0}
    for row in range(6):
        values = frozenset({value_of[row]} if row in value_of else set())
        column[values] = column.get(values, 0) | 1 << row
    labels = PossibleLabels(0b111111, {"size": column})

    expected = sum(
        1 << row for row in range(6) if all(is_met(requirement, value_of.get(row)) for requirement in wanted)
    )

    assert labels.narrowed(wanted).rows == expected


def test_every_row_is_in_one_entry_of_a_column():
    """Entries without rows are left out, rows in two entries are in the first, and undecided rows are last."""
    labels = PossibleLabels(
        0b1111, {"size": {frozenset({"1"}): 0b10011, frozenset({"2"}): 0b0110, frozenset({"3"}): 0b110000}}
    )

    assert list(labels.column("size")) == [(frozenset({"1"}), 0b0011), (frozenset({"2"}), 0b0100), (None, 0b1000)]
    assert list(labels.column("other")) == [(None, 0b1111)]
    assert labels.values("size", 0b0101) == {"1", "2"}
    assert labels.values("size", 0b1100) == {"2"}
