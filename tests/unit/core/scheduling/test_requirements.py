"""The algebra of node requirements."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import NodeSelectorRequirement
from journeyman.core.scheduling.requirements import (
    InvalidRequirementError,
    Requirement,
    Requirements,
    from_labels,
    from_selectors,
    likely_meant,
    of,
    requirement,
)

VALUES = ("1", "2", "3", "9", "a", "b", "")
SAMPLES = [
    requirement("k", "In", ("1", "a")),
    requirement("k", "In", ("2", "9", "b")),
    requirement("k", "NotIn", ("1", "b")),
    requirement("k", "Exists"),
    requirement("k", "DoesNotExist"),
    requirement("k", "Gt", ("1",)),
    requirement("k", "Gte", ("3",)),
    requirement("k", "Lt", ("3",)),
    requirement("k", "Lte", ("9",)),
]


@pytest.mark.parametrize(("a", "b"), list(itertools.product(SAMPLES, SAMPLES)))
def test_an_intersection_has_exactly_the_values_that_both_have(a, b):
    """Set theory, for every pair of operators."""
    both = a.intersection(b)

    assert {v for v in VALUES if both.has(v)} == {v for v in VALUES if a.has(v) and b.has(v)}


@pytest.mark.parametrize(("a", "b"), list(itertools.product(SAMPLES, SAMPLES)))
def test_intersects_is_symmetric_and_never_denies_a_common_value(a, b):
    """`intersects` may say yes for lack of knowledge (two complements), never no against a witness."""
    assert a.intersects(b) == b.intersects(a)
    if any(a.has(v) and b.has(v) for v in VALUES):
        assert a.intersects(b)


@pytest.mark.parametrize(
    ("operator", "values", "reported"),
    [
        ("In", ("x",), "In"),
        ("NotIn", ("x",), "NotIn"),
        ("NotIn", (), "Exists"),
        ("Exists", (), "Exists"),
        ("DoesNotExist", (), "DoesNotExist"),
        ("Gt", ("4",), "Exists"),
        ("Lte", ("4",), "Exists"),
    ],
)
def test_operators_are_reported_as_karpenter_does(operator, values, reported):
    """Bounds report as Exists, an empty exclusion too."""
    assert requirement("k", operator, values).operator == reported


@pytest.mark.parametrize(
    ("operator", "values"),
    [("In", ()), ("Gt", ()), ("Gt", ("1", "2")), ("Lt", ("x",)), ("Gte", ("-1",)), ("Near", ("x",))],
)
def test_values_that_an_operator_does_not_take_are_refused(operator, values):
    """The error names the key, so that a person finds it."""
    with pytest.raises(InvalidRequirementError, match="k: "):
        requirement("k", operator, values)


def test_contradicting_bounds_leave_nothing():
    """More than 5 and less than 3 is no label at all."""
    both = requirement("k", "Gt", ("5",)).intersection(requirement("k", "Lt", ("3",)))

    assert both.operator == "DoesNotExist"


def test_bounds_are_written_back_as_gte_and_lte_and_lose_excluded_values():
    """What a NodeClaim gets for Gt 4, Lt 8 and NotIn 6."""
    merged = of([requirement("k", "Gt", ("4",)), requirement("k", "Lt", ("8",)), requirement("k", "NotIn", ("6",))])

    assert [(r.operator, r.values) for r in merged.to_selectors()] == [("Gte", ("5",)), ("Lte", ("7",))]


def test_min_values_of_both_sides_keep_the_larger():
    """Two requirements on one key."""
    merged = requirement("k", "In", ("a", "b"), 1).intersection(requirement("k", "Exists", (), 2))

    assert merged.min_values == 2


@pytest.mark.parametrize(
    ("operator", "values", "fits"),
    [
        ("In", ("x",), False),
        ("Exists", (), False),
        ("Gt", ("1",), False),
        ("NotIn", ("x",), True),
        ("DoesNotExist", (), True),
    ],
)
def test_an_undefined_label_meets_only_the_wish_for_its_absence(operator, values, fits):
    """Strict compatibility, as for existing nodes."""
    assert (from_labels({}).compatible(of([requirement("own", operator, values)])) is None) is fits


def test_a_well_known_label_may_be_undefined_where_that_is_allowed():
    """Lenient compatibility, as for templates."""
    demand = of([requirement(labels.ZONE, "In", ("a",))])

    assert Requirements({}).compatible(demand, allow_undefined=labels.WELL_KNOWN) is None
    assert "does not have known values" in str(Requirements({}).compatible(demand))


def test_a_mistyped_label_gets_a_hint():
    """The unknown key's last part is that of a known one."""
    demand = of([requirement("kubernetes.io/zone", "In", ("a",))])

    assert labels.ZONE in str(Requirements({}).compatible(demand))


def test_old_label_names_are_read_as_the_new_ones():
    """Aliases are normalised on input."""
    assert requirement("failure-domain.beta.kubernetes.io/zone", "In", ("a",)).key == labels.ZONE


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("karpenter.sh/nodepol", "karpenter.sh/nodepool"),
        ("karpenter.sh/nodepoool", "karpenter.sh/nodepool"),
        ("karpenter.sh/nodepoal", "karpenter.sh/nodepool"),
        ("karpenter.sh/ndoepool", "karpenter.sh/nodepool"),
        ("zone", "topology.kubernetes.io/zone"),
        ("tean", "team"),
        ("karpenter.sh/nodepol-of-mine", ""),
        ("something-else", ""),
    ],
)
def test_mistyped_label_is_recognized(written, meant):
    """One letter missing, too many, wrong, or two swapped; or a well-known key without its prefix."""
    assert likely_meant(written, ["team"]) == meant


@pytest.mark.parametrize(
    "entries",
    [
        [("Lt", ("0",))],
        [("Lt", ("1",)), ("NotIn", ("0",))],
        [("Gt", ("0",)), ("Lt", ("3",)), ("NotIn", ("1",)), ("NotIn", ("2",))],
    ],
)
def test_bounds_without_an_allowed_number_are_impossible(entries):
    """A label's value is never negative; no node can meet such requirements."""
    (wanted,) = of(requirement("size", operator, values) for operator, values in entries).values()

    assert (wanted.impossible, wanted.operator, wanted.has("0")) == (True, "DoesNotExist", False)


@pytest.mark.parametrize(
    ("entries", "value"),
    [([("Exists", ())], "0"), ([("NotIn", ("0", "1"))], "2"), ([("Gt", ("3",)), ("NotIn", ("4",))], "5")],
)
def test_any_value_is_the_smallest_number_that_meets_a_complement(entries, value):
    """Bounds and excluded values together."""
    (wanted,) = of(requirement("size", operator, values) for operator, values in entries).values()

    assert wanted.any_value() == value
    assert Requirement("size", True, frozenset(), lower=-5).any_value() == "0"


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("zone", labels.ZONE),
        ("region", labels.REGION),
        ("nodepool", labels.NODEPOOL),
        ("instance-type", labels.INSTANCE_TYPE),
        ("arch", labels.ARCH),
        ("capacity-type", labels.CAPACITY_TYPE),
        ("topology.kubernetesio/zone", labels.ZONE),
        ("node.io/zone", labels.ZONE),
        ("topology.kubernetes.io/regio", labels.REGION),
        ("node.kubernetes.io/region", labels.REGION),
        ("karpenter/nodepool", labels.NODEPOOL),
        ("deployment", ""),
    ],
)
def test_error_for_an_unknown_label_names_the_one_that_was_meant(key, meant):
    """In Karpenter's words."""
    wanted = from_selectors([NodeSelectorRequirement(key=key, operator="Exists")])

    error = from_selectors(()).compatible(wanted, allow_undefined=labels.WELL_KNOWN)

    typo = f' (typo of "{meant}"?)' if meant else ""
    assert error == f'label "{key}" does not have known values{typo}'


def bounded(*bounds):
    """The requirement of all these operators and numbers, and how the API states it."""
    wanted = from_selectors([NodeSelectorRequirement(key="key", operator=o, values=(n,)) for o, n in bounds])
    return wanted["key"], [(r.operator, *r.values) for r in wanted.to_selectors()]


@pytest.mark.parametrize(
    ("bounds", "inside", "outside", "stated"),
    [
        ([("Gte", "2")], "2 3 100", "1 0", [("Gte", "2")]),
        ([("Gt", "1")], "2 3 100", "1 0", [("Gte", "2")]),
        ([("Lte", "8")], "8 7 0", "9 10", [("Lte", "8")]),
        ([("Lt", "9")], "8 7 0", "9 10", [("Lte", "8")]),
        ([("Gte", "2"), ("Lte", "8")], "2 5 8", "1 9", [("Gte", "2"), ("Lte", "8")]),
        ([("Gt", "4"), ("Gte", "5")], "5", "4", [("Gte", "5")]),
        ([("Gt", "5"), ("Gte", "5")], "6", "5", [("Gte", "6")]),
        ([("Gt", "3"), ("Gte", "6")], "6", "5", [("Gte", "6")]),
        ([("Lt", "5"), ("Lte", "5")], "4", "5", [("Lte", "4")]),
        ([("Lt", "9"), ("Lte", "5")], "5", "6", [("Lte", "5")]),
        ([("Gte", "0")], "0", "-1", [("Gte", "0")]),
        ([("Lte", "0")], "0", "1", [("Lte", "0")]),
    ],
)
def test_bounds_are_inclusive_and_the_tightest_of_each_side_counts(bounds, inside, outside, stated):
    """The NodeClaim states them as Gte and Lte."""
    requirement, selectors = bounded(*bounds)

    assert [requirement.has(value) for value in inside.split()] == [True] * len(inside.split())
    assert [requirement.has(value) for value in outside.split()] == [False] * len(outside.split())
    assert selectors == stated


@pytest.mark.parametrize("bound", [("Gte", "5"), ("Lte", "10")])
def test_any_value_of_a_bounded_requirement_meets_it(bound):
    """New nodes may get it as a label."""
    requirement, _ = bounded(bound)

    assert requirement.has(requirement.any_value())


@pytest.mark.parametrize(("one", "other", "least"), [(2, None, 2), (None, 3, 3), (2, 3, 3), (None, None, None)])
def test_larger_min_values_of_an_intersection_counts(one, other, least):
    """Whatever the operators are."""
    for a, b in itertools.product(SAMPLES, SAMPLES):
        limited = replace(a, min_values=one).intersection(replace(b, min_values=other))
        assert limited.min_values == least
        assert replace(limited, min_values=None) == a.intersection(b)


@pytest.mark.parametrize("least", [None, 2])
@pytest.mark.parametrize(
    ("operator", "values", "stated"),
    [
        ("Exists", (), ("Exists", ())),
        ("DoesNotExist", (), ("DoesNotExist", ())),
        ("In", ("B", "A"), ("In", ("A", "B"))),
        ("NotIn", ("2", "1"), ("NotIn", ("1", "2"))),
        ("Gt", ("9",), ("Gte", ("10",))),
        ("Lt", ("1",), ("Lte", ("0",))),
    ],
)
def test_requirement_is_stated_as_the_api_has_it(operator, values, stated, least):
    """Values are sorted, bounds inclusive, and minValues stay."""
    made = from_selectors([NodeSelectorRequirement(key="k", operator=operator, values=values, min_values=least)])

    (selector,) = made.to_selectors()

    assert (selector.operator, selector.values, selector.min_values) == (*stated, least)


def test_no_number_is_greater_than_the_largest():
    """A pod with such a requirement is invalid: no node meets it."""
    with pytest.raises(InvalidRequirementError, match="one non-negative integer"):
        requirement("k", "Gt", (str(2**63 - 1),))
