"""Tests of what the verification of plans reads in pods and DaemonSets."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from journeyman.core.api.objects import OwnerReference
from journeyman.core.scheduling.daemon_overhead import make_daemons
from journeyman.core.scheduling.verify.matching import PodKind, daemons_of
from tests.helpers.builders import a_daemon_set, a_pod, a_resize, a_snapshot, ago, stamp


def a_kind(**spec):
    """Return the PodKind of a pod with this spec."""
    return PodKind.of(a_pod("p", spec=spec))


def overhead(daemon_set, *pods):
    """Return the CPU of a DaemonSet's pod in a cluster with these pods."""
    snapshot = a_snapshot(daemon_sets=(daemon_set,), pods=pods)
    return daemons_of(snapshot, ignore_dra_requests=True)[0].requests["cpu"]


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

    assert overhead(agent, *pods) == 300
    assert overhead(agent, *pods[2:]) == 400
    assert overhead(agent) == 100


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

    assert overhead(agent, pod) == cpu
    assert make_daemons((agent,), (pod,))[0][0].requests["cpu"] == cpu
