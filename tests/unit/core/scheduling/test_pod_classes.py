"""Tests of grouping pods into pod classes, and of the constraints that a pod class contains."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from journeyman.core.api import labels
from journeyman.core.api.objects import LabelSelector, PodAffinityTerm
from journeyman.core.scheduling.pod_classes import HostPort, group_pods
from journeyman.core.scheduling.requirements import EMPTY, from_labels
from journeyman.core.scheduling.topology import InverseAntiAffinity, NamespaceIndex, group_of
from journeyman.core.scheduling.volumes import PodVolumes
from tests.helpers.builders import NOW, a_pod, ago, stamp

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def labelled(**values):
    """Metadata with these labels."""
    return {"labels": values}


def apart_from(app, key=labels.HOSTNAME):
    """Return a spec with required anti-affinity to the pods of an app."""
    term = {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}}
    return {"affinity": {"podAntiAffinity": {REQUIRED: [term]}}}


def by_name(classes):
    """Return the names of the pods in each class."""
    return [tuple(pod.metadata.name for pod in cls.pods) for cls in classes]


def test_pods_that_differ_only_in_fields_irrelevant_to_scheduling_share_a_class():
    """They differ in names, container ports, priority, token volumes, and labels that no selector uses."""
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


def test_pods_with_equivalent_constraints_share_a_class():
    """Node selector or node affinity term, tolerations in any order and with any tolerationSeconds."""
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


def test_pods_with_different_labels_get_separate_classes_when_a_selector_uses_the_label():
    """The selector belongs to another pending pod or to the anti-affinity of a running pod."""
    watching = [a_pod("a"), a_pod("b", metadata=labelled(app="db")), a_pod("c", spec=apart_from("db"))]
    running = InverseAntiAffinity(
        group=group_of(
            PodAffinityTerm(topology_key="k", label_selector=LabelSelector(match_labels={"app": "db"})),
            "default",
            {},
            NamespaceIndex({}),
        ),
        domains=frozenset({"x"}),
    )

    assert by_name(group_pods(watching, {})[0]) == [("a",), ("b",), ("c",)]
    assert by_name(group_pods(watching[:2], {}, inverse_anti_affinities=[running])[0]) == [("a",), ("b",)]
    assert by_name(group_pods(watching[:2], {})[0]) == [("a", "b")]


def test_classes_and_their_pods_are_sorted_by_cpu_memory_and_age():
    """CPU is compared first, then memory, then creation time."""
    pods = [
        a_pod("small", cpu="1"),
        a_pod("late", cpu="2", metadata={"creationTimestamp": stamp(NOW)}),
        a_pod("large", cpu="2", memory="2Gi", metadata={"creationTimestamp": stamp(NOW)}),
        a_pod("early", cpu="2", metadata={"creationTimestamp": stamp(ago(hours=1))}),
    ]

    assert by_name(group_pods(pods, {})[0]) == [("large",), ("early", "late"), ("small",)]


@given(st.permutations(range(8)))
def test_pod_classes_do_not_depend_on_the_order_of_pods(order):
    """The same pods give the same classes in any order."""
    pods = [
        a_pod(f"p{i}", cpu=str(1 + i % 2), metadata=labelled(app=f"a{i % 3}"), spec=apart_from("a1")) for i in range(8)
    ]

    assert by_name(group_pods([pods[i] for i in order], {})[0]) == by_name(group_pods(pods, {})[0])


def test_class_contains_host_ports_volumes_node_terms_and_anti_affinity():
    """The class has everything that a solver needs to schedule its pods."""
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


def test_pods_with_equal_volumes_share_a_class_and_a_missing_volume_claim_is_an_error():
    """Like pods of a StatefulSet, each pod has its own PersistentVolumeClaim."""

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


def test_required_and_preferred_constraints_on_the_same_pods_use_separate_groups():
    """The spread is required and the anti-affinity is preferred, with the same selector and topology key."""
    term = {"topologyKey": labels.ZONE, "labelSelector": {"matchLabels": {"app": "web"}}}
    spec = {
        "topologySpreadConstraints": [term],
        "affinity": {"podAntiAffinity": {PREFERRED: [{"weight": 1, "podAffinityTerm": term}]}},
    }

    (cls,), _ = group_pods([a_pod("p", spec=spec)], {})

    assert cls.preferences.anti_affinities[0].id != cls.spreads[0].group.id
    assert cls.preferences.anti_affinities[0].selector == cls.spreads[0].group.selector
