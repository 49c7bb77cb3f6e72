"""Tests of NodePool options: topology domains, template variants, and offerings compatible with pods."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import NodeSelectorRequirement
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.arrays import numbered, undominated
from journeyman.core.scheduling.daemon_overhead import nodepool_options_of
from journeyman.core.scheduling.nodeclaim_templates import make_templates
from journeyman.core.scheduling.nodepool_options import (
    NodeConstraints,
    NodeDemand,
    NodePoolOptions,
    compatible_offerings,
    variants_of,
    worth_considering,
)
from journeyman.core.scheduling.offerings import offering_tables
from journeyman.core.scheduling.requirements import EMPTY, of, requirement
from tests.helpers.builders import LARGE, MEDIUM, SMALL, TYPES, a_pool, a_snapshot, an_instance_type

AXES = ("cpu", "memory", "pods")
TENANCY = "karpenter.k8s.aws/instance-tenancy"
ZONAL = (
    an_instance_type("z.small", cpu=2, memory_gib=8, price=0.1, zones=("a", "b", "c"), spot=0.04),
    an_instance_type("z.large", cpu=8, memory_gib=32, price=0.4, zones=("a", "b")),
)


def a_nodepool_options(*, types=ZONAL, daemons=(), **template_spec) -> NodePoolOptions:
    """Return the options of one NodePool with this template spec."""
    pool = a_pool(spec={"template": {"spec": template_spec}})
    ((template,), _) = make_templates(a_snapshot(node_pools=(pool,)), Catalogue({pool.metadata.name: types}))
    return nodepool_options_of(template, daemons, AXES)


def entry(key, operator, *values):
    """Return a requirement as in a NodePool spec."""
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


def demand(*terms, pins=(), tolerations=()):
    """Return a NodeDemand whose alternative terms are maps from label to values."""
    made = tuple(of(requirement(k, "In", v) for k, v in term.items()) for term in terms) or (EMPTY,)
    return NodeDemand(NodeConstraints(made, tolerations), pins)


# --- domains


def test_domains_are_combinations_of_label_values_that_an_offering_has():
    """The large instance type has no offering in zone c and no spot offering."""
    pool, keys = a_nodepool_options(), (labels.ZONE, labels.CAPACITY_TYPE)
    huge = np.array([4000, 0, 1])

    assert pool.domains_for(demand(), (labels.ZONE,)) == {("a",), ("b",), ("c",)}
    assert pool.domains_for(demand(), keys) == {(z, c) for z in "abc" for c in (labels.ON_DEMAND, labels.SPOT)}
    assert pool.domains_for(demand(), keys, huge) == {("a", labels.ON_DEMAND), ("b", labels.ON_DEMAND)}


def test_domains_of_a_demand_are_those_of_all_its_alternative_terms():
    """The terms are zone a, and spot in zone b."""
    either = demand({labels.ZONE: ["a"]}, {labels.CAPACITY_TYPE: [labels.SPOT], labels.ZONE: ["b"]})

    assert a_nodepool_options().domains_for(either, (labels.ZONE, labels.CAPACITY_TYPE)) == {
        ("a", labels.ON_DEMAND),
        ("a", labels.SPOT),
        ("b", labels.SPOT),
    }


@pytest.mark.parametrize(
    ("requirements", "requested", "racks"),
    [
        ([entry("rack", "In", "1", "2")], demand(), {("1",), ("2",)}),
        ([entry("rack", "In", "1", "2")], demand({"rack": ["2", "3"]}), {("2",)}),
        ([entry("rack", "Exists")], demand(), set()),
        ([entry("rack", "Exists")], demand({"rack": ["7"]}), {("7",)}),
        ([], demand(), set()),
    ],
)
def test_domains_of_a_custom_label_are_the_values_that_node_pool_or_pod_lists(requirements, requested, racks):
    """If the NodePool only requires that the label exists, the values come from the pod."""
    assert a_nodepool_options(requirements=requirements).domains_for(requested, ("rack",)) == racks


def test_node_pool_with_an_untolerated_taint_has_no_domains():
    """The demand has no toleration for the taint."""
    pool = a_nodepool_options(taints=[{"key": "gpu", "effect": "NoSchedule"}])

    assert pool.domains_for(demand(), (labels.ZONE,)) == frozenset()


def test_node_pool_instance_type_and_pod_must_agree_on_a_label_value():
    """Any two of them share a tenancy, but no tenancy is common to all three."""
    both = NodeSelectorRequirement(key=TENANCY, operator="In", values=("default", "dedicated"))
    types = tuple(replace(t, requirements=(*t.requirements, both)) for t in ZONAL)
    pool = a_nodepool_options(types=types, requirements=[entry(TENANCY, "In", "host", "default")])

    assert pool.domains_for(demand({TENANCY: ["host", "dedicated"]}), (labels.ZONE,)) == frozenset()
    assert pool.domains_for(demand(), (TENANCY,)) == {("default",)}


# --- variants


def test_node_pool_has_one_variant_per_requested_value_of_an_undecided_label():
    """Two pods require different teams; a third requires none and fits both variants."""
    pool = a_nodepool_options(requirements=[entry("team", "In", "red", "blue", "green")])
    demands = [demand(pins=(("team", "red"),)), demand({"team": ["blue"]}), demand()]

    offerings = compatible_offerings([pool], demands)

    assert [sorted(v.narrowed["team"].values) for v in offerings.variants_by_pool[0]] == [["red"], ["blue"]]
    assert sorted(map(tuple, offerings.allowed.tolist())) == [(False, True, True), (True, False, True)]


def test_labels_that_node_pool_or_offering_decide_need_no_variants():
    """The labels are the zone, the NodePool name, and a label with one value in the NodePool."""
    pool = a_nodepool_options(requirements=[entry("team", "In", "red")])
    requested = demand({labels.ZONE: ["a"], labels.NODEPOOL: ["default"], "team": ["red"]})

    (variant,) = variants_of(pool.template, [requested])

    assert (dict(variant.narrowed), variant.open_keys) == ({}, frozenset())


@pytest.mark.parametrize(
    ("requested", "variants"),
    [
        ([entry("team", "In", "red"), entry("team", "In", "blue")], 2),
        ([entry("team", "In", "red"), entry("team", "In", "red", "blue")], 1),
        ([entry("team", "In", "red"), entry("team", "NotIn", "red")], 2),
        ([entry("team", "In", "red"), entry("team", "NotIn", "blue")], 1),
        ([entry("team", "In", "red"), entry("rack", "In", "1")], 1),
        ([entry("team", "In", "red"), entry("team", "Exists")], 1),
    ],
)
def test_demands_share_a_variant_when_one_node_can_meet_both(requested, variants):
    """The NodePool allows two teams and any rack."""
    pool = a_nodepool_options(requirements=[entry("team", "In", "red", "blue"), entry("rack", "Exists")])
    terms = [of((requirement(e["key"], e["operator"], e.get("values", ())),)) for e in requested]

    found = variants_of(pool.template, [NodeDemand(NodeConstraints((term,), ()), ()) for term in terms])

    assert len(found) == variants
    assert all(any(v.narrowed.conflict(term) is None for v in found) for term in terms)


@pytest.mark.parametrize(
    ("requested", "variants"),
    [
        ([entry("disk", "DoesNotExist"), entry("disk", "NotIn", "hdd")], 1),
        ([entry("disk", "DoesNotExist"), entry("disk", "In", "ssd")], 2),
        ([entry("disk", "NotIn", "hdd"), entry("disk", "In", "hdd")], 2),
    ],
)
def test_demands_share_a_variant_when_a_node_without_the_label_meets_both(requested, variants):
    """The NodePool excludes one value of the label, so its nodes may lack the label."""
    pool = a_nodepool_options(requirements=[entry("disk", "NotIn", "tape")])
    terms = [of((requirement(e["key"], e["operator"], e.get("values", ())),)) for e in requested]

    found = variants_of(pool.template, [NodeDemand(NodeConstraints((term,), ()), ()) for term in terms])

    assert len(found) == variants


def test_pinned_labels_are_added_to_each_alternative_term_that_allows_them():
    """The pinned zone contradicts the first term, which is dropped; the pinned capacity type contradicts none."""
    pins = ((labels.CAPACITY_TYPE, labels.SPOT), (labels.ZONE, "a"))

    pinned = demand({labels.ZONE: ["b"]}, {labels.ZONE: ["a", "b"]}, {"team": ["red"]}, pins=pins).terms

    assert [sorted((key, *r.values) for key, r in term.items()) for term in pinned] == [
        sorted([(labels.CAPACITY_TYPE, labels.SPOT), (labels.ZONE, "a")]),
        sorted([(labels.CAPACITY_TYPE, labels.SPOT), (labels.ZONE, "a"), ("team", "red")]),
    ]


# --- offerings


def test_only_the_cheapest_of_interchangeable_offerings_is_kept():
    """The pod has no zone or capacity type requirement, so each instance type keeps one offering."""
    offerings = compatible_offerings([a_nodepool_options()], [demand()])

    assert offerings.prices.tolist() == [0.04, 0.4]


def test_offering_is_ignored_when_a_larger_one_has_the_same_price():
    """The medium instance type costs as much as the small one."""
    types = (SMALL, replace(MEDIUM, offerings=SMALL.offerings), LARGE)
    pool = a_nodepool_options(types=types)
    offerings = compatible_offerings([pool], [demand()])

    worth = worth_considering(offerings, np.arange(len(AXES)))

    assert [types[t].name for t in sorted(offerings.types[worth].tolist())] == ["m.medium", "m.large"]


def test_zone_without_offerings_has_no_compatible_offerings():
    """No instance type has an offering in zone z."""
    offerings = compatible_offerings([a_nodepool_options()], [demand(pins=((labels.ZONE, "z"),))])

    assert (len(offerings.prices), offerings.allowed.shape, offerings.sizes.shape) == (0, (0, 1), (0, len(AXES)))


def test_undominated_drops_rows_that_an_earlier_row_equals_or_exceeds():
    """It keeps the first of equal rows, and accepts an empty array."""
    sizes = np.array([[2, 2], [1, 2], [3, 1], [3, 1], [2, 3]])

    assert undominated(sizes).tolist() == [0, 2, 4]
    assert undominated(sizes[:0]).tolist() == []


def test_numbered_gives_equal_columns_the_same_number():
    """It also returns the column of each number."""
    bits = np.array([[1, 0, 1, 1], [0, 0, 0, 1]], dtype=bool)

    numbers, patterns = numbered(bits)

    assert numbers.tolist() == [0, 1, 0, 2]
    assert (bits == patterns[numbers].T).all()


def test_node_pools_with_the_same_instance_types_share_an_offering_table():
    """The catalogue has the same instance types for both NodePools."""
    tables = offering_tables(Catalogue({"one": TYPES, "two": TYPES}))

    assert tables["one"] is tables["two"]
