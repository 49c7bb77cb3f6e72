"""Nodes that exist: what is free on them, who may go there, and in which order they are filled."""

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
    """Existing nodes to be filled, by hand."""

    problem: SchedulingProblem
    filling: NodeFilling

    def fill(self, app, count, pins=(), level=0):
        """Place pods of an app; how many are left."""
        return self.filling.fill(self.row(app, level), count, pins)

    def row(self, app, level=0):
        """A row of an app's class."""
        levels = self.problem.levels
        found = [rows for rows in levels if self.problem.rows[rows[0]].pods[0].metadata.labels["app"] == app]
        return found[0][level]

    @property
    def where(self):
        """How many pods went to each node."""
        nodes, found = self.problem.existing.nodes, Counter()
        for node, entries in self.filling.taken.items():
            found[nodes[node].name] += sum(n for _, n in entries)
        return dict(found)


def asking(*pods, nodes=("n0",), **cluster):
    """What there is for these pods on nodes of four CPUs each."""
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
    """A pod of an app."""
    return a_pod(name or app, metadata={"labels": {"app": app}}, **kwargs)


def rule(kind, app, weight=None, key=labels.HOSTNAME):
    """A spec with one (anti-)affinity term; preferred if it has a weight."""
    term = {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}}
    if weight is None:
        return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
    preferred = [{"weight": weight, "podAffinityTerm": term}]
    return {"affinity": {kind: {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}}


def spread(app, skew=1):
    """So many of an app's pods a node."""
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
    """A container that asks for ports of its node."""
    asked = [{"containerPort": n, "hostPort": n, "protocol": "TCP"} for n in numbers]
    return {"containers": [{"name": "c", "image": "i", "ports": asked}]}


# -- what is free -----------------------------------------------------------------------------------------------------


def test_nodes_are_filled_in_karpenters_order():
    """Initialized ones first, then by name; each until it is full."""
    joining = a_node("n0", metadata={"labels": {labels.INITIALIZED: "false"}})
    asked = asking(a_pod_of("web"), nodes=(joining, "n1", "n2"))

    assert asked.fill("web", 11) == 0
    assert asked.where == {"node-n1": 4, "node-n2": 4, "node-n0": 3}


def test_running_pods_and_daemons_take_their_part():
    """Daemons that are not there yet included; pods that are to be placed anew take nothing."""
    running = a_pod_of("old", cpu="1", node="node-n0")
    leaving = a_pod_of("web", "leaving", cpu="1", node="node-n1")
    going = a_node("n1", deleting=ago(minutes=1))
    daemon = a_daemon_set("agent", cpu="500m")

    asked = asking(running, leaving, a_pod_of("web"), nodes=("n0", going), daemon_sets=(daemon,))

    assert asked.fill("web", 9) == 7
    assert asked.where == {"node-n0": 2}


def test_units_with_labels_go_to_nodes_that_have_them():
    """Zone b is one of them."""
    asked = asking(a_pod_of("web"), nodes=("n0", a_node("n1", metadata={"labels": {labels.ZONE: "b"}})))

    assert asked.fill("web", 9, ((labels.ZONE, "b"),)) == 5
    assert asked.where == {"node-n1": 4}


def test_a_node_without_a_label_suits_no_demand_for_it():
    """Not even Exists; NotIn it does."""
    expressions = {
        "exists": {"key": "disk", "operator": "Exists"},
        "not": {"key": "disk", "operator": "NotIn", "values": ["slow"]},
    }
    asked = asking(*(a_pod_of(app, spec={"affinity": _node_affinity(e)}) for app, e in expressions.items()))

    assert (asked.fill("exists", 1), asked.fill("not", 1)) == (1, 0)


def _node_affinity(expression):
    terms = [{"matchExpressions": [expression]}]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


@pytest.mark.parametrize("spec", [{"taints": [{"key": "mine", "effect": "NoSchedule"}]}, {"unschedulable": True}])
def test_taints_and_cordons_keep_pods_away(spec):
    """Unless they tolerate them."""
    brave = a_pod_of("brave", spec={"tolerations": [{"operator": "Exists"}]})
    asked = asking(a_pod_of("web"), brave, nodes=(a_node("n0", spec=spec),))

    assert (asked.fill("web", 1), asked.fill("brave", 1)) == (1, 0)


def test_what_is_taken_back_is_free_again():
    """As if it had never been there."""
    asked = asking(a_pod_of("web", spec=rule("podAntiAffinity", "web")), a_pod_of("db", spec=spread("db")))
    before = asked.filling.open_to(asked.row("web")).tolist(), asked.filling.open_to(asked.row("db")).tolist()
    for app in ("web", "db"):
        for node, count in asked.filling.place(asked.row(app), 1):
            asked.filling.take_back(asked.row(app), node, count)

    assert asked.where == {}
    assert before == (
        asked.filling.open_to(asked.row("web")).tolist(),
        asked.filling.open_to(asked.row("db")).tolist(),
    )


def test_what_earlier_engines_placed_counts():
    """And is kept beside what comes after."""
    asked = asking(a_pod_of("web", spec=rule("podAntiAffinity", "web")), nodes=("n0", "n1"))
    problem, taken = asked.problem, {0: [(asked.row("web"), 1)]}

    filling = NodeFilling(problem.existing, problem.rows, problem.requests, problem.host_constraints, taken)

    assert filling.fill(asked.row("web"), 5) == 4
    assert filling.taken == {0: [(asked.row("web"), 1)], 1: [(asked.row("web"), 1)]}


# -- rules about one node ---------------------------------------------------------------------------------------------


def test_spread_counts_the_pods_that_run():
    """One of two is there already; pods that are merely counted are free."""
    running = a_pod_of("web", "old", cpu="0", node="node-n0")
    asked = asking(running, a_pod_of("web", spec=spread("web", 2)), nodes=("n0", "n1"))

    assert asked.fill("web", 9) == 6
    assert asked.where == {"node-n0": 1, "node-n1": 2}


def test_spread_of_pods_it_does_not_count_heeds_those_it_does():
    """As long as there are not too many, they may all go there."""
    running = [a_pod_of("db", f"old{i}", cpu="0", node="node-n0") for i in range(2)]
    asked = asking(*running, a_pod_of("web", spec=spread("db")), nodes=("n0", "n1"))

    assert asked.fill("web", 9) == 5
    assert asked.where == {"node-n1": 4}


def test_anti_affinity_holds_against_pods_that_run_and_both_ways():
    """A pod it selects runs on the first node, a pod that shuns it on the second."""
    selected = a_pod_of("db", "there", cpu="0", node="node-n0")
    shunning = a_pod_of("other", "shunning", cpu="0", node="node-n1", spec=rule("podAntiAffinity", "web"))
    asked = asking(selected, shunning, a_pod_of("web", spec=rule("podAntiAffinity", "db")), nodes=("n0", "n1", "n2"))

    assert asked.fill("web", 9) == 5
    assert asked.where == {"node-n2": 4}


def test_anti_affinity_holds_among_pods_placed_now():
    """Whichever of the two comes first."""
    some = (a_pod_of("web", spec=rule("podAntiAffinity", "db")), a_pod_of("db"))
    for first, second in (("web", "db"), ("db", "web")):
        asked = asking(*some, nodes=("n0", "n1"))
        assert (asked.fill(first, 1), asked.fill(second, 1)) == (0, 0)
        assert asked.where == {"node-n0": 1, "node-n1": 1}


def test_a_preference_binds_a_pod_only_when_it_is_placed():
    """Afterwards others may join it; and a lower level joins them."""
    asked = asking(a_pod_of("web", spec=rule("podAntiAffinity", "web", weight=1)))

    assert asked.fill("web", 3) == 2
    assert asked.fill("web", 2, level=1) == 0
    assert asked.where == {"node-n0": 3}


def test_affinity_goes_where_a_pod_is():
    """One that runs or one that was placed; nowhere else."""
    asked = asking(a_pod_of("web", spec=rule("podAffinity", "db")), a_pod_of("db"), nodes=("n0", "n1"))

    assert asked.fill("web", 2) == 2
    asked.fill("db", 1, ((labels.HOSTNAME, "node-n1"),))
    assert asked.fill("web", 2) == 0
    assert asked.where == {"node-n1": 3}


def test_host_ports_of_pods_and_daemons_are_in_use():
    """A daemon's from the start, be it there yet or not."""
    daemon = _with_spec(a_daemon_set("agent"), ports(80))
    running = a_pod_of("old", node="node-n0", spec=ports(81))
    some = (a_pod_of("a", spec=ports(80)), a_pod_of("b", spec=ports(81)), a_pod_of("c", spec=ports(82)))

    asked = asking(running, *some, nodes=("n0", "n1"), daemon_sets=(daemon,))

    assert (asked.fill("a", 1), asked.fill("b", 2), asked.fill("c", 3)) == (1, 1, 1)
    assert asked.where == {"node-n0": 1, "node-n1": 2}


def _with_spec(daemon_set, spec):
    """The same with another pod spec."""
    template = msgspec.structs.replace(daemon_set.spec.template, spec=msgspec.convert(spec, PodSpec))
    return msgspec.structs.replace(daemon_set, spec=msgspec.structs.replace(daemon_set.spec, template=template))


# -- volumes ----------------------------------------------------------------------------------------------------------


def _storage(*names):
    """Claims of a class that binds late."""
    return {
        "persistent_volume_claims": tuple(a_volume_claim(name) for name in names),
        "storage_classes": (a_storage_class(),),
    }


@pytest.mark.karpenter("provisioning/scheduling", it="should launch multiple nodes if required due to volume limits")
def test_a_node_attaches_no_more_volumes_than_its_driver_can():
    """One is attached already, of three; pods without volumes do not care."""
    names = [f"c{i}" for i in range(5)]
    running = a_pod_of("old", cpu="0", node="node-n0", **claims_as_volumes("c0"))
    waiting = [a_pod_of("db", f"p{i}", cpu="100m", **claims_as_volumes(f"c{i}")) for i in range(1, 5)]
    limits = (a_csi_node("node-n0", **{EBS: 3}),)

    asked = asking(running, *waiting, a_pod_of("web"), **_storage(*names), csi_nodes=limits)

    assert asked.fill("db", 4) == 2
    assert asked.fill("web", 1) == 0


@pytest.mark.karpenter("provisioning/scheduling", it="should launch a single node if all pods use the same PVC")
def test_a_shared_volume_is_attached_once():
    """However many pods use it, and whether it was there before."""
    running = a_pod_of("old", cpu="0", node="node-n0", **claims_as_volumes("one"))
    apps = {"a": "one", "b": "two", "c": "three"}
    waiting = [
        a_pod_of(app, f"{app}{i}", cpu="100m", **claims_as_volumes(claim))
        for app, claim in apps.items()
        for i in (1, 2)
    ]
    limits = (a_csi_node("node-n0", **{EBS: 2}),)

    asked = asking(running, *waiting, **_storage("one", "two", "three"), csi_nodes=limits)

    assert (asked.fill("a", 1), asked.fill("b", 2), asked.fill("c", 2)) == (0, 0, 2)
    asked.filling.take_back(asked.row("b"), 0, 2)
    assert asked.fill("c", 2) == 0


def test_ports_of_daemons_that_choose_a_node_by_any_term_are_taken_there():
    """A daemon has not started there yet; one that chooses other zones takes nothing."""

    def listening(port):
        """A container that listens on its node."""
        ports = [{"containerPort": port, "hostPort": port}]
        return {"name": "c", "image": "i", "ports": ports, "resources": {"requests": {"cpu": "100m"}}}

    def exporter(name, port, *zones):
        """A daemon that listens in these zones, each a term of its own."""
        terms = [{"matchExpressions": [{"key": labels.ZONE, "operator": "In", "values": [zone]}]} for zone in zones]
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
        return a_daemon_set(name, containers=[listening(port)], affinity=affinity)

    task = asking(
        *(a_pod_of(f"app-{port}", spec={"containers": [listening(port)]}) for port in (80, 81)),
        daemon_sets=(exporter("here", 80, "c", "a"), exporter("elsewhere", 81, "c", "b")),
    )

    assert (task.fill("app-80", 1), task.fill("app-81", 1)) == (1, 0)
