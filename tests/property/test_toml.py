"""What is written as TOML reads back as it was, whatever a user puts into it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from journeyman.cloud.aws import toml

tomllib = pytest.importorskip("tomllib", reason="reads TOML with the standard library")

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
scalars = st.one_of(
    texts, st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False)
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=6,
)
documents = st.dictionaries(texts, values, max_size=4)


@settings(max_examples=60)
@given(document=documents)
def test_toml_reads_back_as_it_was_written(document):
    """Any keys, any nesting: tables, arrays, tables inside arrays, empty ones too."""
    assert tomllib.loads(toml.dumps(document)) == document


@settings(max_examples=60)
@given(document=documents)
def test_the_order_of_keys_never_matters(document):
    """Equal settings, equal text: a launch template is named by it."""
    shuffled = dict(reversed(document.items()))

    assert toml.dumps(shuffled) == toml.dumps(document)
