"""Daemon overhead: the newest pod determines the requests, the DaemonSet's template determines the nodes."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from journeyman.core.api import labels
from journeyman.core.api.objects import OwnerReference
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.daemon_overhead import (
    make_daemons,
    missing_daemon_overhead,
    nodepool_options_of,
    report_oversized,
)
from journeyman.core.scheduling.nodeclaim_templates import make_templates
from journeyman.core.scheduling.pod_classes import HostPort
from tests.helpers.builders import LARGE, NOW, SMALL, a_daemon_set, a_node, a_pod, a_snapshot, stamp

AXES = ("cpu", "pods")
PORT = {"containerPort": 9100, "hostPort": 9100}


def controlled_by(daemon_set, pod):
    """Return the pod as one that the DaemonSet controls."""
    owner = OwnerReference(api_version="apps/v1", kind="DaemonSet", uid=daemon_set.metadata.uid, controller=True)
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, owner_references=(owner,)))


def created(seconds_ago):
    """Return the metadata of a pod that was created this many seconds ago."""
    return {"creationTimestamp": stamp(NOW - timedelta(seconds=seconds_ago))}


def test_daemon_requests_are_those_of_its_newest_pod():
    """The newest pod requests more than the template, for example because a webhook raised the requests."""
    agent = a_daemon_set("agent", cpu="100m")
    old = controlled_by(agent, a_pod("old", cpu="200m", node="n1", metadata=created(600)))
    new = controlled_by(agent, a_pod("new", cpu="300m", node="n2", metadata=created(60)))

    assert make_daemons((agent,))[0][0].requests["cpu"] == 100
    assert make_daemons((agent,), (new, old, a_pod("other", cpu="9")))[0][0].requests["cpu"] == 300


def test_daemon_node_affinity_is_that_of_the_template():
    """The DaemonSet controller binds each pod to its node by node affinity, which is irrelevant to other nodes."""
    agent = a_daemon_set("agent")
    term = {"matchExpressions": [{"key": labels.ZONE, "operator": "In", "values": ["nowhere"]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
    running = controlled_by(agent, a_pod("running", node="n1", spec={"affinity": affinity}))

    (daemon,), _ = make_daemons((agent,), (running,))

    assert [dict(t) for t in daemon.terms] == [{}]


@pytest.mark.parametrize(("cpu", "why"), [("lots", "'lots' is not a quantity"), ("9E", "asks for more cpu")])
def test_daemon_set_that_no_node_can_run_has_no_overhead(cpu, why):
    """Kubernetes creates no pod of the one and binds none of the other; both are reported."""
    daemons, (skipped,) = make_daemons((a_daemon_set("broken", cpu=cpu),))

    assert daemons == ()
    assert [str(ref) for ref in skipped.refs] == ["DaemonSet kube-system/broken"]
    assert why in skipped.why


def test_daemon_set_that_fits_on_no_instance_type_has_no_overhead():
    """Its pods stay pending whatever is launched; nodes for all other pods are launched without it, and it is reported."""
    gadgets = a_daemon_set("gadgets", cpu="1000")
    (templates, _) = make_templates(a_snapshot(), Catalogue({"default": (LARGE, SMALL)}))
    daemons, skipped = make_daemons((gadgets, a_daemon_set("agent", cpu="100m")))

    options = nodepool_options_of(templates[0], daemons, AXES)
    (found,) = report_oversized(templates, daemons)

    assert skipped == ()
    assert options.overhead.tolist() == [[100, 1], [100, 1]]
    assert [str(ref) for ref in found.refs] == ["DaemonSet kube-system/gadgets"]
    assert "fits on no instance type of NodePool default" in found.why


def test_instance_types_are_grouped_by_the_host_ports_of_their_daemons():
    """The exporter runs on large nodes only, so only the large type has its host port and overhead."""
    exporter = a_daemon_set("exporter", cpu="500m")
    spec = exporter.spec.template.spec
    ported = msgspec.convert(
        {**msgspec.to_builtins(spec.containers[0]), "ports": [PORT]}, type(spec.containers[0]), strict=False
    )
    changed = msgspec.structs.replace(spec, containers=(ported,), node_selector={labels.INSTANCE_TYPE: "m.large"})
    template = msgspec.structs.replace(exporter.spec.template, spec=changed)
    exporter = msgspec.structs.replace(exporter, spec=msgspec.structs.replace(exporter.spec, template=template))
    ((node_pool,), _) = make_templates(a_snapshot(), Catalogue({"default": (LARGE, SMALL)}))

    pool = nodepool_options_of(node_pool, make_daemons((exporter,))[0], AXES)

    taken = [pool.daemon_ports[group] for group in pool.daemon_group]
    assert taken == [frozenset({HostPort(port=9100, protocol="TCP", address="")}), frozenset()]
    assert pool.overhead[:, 0].tolist() == [500, 0]
    assert pool.sizes[:, 0].tolist() == [8000 - 80 - 500, 2000 - 80]


def test_pod_that_a_daemon_set_owns_but_does_not_control_does_not_count():
    """Another controller created the pod."""
    agent = a_daemon_set("agent", cpu="100m")
    owner = OwnerReference(api_version="apps/v1", kind="DaemonSet", uid=agent.metadata.uid, controller=False)
    pod = a_pod("other", cpu="9", node="n1")
    pod = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, owner_references=(owner,)))

    assert make_daemons((agent,), (pod,))[0][0].requests["cpu"] == 100


def _required(*zones):
    """Return a node affinity with one term for each of these zones."""
    terms = [{"matchExpressions": [{"key": labels.ZONE, "operator": "In", "values": [zone]}]} for zone in zones]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def test_missing_overhead_counts_daemons_that_tolerate_and_select_the_node():
    """One of four daemons is missing; one selects other zones, one lacks the toleration, one runs already."""
    sets = (
        a_daemon_set("here", cpu="100m", affinity=_required("c", "a")),
        a_daemon_set("elsewhere", cpu="200m", affinity=_required("b", "c")),
        a_daemon_set("delicate", cpu="400m", tolerations=[]),
        a_daemon_set("running", cpu="800m"),
    )
    node = a_node("n", spec={"taints": [{"key": "gpu", "effect": "NoSchedule"}]})
    pod = controlled_by(sets[3], a_pod("r", cpu="800m", memory="128Mi", node="node-n"))
    (found,) = a_snapshot(nodes=(node,), pods=(pod,)).state_nodes

    assert missing_daemon_overhead(found, make_daemons(sets)[0])["cpu"] == 100


def test_instance_type_runs_a_daemon_when_any_affinity_term_matches():
    """The first term matches neither type, the second term matches the small type."""
    terms = [
        {"matchExpressions": [{"key": labels.INSTANCE_TYPE, "operator": "In", "values": [name]}]}
        for name in ("m.huge", "m.small")
    ]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    ((template,), _) = make_templates(a_snapshot(), Catalogue({"default": (LARGE, SMALL)}))

    pool = nodepool_options_of(template, make_daemons((a_daemon_set("agent", affinity=affinity),))[0], AXES)

    assert pool.overhead[:, 0].tolist() == [0, 100]
