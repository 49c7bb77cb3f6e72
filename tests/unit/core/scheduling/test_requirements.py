"""The algebra of node requirements."""

from __future__ import annotations

import itertools

import pytest

from journeyman.core.api import labels
from journeyman.core.scheduling.requirements import (
    InvalidRequirementError,
    Requirement,
    Requirements,
    from_labels,
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


@pytest.mark.karpenter(
    "scheduling/requirements",
    it="should return both Gte and Lte requirements when both bounds exist",
)
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
@pytest.mark.karpenter("scheduling/requirements", it="should be strictly compatible")
def test_an_undefined_label_meets_only_the_wish_for_its_absence(operator, values, fits):
    """Strict compatibility, as for existing nodes."""
    assert (from_labels({}).compatible(of([requirement("own", operator, values)])) is None) is fits


@pytest.mark.karpenter("scheduling/requirements", it="should be compatible with well-known v1 labels undefined")
def test_a_well_known_label_may_be_undefined_where_that_is_allowed():
    """Lenient compatibility, as for templates."""
    demand = of([requirement(labels.ZONE, "In", ("a",))])

    assert Requirements({}).compatible(demand, allow_undefined=labels.WELL_KNOWN) is None
    assert "does not have known values" in str(Requirements({}).compatible(demand))


def test_a_mistyped_label_gets_a_hint():
    """The unknown key's last part is that of a known one."""
    demand = of([requirement("kubernetes.io/zone", "In", ("a",))])

    assert labels.ZONE in str(Requirements({}).compatible(demand))


@pytest.mark.karpenter("scheduling/requirements", it="should normalize aliased labels")
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
    [
        ([("Exists", ())], "0"),
        ([("NotIn", ("0", "1"))], "2"),
        ([("Gt", ("3",)), ("NotIn", ("4",))], "5"),
    ],
)
def test_any_value_is_the_smallest_number_that_meets_a_complement(entries, value):
    """Bounds and excluded values together."""
    (wanted,) = of(requirement("size", operator, values) for operator, values in entries).values()

    assert wanted.any_value() == value
    assert Requirement("size", True, frozenset(), lower=-5).any_value() == "0"
