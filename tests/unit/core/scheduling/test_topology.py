"""Which pods a topology constraint counts, and how many of them each node and domain has."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from journeyman.core.api import labels
from journeyman.core.api.objects import (
    LabelSelector,
    LabelSelectorRequirement,
    Object,
    ObjectMeta,
    PodAffinityTerm,
    TopologySpreadConstraint,
)
from journeyman.core.scheduling.topology import (
    InverseAntiAffinityCounts,
    LabelIndex,
    NamespaceIndex,
    RunningPodCounts,
    domain_of,
    group_of,
    running_anti_affinities,
    spread_of,
)
from journeyman.core.state import StateNode
from journeyman.core.state.pod_predicates import selects
from tests.helpers.builders import NOW, a_node, a_pod, stamp

NAMESPACES = {
    name: msgspec.convert({"metadata": {"name": name, "labels": {"team": team}}}, Object)
    for name, team in {"default": "a", "shop": "a", "bank": "b"}.items()
}


def a_term(**fields):
    """Returns a pod affinity term that selects the pods of an app."""
    return msgspec.convert(
        {"topologyKey": labels.ZONE, "labelSelector": {"matchLabels": {"app": "web"}}, **fields}, PodAffinityTerm
    )


def a_group(own=None, **fields):
    """Returns the topology group of such a term of a pod in namespace `default`."""
    return group_of(a_term(**fields), "default", own or {}, NamespaceIndex(NAMESPACES))


EXPRESSION = st.builds(
    LabelSelectorRequirement,
    key=st.sampled_from(["team", "tier"]),
    operator=st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt"]),
    values=st.lists(st.sampled_from(["a", "b", "c"]), max_size=2).map(tuple),
)
LABELS = st.dictionaries(st.sampled_from(["team", "tier"]), st.sampled_from(["a", "b"]))


@given(
    own=st.lists(LABELS, max_size=6),
    selector=st.builds(
        LabelSelector, match_labels=LABELS, match_expressions=st.lists(EXPRESSION, max_size=3).map(tuple)
    ),
)
def test_namespace_index_selects_the_namespaces_that_the_selector_selects(own, selector):
    """By labels, without testing each namespace; an empty selector means all."""
    names = {f"n{number}": values for number, values in enumerate(own)}
    index = NamespaceIndex({n: Object(metadata=ObjectMeta(name=n, labels=values)) for n, values in names.items()})
    term = PodAffinityTerm(topology_key="k", namespace_selector=selector)

    is_empty = not selector.match_labels and not selector.match_expressions
    expected = None if is_empty else {n for n, values in names.items() if selects(selector, values)}
    assert index.of(term, "n0") == index.of(term, "n1") == expected


def test_terms_that_mean_the_same_namespaces_share_a_set():
    """Thousands of sets of thousands of names would fill the memory; the group's id holds a digest of a long list."""
    namespaces = {f"n{n}": Object(metadata=ObjectMeta(name=f"n{n}", labels={"team": "a"})) for n in range(1000)}
    index = NamespaceIndex(namespaces)
    not_in = [LabelSelectorRequirement(key="team", operator="NotIn", values=(other,)) for other in ("x", "y")]
    terms = [a_term(namespaceSelector=msgspec.to_builtins(LabelSelector(match_expressions=(e,)))) for e in not_in]

    first, second = (index.of(term, "n0") for term in terms)
    groups = [group_of(term, "n0", {}, index) for term in (*terms, a_term(namespaces=sorted(namespaces)[1:]))]

    assert first is second
    assert first == namespaces.keys()
    assert groups[0].id == groups[1].id != groups[2].id
    assert len(groups[0].id) < 200


def on_node(name, *pods, named=True, **node_labels):
    """Returns an unmanaged node with these pods; without `named` it has no hostname label."""
    node = a_node(name, metadata={"name": name, "labels": {labels.HOSTNAME: name, **node_labels}})
    kept = {k: v for k, v in node.metadata.labels.items() if named or k != labels.HOSTNAME}
    metadata = msgspec.structs.replace(node.metadata, labels=kept)
    return StateNode(node=msgspec.structs.replace(node, metadata=metadata), claim=None, pods=pods)


@pytest.mark.parametrize(
    ("fields", "namespaces"),
    [
        ({}, {"default"}),
        ({"namespaces": ["bank"]}, {"bank"}),
        ({"namespaceSelector": {"matchLabels": {"team": "a"}}}, {"default", "shop"}),
        ({"namespaceSelector": {"matchLabels": {"team": "a"}}, "namespaces": ["bank"]}, {"default", "shop", "bank"}),
        ({"namespaceSelector": {"matchLabels": {"team": "c"}}}, set()),
        ({"namespaceSelector": {}}, None),
    ],
)
def test_pod_affinity_term_applies_to_the_namespaces_it_names_or_selects(fields, namespaces):
    """The default is the pod's own namespace; an empty namespaceSelector selects all namespaces."""
    assert a_group(**fields).namespaces == (None if namespaces is None else frozenset(namespaces))


def test_equivalent_terms_give_equal_topology_groups():
    """Duplicates, aliases of the topology key, and labels written as expressions make no difference."""
    same = a_group(
        topologyKey="failure-domain.beta.kubernetes.io/zone",
        labelSelector={"matchExpressions": [{"key": "app", "operator": "In", "values": ["web", "web"]}] * 2},
    )

    assert same.id == a_group().id
    assert a_group().preferred.id != a_group().id
    assert a_group(namespaces=["shop"]).id != a_group().id


def test_match_and_mismatch_label_keys_narrow_a_pod_affinity_term():
    """A key that the pod lacks is ignored; a term without a label selector still counts no pod."""
    narrowed = a_group({"rev": "1", "cell": "x"}, matchLabelKeys=["rev", "none"], mismatchLabelKeys=["cell"])

    assert narrowed.counts("default", {"app": "web", "rev": "1", "cell": "y"})
    assert not narrowed.counts("default", {"app": "web", "rev": "2", "cell": "y"})
    assert not narrowed.counts("default", {"app": "web", "rev": "1", "cell": "x"})
    assert not a_group({"rev": "1"}, labelSelector=None, matchLabelKeys=["rev"]).counts("default", {"rev": "1"})


def test_spread_of_reads_all_fields_of_the_constraint():
    """The policies have the defaults of Kubernetes, and minDomains defaults to 1."""
    body = {"topologyKey": "rack", "labelSelector": {}, "maxSkew": 2, "matchLabelKeys": ["rev"]}
    plain = spread_of(msgspec.convert(body, TopologySpreadConstraint), "default", {"rev": "1"})
    policies = {"minDomains": 3, "nodeAffinityPolicy": "Ignore", "nodeTaintsPolicy": "Honor"}
    full = spread_of(msgspec.convert(body | policies, TopologySpreadConstraint), "default", {})

    assert (plain.key, plain.max_skew, plain.min_domains, plain.honors_node_affinity, plain.honors_node_taints) == (
        "rack",
        2,
        1,
        True,
        False,
    )
    assert (full.min_domains, full.honors_node_affinity, full.honors_node_taints) == (3, False, True)
    assert plain.counts("default", {"rev": "1"})
    assert not plain.counts("default", {"rev": "2"})


def test_anti_affinity_of_running_pods_excludes_only_their_own_domains():
    """Finished pods and pods to reschedule exclude nothing; the node name replaces a missing hostname label."""
    anti = {
        "affinity": {
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {"topologyKey": key, "labelSelector": {"matchLabels": {"app": "web"}}}
                    for key in (labels.ZONE, labels.HOSTNAME)
                ]
            }
        }
    }
    term = {"topologyKey": labels.ZONE, "labelSelector": {"matchLabels": {"app": "web"}}}
    preference = [{"weight": 1, "podAffinityTerm": term}]
    preferred = {"affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preference}}}
    nodes = [
        on_node("n1", a_pod("p1", node="n1", spec=anti), named=False, **{labels.ZONE: "a"}),
        on_node("n2", a_pod("p2", node="n2", spec=anti), **{labels.ZONE: "b"}),
        on_node("n3", a_pod("p3", node="n3", spec=anti, status={"phase": "Succeeded"}), **{labels.ZONE: "c"}),
        on_node("n4", a_pod("p4", node="n4"), **{labels.ZONE: "d"}),
        on_node("n5", a_pod("p5", node="n5", spec=preferred), **{labels.ZONE: "e"}),
    ]

    running = [entry for node in nodes for entry in running_anti_affinities(node, NamespaceIndex(NAMESPACES))]
    found = {
        r.group.key: r.domains
        for r in InverseAntiAffinityCounts(running).without(e for e in running if e.pod == "default/p2")
    }

    assert found == {labels.ZONE: {"a"}, labels.HOSTNAME: {"n1"}}


def test_running_pod_counts_are_by_node_and_by_domain():
    """Pods to reschedule, terminating pods and pods of other apps do not count; a domain without pods counts 0."""
    going = {"deletionTimestamp": stamp(NOW)}
    nodes = [
        on_node("n1", a_pod("a", node="n1"), a_pod("b", node="n1"), rack="r1"),
        on_node("n2", a_pod("c", node="n2"), a_pod("d", node="n2", metadata=going), rack="r1"),
        on_node("n3", a_pod("e", node="n3", metadata={"labels": {"app": "db"}}), rack="r2"),
        on_node("n4", a_pod("f", node="n4")),
    ]
    group = a_group(topologyKey="rack")
    pod_counts = RunningPodCounts(nodes, {"default/c"}, group.label_keys)

    assert pod_counts.by_node(group) == {"n1": 2, "n4": 1}
    assert pod_counts.by_domain(group) == {"r1": 2, "r2": 0}
    assert pod_counts.by_domain(group, lambda node: node.name != "n1") == {"r1": 0, "r2": 0}
    assert [domain_of(node, "rack") for node in nodes] == ["r1", "r1", "r2", None]
    rest = pod_counts.without({"n1", "n3"})
    assert rest.by_node(group) == {"n4": 1}
    assert rest.by_domain(group) == {"r1": 0}
    assert pod_counts.by_node(group) == {"n1": 2, "n4": 1}


class Entry(msgspec.Struct):
    """The fields of a pod that selectors read."""

    namespace: str
    labels: dict[str, str]


values = st.dictionaries(st.sampled_from("abc"), st.sampled_from("xyz"))
expressions = st.builds(
    lambda key, operator, found: {"key": key, "operator": operator, "values": found},
    st.sampled_from("abc"),
    st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"]),
    st.lists(st.sampled_from("xyz"), max_size=2),
)
selectors = st.none() | st.builds(
    lambda same, more: {"matchLabels": same, "matchExpressions": more}, values, st.lists(expressions, max_size=2)
)


@given(st.lists(st.builds(Entry, st.sampled_from(["default", "shop"]), values)), selectors, st.booleans())
def test_label_index_finds_the_same_entries_as_a_full_scan(entries, selector, everywhere):
    """The index agrees with a full scan for any selector, in one namespace or in all."""
    scope = {"namespaceSelector": {}} if everywhere else {}
    group = a_group(labelSelector=selector, **scope)

    expected = tuple(i for i, e in enumerate(entries) if group.counts(e.namespace, e.labels))

    assert LabelIndex(entries).counted_by(group) == expected
