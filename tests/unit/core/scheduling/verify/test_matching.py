"""Tests of matching requirements with possible labels of offerings, compared with trying every value."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from journeyman.core.api.objects import NodeSelectorRequirement, OwnerReference
from journeyman.core.scheduling.daemon_overhead import make_daemons
from journeyman.core.scheduling.verify.matching import PodKind, PossibleLabels, daemon_of, is_met
from tests.helpers.builders import a_daemon_set, a_pod, a_resize, ago, stamp

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


def a_kind(**spec):
    """Return the PodKind of a pod with this spec."""
    return PodKind(a_pod("p", spec=spec))


def affinity(*terms):
    """Return required node affinity with these terms, each a map from label to values."""
    made = [
        {"matchExpressions": [{"key": key, "operator": "In", "values": list(found)} for key, found in term.items()]}
        for term in terms
    ]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": made}}}


def test_pod_admits_a_label_value_that_one_node_affinity_term_admits():
    """The node selector must admit the value too; a term without the label admits every value."""
    kind = a_kind(
        affinity=affinity({"zone": "ab"}, {"zone": "c", "size": "1"}, {"zone": "d"}), nodeSelector={"disk": "x"}
    )

    assert [value for value in "abcde" if kind.admits("zone", value)] == list("abcd")
    assert kind.admits("disk", "x")
    assert not kind.admits("disk", "y")
    assert kind.admits("size", "2")


@pytest.mark.parametrize("term", [{}, {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}])
def test_node_affinity_term_that_is_empty_or_names_a_field_admits_no_value(term):
    """Another term may still admit the value; an expression beside the field does not."""

    def admits(*terms):
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
        return a_kind(affinity={"nodeAffinity": required}).admits("zone", "a")

    in_zone = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}

    assert not admits(term)
    assert admits(term, in_zone)
    assert admits({**term, **in_zone}) == (not term)


@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_pod_requests_devices_when_any_container_does(kind):
    """A claim of a container counts even if the pod lists no resourceClaims, and the other way round."""
    plain = {"name": "p", "image": "i"}
    claiming = {"name": "c", "image": "i", "resources": {"claims": [{"name": "gpu"}]}}

    assert a_kind(**{kind: [plain, claiming]}).asks_for_devices
    assert a_kind(resourceClaims=[{"name": "gpu", "resourceClaimName": "gpu"}]).asks_for_devices
    assert not a_kind(**{kind: [plain]}).asks_for_devices


def test_preferred_node_affinity_is_no_requirement():
    """A node selector beside it is a requirement."""
    preferred = [{"weight": 1, "preference": {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}}]
    prefers = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}

    assert a_kind(affinity=prefers).node_requirements == ()
    assert a_kind(affinity={"podAffinity": {}}).node_requirements == ()
    assert len(a_kind(affinity=prefers, nodeSelector={"disk": "x", "a": "b"}).node_requirements) == 1
    assert a_kind(affinity=prefers).admits("zone", "a")


def test_daemon_overhead_uses_the_newest_pod_that_the_daemon_set_controls():
    """Pods without a creation time count as the oldest; a DaemonSet without pods uses its pod template."""
    agent = a_daemon_set("agent", cpu="100m")

    def pod(name, cpu, created, *, controller=True):
        """Return a pod owned by the DaemonSet."""
        owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "uid-agent"}
        metadata = {"creationTimestamp": created, "ownerReferences": [{**owner, "controller": controller}]}
        return a_pod(name, cpu=cpu, metadata=metadata)

    pods = (
        pod("middle", "200m", stamp(ago(hours=2))),
        pod("newest", "300m", stamp(ago(hours=1))),
        pod("undated", "400m", None),
        pod("foreign", "500m", stamp(ago(minutes=1)), controller=False),
    )

    assert daemon_of(agent, pods).requests["cpu"] == 300
    assert daemon_of(agent, pods[2:]).requests["cpu"] == 400
    assert daemon_of(agent, ()).requests["cpu"] == 100


def controlled_by(daemon_set, pod):
    """Return the pod, with the DaemonSet as its controller."""
    owner = OwnerReference(
        api_version="apps/v1", kind="DaemonSet", name="agent", uid=daemon_set.metadata.uid, controller=True
    )
    return replace(pod, metadata=replace(pod.metadata, owner_references=(owner,)))


@pytest.mark.parametrize(
    ("pending", "cpu"), [("", 64_000), ("Infeasible", 500)], ids=["that is under way", "that its node cannot meet"]
)
def test_daemon_overhead_counts_a_resize_of_the_newest_pod(pending, cpu):
    """The pod was given 64 CPU instead of 500m; it has what kube-scheduler counts for it, as for every other pod."""
    agent = a_daemon_set("agent", cpu="100m")
    pod = controlled_by(agent, a_pod("resized", cpu="64", node="n1", status=a_resize("500m", pending=pending)))

    assert daemon_of(agent, (pod,)).requests["cpu"] == cpu
    assert make_daemons((agent,), (pod,))[0][0].requests["cpu"] == cpu
