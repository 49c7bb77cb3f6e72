"""What daemons take of a node: their newest pod counts, and where they run is the DaemonSet's word."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from journeyman.core.api import labels
from journeyman.core.api.objects import OwnerReference
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.daemon_overhead import make_daemons, missing_daemon_overhead, nodepool_options_of
from journeyman.core.scheduling.nodeclaim_templates import make_templates
from journeyman.core.scheduling.pod_classes import HostPort
from tests.helpers.builders import LARGE, NOW, SMALL, a_daemon_set, a_node, a_pod, a_snapshot, stamp

AXES = ("cpu", "pods")
PORT = {"containerPort": 9100, "hostPort": 9100}


def of(daemon_set, pod):
    """The pod as one that the DaemonSet made."""
    owner = OwnerReference(api_version="apps/v1", kind="DaemonSet", uid=daemon_set.metadata.uid, controller=True)
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, owner_references=(owner,)))


def made(seconds_ago):
    """Metadata of a pod made then."""
    return {"creationTimestamp": stamp(NOW - timedelta(seconds=seconds_ago))}


def test_the_newest_pod_tells_what_a_daemon_takes():
    """A webhook has raised the requests since the template was written."""
    agent = a_daemon_set("agent", cpu="100m")
    old = of(agent, a_pod("old", cpu="200m", node="n1", metadata=made(600)))
    new = of(agent, a_pod("new", cpu="300m", node="n2", metadata=made(60)))

    assert make_daemons((agent,))[0].requests["cpu"] == 100
    assert make_daemons((agent,), (new, old, a_pod("other", cpu="9")))[0].requests["cpu"] == 300


def test_where_daemons_run_is_what_the_template_says():
    """A running daemon is bound to its own node by affinity; that is not for the others."""
    agent = a_daemon_set("agent")
    term = {"matchExpressions": [{"key": labels.ZONE, "operator": "In", "values": ["nowhere"]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
    running = of(agent, a_pod("running", node="n1", spec={"affinity": affinity}))

    (daemon,) = make_daemons((agent,), (running,))

    assert [dict(t) for t in daemon.terms] == [{}]


def test_a_daemon_that_cannot_be_read_takes_nothing():
    """Its pods could not be made either."""
    assert make_daemons((a_daemon_set("broken", cpu="lots"),)) == ()


def test_types_are_grouped_by_the_host_ports_that_their_daemons_use():
    """An exporter that runs on large nodes alone."""
    exporter = a_daemon_set("exporter", cpu="500m")
    spec = exporter.spec.template.spec
    ported = msgspec.convert(
        {**msgspec.to_builtins(spec.containers[0]), "ports": [PORT]}, type(spec.containers[0]), strict=False
    )
    changed = msgspec.structs.replace(spec, containers=(ported,), node_selector={labels.INSTANCE_TYPE: "m.large"})
    template = msgspec.structs.replace(exporter.spec.template, spec=changed)
    exporter = msgspec.structs.replace(exporter, spec=msgspec.structs.replace(exporter.spec, template=template))
    ((node_pool,), _) = make_templates(a_snapshot(), Catalogue({"default": (LARGE, SMALL)}))

    pool = nodepool_options_of(node_pool, make_daemons((exporter,)), AXES)

    taken = [pool.daemon_ports[group] for group in pool.daemon_group]
    assert taken == [frozenset({HostPort(port=9100, protocol="TCP", address="")}), frozenset()]
    assert pool.overhead[:, 0].tolist() == [500, 0]
    assert pool.sizes[:, 0].tolist() == [8000 - 80 - 500, 2000 - 80]


def test_a_pod_that_a_daemonset_owns_but_does_not_control_does_not_count():
    """Another controller made it."""
    agent = a_daemon_set("agent", cpu="100m")
    owner = OwnerReference(api_version="apps/v1", kind="DaemonSet", uid=agent.metadata.uid, controller=False)
    pod = a_pod("other", cpu="9", node="n1")
    pod = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, owner_references=(owner,)))

    assert make_daemons((agent,), (pod,))[0].requests["cpu"] == 100


def _required(*zones):
    """Node affinity to any of these zones, each a term of its own."""
    terms = [{"matchExpressions": [{"key": labels.ZONE, "operator": "In", "values": [zone]}]} for zone in zones]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def test_a_node_misses_the_daemons_that_tolerate_it_and_choose_it():
    """In zone a, tainted: one daemon chooses zones c or a, one zone b, one does not tolerate the taint, one runs."""
    sets = (
        a_daemon_set("here", cpu="100m", affinity=_required("c", "a")),
        a_daemon_set("elsewhere", cpu="200m", affinity=_required("b", "c")),
        a_daemon_set("delicate", cpu="400m", tolerations=[]),
        a_daemon_set("running", cpu="800m"),
    )
    node = a_node("n", spec={"taints": [{"key": "gpu", "effect": "NoSchedule"}]})
    pod = of(sets[3], a_pod("r", cpu="800m", memory="128Mi", node="node-n"))
    (found,) = a_snapshot(nodes=(node,), pods=(pod,)).state_nodes

    assert missing_daemon_overhead(found, make_daemons(sets))["cpu"] == 100


def test_a_type_runs_a_daemon_if_one_of_its_terms_matches():
    """The small type alone is chosen by the second term."""
    terms = [
        {"matchExpressions": [{"key": labels.INSTANCE_TYPE, "operator": "In", "values": [name]}]}
        for name in ("m.huge", "m.small")
    ]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    ((template,), _) = make_templates(a_snapshot(), Catalogue({"default": (LARGE, SMALL)}))

    pool = nodepool_options_of(template, make_daemons((a_daemon_set("agent", affinity=affinity),)), AXES)

    assert pool.overhead[:, 0].tolist() == [0, 100]
