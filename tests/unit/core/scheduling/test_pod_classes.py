"""Which pods are alike, and what a class keeps of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from journeyman.core.api import labels
from journeyman.core.api.objects import LabelSelector, PodAffinityTerm
from journeyman.core.scheduling.pod_classes import HostPort, group_pods
from journeyman.core.scheduling.requirements import EMPTY, from_labels
from journeyman.core.scheduling.topology import InverseAntiAffinity, group_of
from journeyman.core.scheduling.volumes import PodVolumes
from tests.helpers.builders import NOW, a_pod, ago, stamp

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def labelled(**values):
    """Metadata with these labels."""
    return {"labels": values}


def apart_from(app, key=labels.HOSTNAME):
    """A spec with required anti-affinity to the pods of an app."""
    term = {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}}
    return {"affinity": {"podAntiAffinity": {REQUIRED: [term]}}}


def by_name(classes):
    """The pods' names, class by class."""
    return [tuple(pod.metadata.name for pod in cls.pods) for cls in classes]


def test_pods_that_only_differ_in_what_scheduling_cannot_see_are_one_class():
    """Names, container names, ports that are not the node's, priorities, tokens, labels that no selector uses."""
    other = {
        "containers": [
            {"name": "x", "ports": [{"containerPort": 1}], "resources": {"requests": {"cpu": "1000m", "memory": "1Gi"}}}
        ]
    }
    pods = [
        a_pod("a"),
        a_pod("b", metadata=labelled(app="other")),
        a_pod("c", spec={"priority": 7, "volumes": [{"name": "kube-api-access-x"}]}),
        a_pod("d", spec=other),
    ]

    classes, errors = group_pods(pods, {})

    assert by_name(classes) == [("a", "b", "c", "d")]
    assert not errors


def test_pods_that_say_the_same_in_other_words_are_one_class():
    """A node selector or a term for it, tolerations in any order and however long they last, labels or expressions."""
    first, second = {"key": "a", "operator": "Exists", "tolerationSeconds": 9}, {"key": "b", "operator": "Exists"}
    arch = {"key": labels.ARCH, "operator": "In", "values": ["arm64"]}
    term = {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [arch]}]}}
    pods = [
        a_pod("a", spec={"nodeSelector": {labels.ARCH: "arm64"}, "tolerations": [first, second]}),
        a_pod(
            "b", spec={"affinity": {"nodeAffinity": term}, "tolerations": [second, first | {"tolerationSeconds": 1}]}
        ),
    ]

    assert by_name(group_pods(pods, {})[0]) == [("a", "b")]


def test_labels_tell_pods_apart_once_a_selector_looks_at_them():
    """A selector of another pod's, or of a pod that runs."""
    watching = [a_pod("a"), a_pod("b", metadata=labelled(app="db")), a_pod("c", spec=apart_from("db"))]
    running = InverseAntiAffinity(
        group=group_of(
            PodAffinityTerm(topology_key="k", label_selector=LabelSelector(match_labels={"app": "db"})),
            "default",
            {},
            {},
        ),
        domains=frozenset({"x"}),
    )

    assert by_name(group_pods(watching, {})[0]) == [("a",), ("b",), ("c",)]
    assert by_name(group_pods(watching[:2], {}, repelled=[running])[0]) == [("a",), ("b",)]
    assert by_name(group_pods(watching[:2], {})[0]) == [("a", "b")]


def test_classes_are_in_queue_order_and_so_are_their_pods():
    """CPU first, then memory, then age."""
    pods = [
        a_pod("small", cpu="1"),
        a_pod("late", cpu="2", metadata={"creationTimestamp": stamp(NOW)}),
        a_pod("large", cpu="2", memory="2Gi", metadata={"creationTimestamp": stamp(NOW)}),
        a_pod("early", cpu="2", metadata={"creationTimestamp": stamp(ago(hours=1))}),
    ]

    assert by_name(group_pods(pods, {})[0]) == [("large",), ("early", "late"), ("small",)]


@given(st.permutations(range(8)))
def test_arrival_order_never_matters(order):
    """The same pods make the same classes however they are listed."""
    pods = [
        a_pod(f"p{i}", cpu=str(1 + i % 2), metadata=labelled(app=f"a{i % 3}"), spec=apart_from("a1")) for i in range(8)
    ]

    assert by_name(group_pods([pods[i] for i in order], {})[0]) == by_name(group_pods(pods, {})[0])


def test_a_class_keeps_ports_volumes_and_rules():
    """All that an engine needs to place its pods."""
    spec = {
        "containers": [{"name": "c", "ports": [{"hostPort": 80, "hostIP": "10.0.0.1"}, {"containerPort": 9}]}],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}],
        "nodeSelector": {labels.ARCH: "arm64"},
        **apart_from("web"),
    }
    zones = tuple(from_labels({labels.ZONE: zone}) for zone in "ab")
    found = PodVolumes(terms=zones, counts={"ebs": 1})

    (cls,), _ = group_pods([a_pod("p", spec=spec)], {}, volumes_of=lambda _pod: found)

    assert cls.ports == (HostPort(port=80, protocol="TCP", address="10.0.0.1"),)
    assert cls.volume_counts == {"ebs": 1}
    assert cls.node_terms == tuple(from_labels({labels.ARCH: "arm64", labels.ZONE: zone}) for zone in "ab")
    assert [group.key for group in cls.anti_affinities] == [labels.HOSTNAME]
    assert cls.anti_affinities[0].counts("default", {"app": "web"})
    assert not cls.anti_affinities[0].counts("other", {"app": "web"})


def test_equal_volumes_make_one_class_and_a_missing_claim_fails_its_pod():
    """As the pods of a StatefulSet, each with a claim of its own."""

    def volumes_of(pod):
        name = pod.spec.volumes[0].persistent_volume_claim.claim_name
        return "no such claim" if name == "lost" else PodVolumes(terms=(EMPTY,), counts={"ebs": 1})

    pods = [
        a_pod(name, spec={"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]})
        for name, claim in {"p0": "c0", "p1": "c1", "p2": "lost"}.items()
    ]

    classes, errors = group_pods(pods, {}, volumes_of=volumes_of)

    assert by_name(classes) == [("p0", "p1")]
    assert [(key, error.kind, error.message) for key, error in errors.items()] == [
        ("default/p2", "invalid", "no such claim")
    ]


def test_a_rule_and_a_preference_about_the_same_pods_stay_apart():
    """One group is required by the one and merely preferred by the other."""
    term = {"topologyKey": labels.ZONE, "labelSelector": {"matchLabels": {"app": "web"}}}
    spec = {
        "topologySpreadConstraints": [term],
        "affinity": {"podAntiAffinity": {PREFERRED: [{"weight": 1, "podAffinityTerm": term}]}},
    }

    (cls,), _ = group_pods([a_pod("p", spec=spec)], {})

    assert cls.preferences.anti_affinities[0].id != cls.spreads[0].group.id
    assert cls.preferences.anti_affinities[0].selector == cls.spreads[0].group.selector
