"""Hypothesis strategies: valid objects with a few fields replaced by edge values of rules, or by any value."""

from __future__ import annotations

from typing import Any, Final

from hypothesis import strategies as st

from tests.contract.crds.all_rules import RULES
from tests.contract.crds.rule import BASES, JSONDict, with_value

_ANYTHING: Final = st.one_of(
    st.sampled_from(
        (
            None,
            True,
            False,
            0,
            1,
            -1,
            2.0,
            0.5,
            2**31,
            2**53,
            2**63,
            -(2**63),
            -(2**63) - 1,
            1e300,
            "",
            " ",
            "0",
            "a" * 70,
            "a" * 5000,
        )
    ),
    st.sampled_from(
        (
            [],
            [None],
            [""],
            [[]],
            {},
            {"": ""},
            {"a": None},
            {"a": {}},
            [{}],
            "Never",
            "10%",
            "1h",
            "1Gi",
            "al2023@latest",
        )
    ),
    st.text(max_size=8),
    st.integers(),
    st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3),
)


def objects(kind: str) -> st.SearchStrategy[JSONDict]:
    """Return a strategy for objects of a kind, about half of them valid."""
    rules = [rule for rule in RULES if rule.kind == kind]
    good = st.sampled_from([(rule.path, value) for rule in rules for value in rule.good])
    edge = st.sampled_from([(rule.path, value) for rule in rules for value in (*rule.bad, *rule.listed)])
    changes = st.tuples(
        st.lists(good, max_size=3),
        st.one_of(st.just([]), st.lists(edge, max_size=1)),
        st.integers(min_value=0, max_value=1),
    )
    return st.tuples(changes, st.randoms(use_true_random=False), _ANYTHING).map(lambda drawn: _changed(kind, *drawn))


def _changed(kind: str, changes: Any, random: Any, anything: Any) -> JSONDict:
    goods, edges, wild = changes
    obj: JSONDict = BASES[kind]
    for path, value in (*goods, *edges):
        obj = _with(obj, path, value)
    if wild:
        obj = _with(obj, random.choice(sorted(_paths(obj["spec"], "spec"))), anything)
    return obj


def _with(obj: JSONDict, path: str, value: Any) -> JSONDict:
    """Return the object with the value; unchanged if an earlier change removed a parent of the path."""
    try:
        return with_value(obj, path, value)
    except (AttributeError, IndexError, TypeError, ValueError):
        return obj


def _paths(value: Any, path: str) -> set[str]:
    """Yield the paths of all nested values."""
    below: Any = ()
    if isinstance(value, dict):
        below = [(f"{path}.{key}", item) for key, item in value.items() if "." not in key]
    elif isinstance(value, list):
        below = [(f"{path}.{index}", item) for index, item in enumerate(value[:3])]
    return {path}.union(*(_paths(item, at) for at, item in below))
