"""Binding orders: a removal is proposed only if its pods find capacity in any order in which they are evicted."""

import pytest

from journeyman.core.api import labels
from journeyman.core.disruption.binding_orders import unbound_pod
from journeyman.core.disruption.candidates import NodePoolName
from journeyman.core.disruption.commands import Decision
from journeyman.core.disruption.consolidation import compute_consolidation
from journeyman.core.disruption.simulation import Simulation
from journeyman.core.disruption.single_node_consolidation import single_node_commands
from journeyman.core.scheduling.nodeclaim_templates import FEWEST_NODES
from tests.helpers import builders
from tests.helpers.disrupting import a_pdb, candidates_of
from tests.helpers.fleets import TYPES, a_catalogue, a_fleet, a_member, a_pod, a_pool


def removal(snapshot, *names: str):
    """The command that removes these nodes."""
    candidates = candidates_of(snapshot, a_catalogue())
    return compute_consolidation(Simulation(snapshot, a_catalogue()), [candidates[name] for name in names])


def test_pods_that_may_take_the_room_of_a_larger_one_of_their_class_are_found():
    """kube-scheduler binds the smaller one to the emptier node, if it comes first."""
    snapshot = a_fleet(a_member("a", cpus=["3"]), a_member("b", cpus=["3400m"]), a_member("n", cpus=["1", "600m"]))
    command = removal(snapshot, "n")
    assert command.decision is Decision.DELETE
    assert unbound_pod(command, snapshot, a_catalogue()) == "default/n-0"


@pytest.mark.parametrize(("allowed", "unbound"), [(2, ""), (1, "default/n-large-1")])
def test_small_pods_come_after_large_ones_unless_a_budget_delays_these(allowed, unbound):
    """Each of three nodes has a core free: bound first, two halves would go to different nodes."""
    labelled = {"labels": {"app": "large"}}
    large = [a_pod(f"n-large-{i}", node="node-n", cpu="1", metadata=labelled) for i in range(2)]
    members = (*(a_member(name, cpus=["3"]) for name in "abc"), a_member("n", size="l", pods=large, cpus=["500m"] * 2))
    budget = a_pdb("large", allowed=allowed, selector={"matchLabels": {"app": "large"}})
    snapshot = a_fleet(*members, pdbs=(budget,))

    assert unbound_pod(removal(snapshot, "n"), snapshot, a_catalogue()) == unbound


def test_nodes_of_nodepools_with_karpenters_packing_are_removed_without_the_check():
    """Such a NodePool asks for Karpenter's decisions."""
    pool = a_pool()
    pool.metadata.annotations[labels.PACKING] = FEWEST_NODES
    members = (a_member("a", cpus=["3"]), a_member("b", cpus=["3400m"]), a_member("n", cpus=["1", "600m"]))
    snapshot = a_fleet(*members, pools=[pool])
    assert unbound_pod(removal(snapshot, "n"), snapshot, a_catalogue()) == ""


def test_removal_with_room_in_any_order_is_safe():
    """Whichever node a pod is bound to, the next one fits: there is capacity for the small ones elsewhere, or for all.

    kube-scheduler prefers the emptiest node, which is the replacement. A pod with host ports is bound where it was planned: its
    capacity on the only node without its port is not given to another node's pods. An empty node needs no simulation.
    """
    ports = {"containers": [{"name": "c", "ports": [{"hostPort": 80, "containerPort": 80}]}]}
    one, two = a_pod("one", node="node-a", cpu="100m", spec=ports), a_pod("two", node="node-n", cpu="1", spec=ports)
    small = a_member("n", cpus=["500m", "500m"])
    large = a_member("n", size="xl", cpus=["1400m"] * 5)
    for members, decision in (
        ((a_member("a", cpus=["3"]), a_member("b", cpus=["2"]), small), Decision.DELETE),
        ((a_member("a", cpus=["1"]), a_member("b", cpus=["1"]), small), Decision.DELETE),
        ((large, a_member("full", size="s", cpus=["1900m"])), Decision.REPLACE),
        (
            (
                a_member("a", pods=[one]),
                a_member("b", cpus=["2500m"]),
                a_member("n", pods=[two], cpus=["300m", "200m"]),
            ),
            Decision.DELETE,
        ),
    ):
        snapshot = a_fleet(*members)
        command = removal(snapshot, "n")
        assert (command.decision, unbound_pod(command, snapshot, a_catalogue())) == (decision, "")

    command = removal(a_fleet(a_member("n", size="xl", cpus=["15"])), "n")
    assert unbound_pod(command, a_fleet(a_member("n")), a_catalogue()) == ""


def single_node_command(snapshot, catalogue, **options):
    """The command of single-node consolidation for the only candidate `n`."""
    [examined] = single_node_commands(
        Simulation(snapshot, catalogue),
        [candidates_of(snapshot, catalogue)["n"]],
        {NodePoolName("default"): 1},
        unbound=lambda command: unbound_pod(command, snapshot, catalogue),
        **options,
    )
    return examined.command


def test_one_node_gets_a_larger_replacement_whose_capacity_suffices_in_any_order():
    """The small one holds the largest pod only if that is not bound last; the next larger one holds all pods."""
    snapshot = a_fleet(a_member("a", cpus=["2500m"]), a_member("n", size="xl", cpus=["1", "600m", "600m", "600m"]))
    smallest = removal(snapshot, "n")
    assert unbound_pod(smallest, snapshot, a_catalogue())

    command = single_node_command(snapshot, a_catalogue())

    assert [r.instance_types for r in (*smallest.replacements, *command.replacements)] == [("s", "m", "l"), ("m", "l")]
    assert not unbound_pod(command, snapshot, a_catalogue())


def test_spot_node_gets_no_larger_spot_replacement():
    """It would have fewer than fifteen types, and be replaced again; the step refuses the small one."""
    cheaper = [
        builders.an_instance_type(f"t{i:02}", cpu=cpu, memory_gib=8, price=0.4, zones=("a",), spot=0.01 + i / 1000)
        for i, cpu in enumerate([2] * 8 + [4] * 7)
    ]
    spot = {"capacity_type": labels.SPOT, "cpus": ["1", "600m", "600m", "600m"]}
    snapshot = a_fleet(
        a_member("a", cpus=["2500m"]), a_member("n", size="xl", **spot), pools=[a_pool(capacity_types=(labels.SPOT,))]
    )
    catalogue = a_catalogue(of=(*TYPES, *cheaper))

    command = single_node_command(snapshot, catalogue, spot_to_spot=True)

    assert unbound_pod(command, snapshot, catalogue)
    assert len(command.replacements[0].instance_types) == 15
