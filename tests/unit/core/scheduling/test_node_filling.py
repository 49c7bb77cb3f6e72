"""Existing nodes: their free capacity, which pods they accept, and the order in which they are filled."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import msgspec
import pytest

from journeyman.core.api import labels
from journeyman.core.api.objects import PodSpec
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.node_filling import NodeFilling
from journeyman.core.scheduling.problem import ClusterInputs, SchedulingProblem, prepare_task
from journeyman.core.scheduling.results import Options
from journeyman.core.scheduling.scheduler import pods_to_schedule
from tests.helpers.builders import (
    EBS,
    TYPES,
    a_csi_node,
    a_daemon_set,
    a_node,
    a_pod,
    a_running_claim,
    a_snapshot,
    a_storage_class,
    a_volume_claim,
    ago,
    claims_as_volumes,
)


@dataclass(frozen=True)
class SchedulingTask:
    """A scheduling problem and the existing nodes that a test fills with pods."""

    problem: SchedulingProblem
    filling: NodeFilling

    def fill(self, app, count, pins=(), level=0):
        """Schedule pods of an app to the existing nodes; return how many do not fit."""
        return self.filling.fill(self.row(app, level), count, pins)

    def row(self, app, level=0):
        """Return the row of an app's pod class at a relaxation level."""
        levels = self.problem.levels
        found = [rows for rows in levels if self.problem.rows[rows[0]].pods[0].metadata.labels["app"] == app]
        return found[0][level]

    @property
    def where(self):
        """The number of pods that each node got."""
        nodes, found = self.problem.existing.nodes, Counter()
        for node, entries in self.filling.taken.items():
            found[nodes[node].name] += sum(n for _, n in entries)
        return dict(found)


def task_of(*pods, nodes=("n0",), **cluster):
    """Return the scheduling task for these pods and existing nodes of four CPUs each."""
    made = tuple(a_node(n) if isinstance(n, str) else n for n in nodes)
    claims = tuple(a_running_claim(n.metadata.name.removeprefix("node-")) for n in made)
    snapshot = a_snapshot(
        **{"nodes": made, "claims": claims, "pods": tuple(sorted(pods, key=lambda p: p.key)), **cluster}
    )
    catalogue = Catalogue({pool.metadata.name: TYPES for pool in snapshot.node_pools})
    problem = prepare_task(
        ClusterInputs.of(snapshot, catalogue, Options()), pods_to_schedule(snapshot), frozenset()
    ).problem
    return SchedulingTask(
        problem, NodeFilling(problem.existing, problem.rows, problem.requests, problem.host_constraints)
    )


def a_pod_of(app, name="", **kwargs):
    """Return a pod with the label of an app."""
    return a_pod(name or app, metadata={"labels": {"app": app}}, **kwargs)


def rule(kind, app, weight=None, key=labels.HOSTNAME):
    """Return a pod spec with one pod affinity or anti-affinity term; preferred if it has a weight."""
    term = {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}}
    if weight is None:
        return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
    preferred = [{"weight": weight, "podAffinityTerm": term}]
    return {"affinity": {kind: {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}}


def spread(app, skew=1):
    """Return a pod spec with a topology spread constraint over nodes for an app's pods."""
    return {
        "topologySpreadConstraints": [
            {
                "maxSkew": skew,
                "topologyKey": labels.HOSTNAME,
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {"app": app}},
            }
        ]
    }


def ports(*numbers):
    """Return a pod spec with a container that uses these host ports."""
    container_ports = [{"containerPort": n, "hostPort": n, "protocol": "TCP"} for n in numbers]
    return {"containers": [{"name": "c", "image": "i", "ports": container_ports}]}


# -- free capacity ----------------------------------------------------------------------------------------------------


def test_nodes_are_filled_in_karpenters_order():
    """Initialized nodes come first, then nodes are sorted by name; each node is filled before the next."""
    joining = a_node("n0", metadata={"labels": {labels.INITIALIZED: "false"}})
    task = task_of(a_pod_of("web"), nodes=(joining, "n1", "n2"))

    assert task.fill("web", 11) == 0
    assert task.where == {"node-n1": 4, "node-n2": 4, "node-n0": 3}


def test_running_pods_and_daemons_reduce_free_capacity():
    """A daemon that does not run on the node yet counts too; a node that is being deleted gets no pods."""
    running = a_pod_of("old", cpu="1", node="node-n0")
    leaving = a_pod_of("web", "leaving", cpu="1", node="node-n1")
    going = a_node("n1", deleting=ago(minutes=1))
    daemon = a_daemon_set("agent", cpu="500m")

    task = task_of(running, leaving, a_pod_of("web"), nodes=("n0", going), daemon_sets=(daemon,))

    assert task.fill("web", 9) == 7
    assert task.where == {"node-n0": 2}


def test_pods_pinned_to_a_zone_go_to_nodes_in_that_zone():
    """Only the node in zone b gets pods; the other pods stay unschedulable."""
    task = task_of(a_pod_of("web"), nodes=("n0", a_node("n1", metadata={"labels": {labels.ZONE: "b"}})))

    assert task.fill("web", 9, ((labels.ZONE, "b"),)) == 5
    assert task.where == {"node-n1": 4}


def test_node_without_a_label_satisfies_not_in_but_not_exists():
    """The node has no label `disk`."""
    expressions = {
        "exists": {"key": "disk", "operator": "Exists"},
        "not": {"key": "disk", "operator": "NotIn", "values": ["slow"]},
    }
    task = task_of(*(a_pod_of(app, spec={"affinity": _node_affinity(e)}) for app, e in expressions.items()))

    assert (task.fill("exists", 1), task.fill("not", 1)) == (1, 0)


def _node_affinity(expression):
    terms = [{"matchExpressions": [expression]}]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


@pytest.mark.parametrize("spec", [{"taints": [{"key": "mine", "effect": "NoSchedule"}]}, {"unschedulable": True}])
def test_tainted_or_cordoned_node_gets_only_pods_that_tolerate_it(spec):
    """A pod that tolerates every taint is scheduled; a pod without tolerations is not."""
    brave = a_pod_of("brave", spec={"tolerations": [{"operator": "Exists"}]})
    task = task_of(a_pod_of("web"), brave, nodes=(a_node("n0", spec=spec),))

    assert (task.fill("web", 1), task.fill("brave", 1)) == (1, 0)


def test_taking_pods_back_opens_the_node_to_them_again():
    """Anti-affinity and topology spread allow the same pods on the node as before."""
    task = task_of(a_pod_of("web", spec=rule("podAntiAffinity", "web")), a_pod_of("db", spec=spread("db")))
    before = task.filling.open_to(task.row("web")).tolist(), task.filling.open_to(task.row("db")).tolist()
    for app in ("web", "db"):
        for node, count in task.filling.place(task.row(app), 1):
            task.filling.take_back(task.row(app), node, count)

    assert task.where == {}
    assert before == (
        task.filling.open_to(task.row("web")).tolist(),
        task.filling.open_to(task.row("db")).tolist(),
    )


def test_pods_that_were_scheduled_before_count_and_are_kept():
    """A pod was scheduled to the first node before; anti-affinity sends the next pod to the second node."""
    web = [a_pod_of("web", f"web{n}", spec=rule("podAntiAffinity", "web")) for n in range(6)]
    task = task_of(*web, nodes=("n0", "n1"))
    problem, taken = task.problem, {0: [(task.row("web"), 1)]}

    filling = NodeFilling(problem.existing, problem.rows, problem.requests, problem.host_constraints, taken)

    assert filling.fill(task.row("web"), 5) == 4
    assert filling.taken == {0: [(task.row("web"), 1)], 1: [(task.row("web"), 1)]}


# -- constraints on one node ------------------------------------------------------------------------------------------


def test_topology_spread_counts_running_pods():
    """With a maxSkew of two, the node with one running pod gets one more pod and the empty node gets two."""
    running = a_pod_of("web", "old", cpu="0", node="node-n0")
    task = task_of(running, a_pod_of("web", spec=spread("web", 2)), nodes=("n0", "n1"))

    assert task.fill("web", 9) == 6
    assert task.where == {"node-n0": 1, "node-n1": 2}


def test_topology_spread_holds_for_pods_that_its_selector_does_not_match():
    """Two matching pods on the first node exceed maxSkew; all pods that fit go to the second node."""
    running = [a_pod_of("db", f"old{i}", cpu="0", node="node-n0") for i in range(2)]
    task = task_of(*running, a_pod_of("web", spec=spread("db")), nodes=("n0", "n1"))

    assert task.fill("web", 9) == 5
    assert task.where == {"node-n1": 4}


def test_anti_affinity_with_running_pods_holds_in_both_directions():
    """The new pods avoid the pod on the first node; the pod on the second node avoids the new pods."""
    selected = a_pod_of("db", "there", cpu="0", node="node-n0")
    shunning = a_pod_of("other", "shunning", cpu="0", node="node-n1", spec=rule("podAntiAffinity", "web"))
    task = task_of(selected, shunning, a_pod_of("web", spec=rule("podAntiAffinity", "db")), nodes=("n0", "n1", "n2"))

    assert task.fill("web", 9) == 5
    assert task.where == {"node-n2": 4}


def test_anti_affinity_holds_between_pods_that_are_scheduled_together():
    """The two pods get different nodes, whichever pod is scheduled first."""
    some = (a_pod_of("web", spec=rule("podAntiAffinity", "db")), a_pod_of("db"))
    for first, second in (("web", "db"), ("db", "web")):
        task = task_of(*some, nodes=("n0", "n1"))
        assert (task.fill(first, 1), task.fill(second, 1)) == (0, 0)
        assert task.where == {"node-n0": 1, "node-n1": 1}


def test_preferred_anti_affinity_of_a_scheduled_pod_does_not_block_relaxed_pods():
    """With the preference only one pod is scheduled; without it the other pods join that pod's node."""
    task = task_of(*(a_pod_of("web", f"web{n}", spec=rule("podAntiAffinity", "web", weight=1)) for n in range(3)))

    assert task.fill("web", 3) == 2
    assert task.fill("web", 2, level=1) == 0
    assert task.where == {"node-n0": 3}


def test_pod_affinity_needs_a_node_with_a_matching_pod():
    """The web pods stay unschedulable until a db pod is scheduled to the second node; then they join it."""
    task = task_of(a_pod_of("web", spec=rule("podAffinity", "db")), a_pod_of("db"), nodes=("n0", "n1"))

    assert task.fill("web", 2) == 2
    task.fill("db", 1, ((labels.HOSTNAME, "node-n1"),))
    assert task.fill("web", 2) == 0
    assert task.where == {"node-n1": 3}


def test_host_ports_of_running_pods_and_daemons_are_in_use():
    """A daemon's host port is in use even on a node where its pod does not run yet."""
    daemon = _with_spec(a_daemon_set("agent"), ports(80))
    running = a_pod_of("old", node="node-n0", spec=ports(81))
    some = (a_pod_of("a", spec=ports(80)), a_pod_of("b", spec=ports(81)))
    some += tuple(a_pod_of("c", f"c{n}", spec=ports(82)) for n in range(3))

    task = task_of(running, *some, nodes=("n0", "n1"), daemon_sets=(daemon,))

    assert (task.fill("a", 1), task.fill("b", 2), task.fill("c", 3)) == (1, 1, 1)
    assert task.where == {"node-n0": 1, "node-n1": 2}


def _with_spec(daemon_set, spec):
    """Return the DaemonSet with another pod spec."""
    template = msgspec.structs.replace(daemon_set.spec.template, spec=msgspec.convert(spec, PodSpec))
    return msgspec.structs.replace(daemon_set, spec=msgspec.structs.replace(daemon_set.spec, template=template))


# -- volumes ----------------------------------------------------------------------------------------------------------


def _storage(*names):
    """Return PersistentVolumeClaims and their StorageClass, which binds at the first consumer."""
    return {
        "persistent_volume_claims": tuple(a_volume_claim(name) for name in names),
        "storage_classes": (a_storage_class(),),
    }


def test_node_attaches_no_more_volumes_than_its_csi_driver_allows():
    """One of three attachments is in use, so two more pods fit; pods without volumes are not limited."""
    names = [f"c{i}" for i in range(5)]
    running = a_pod_of("old", cpu="0", node="node-n0", **claims_as_volumes("c0"))
    waiting = [a_pod_of("db", f"p{i}", cpu="100m", **claims_as_volumes(f"c{i}")) for i in range(1, 5)]
    limits = (a_csi_node("node-n0", **{EBS: 3}),)

    task = task_of(running, *waiting, a_pod_of("web"), **_storage(*names), csi_nodes=limits)

    assert task.fill("db", 4) == 2
    assert task.fill("web", 1) == 0


def test_a_shared_volume_is_attached_once():
    """A volume needs one attachment for all pods that use it, whether it is attached already or not."""
    running = a_pod_of("old", cpu="0", node="node-n0", **claims_as_volumes("one"))
    apps = {"a": "one", "b": "two", "c": "three"}
    waiting = [
        a_pod_of(app, f"{app}{i}", cpu="100m", **claims_as_volumes(claim))
        for app, claim in apps.items()
        for i in (1, 2)
    ]
    limits = (a_csi_node("node-n0", **{EBS: 2}),)

    task = task_of(running, *waiting, **_storage("one", "two", "three"), csi_nodes=limits)

    assert (task.fill("a", 1), task.fill("b", 2), task.fill("c", 2)) == (0, 0, 2)
    task.filling.take_back(task.row("b"), 0, 2)
    assert task.fill("c", 2) == 0


def test_daemon_host_ports_are_in_use_where_any_affinity_term_matches():
    """The daemon does not run on the node yet; a daemon whose terms match other zones uses no host port."""

    def listening(port):
        """Return a container that uses this host port."""
        ports = [{"containerPort": port, "hostPort": port}]
        return {"name": "c", "image": "i", "ports": ports, "resources": {"requests": {"cpu": "100m"}}}

    def exporter(name, port, *zones):
        """Return a DaemonSet with a host port and one node affinity term for each zone."""
        terms = [{"matchExpressions": [{"key": labels.ZONE, "operator": "In", "values": [zone]}]} for zone in zones]
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
        return a_daemon_set(name, containers=[listening(port)], affinity=affinity)

    task = task_of(
        *(a_pod_of(f"app-{port}", spec={"containers": [listening(port)]}) for port in (80, 81)),
        daemon_sets=(exporter("here", 80, "c", "a"), exporter("elsewhere", 81, "c", "b")),
    )

    assert (task.fill("app-80", 1), task.fill("app-81", 1)) == (1, 0)
