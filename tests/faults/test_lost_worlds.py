"""Wiped objects, a restored etcd, another cluster behind the same name, lying nodes and broken NodePools, one at a time."""

import pytest

from journeyman.core.api.objects import NODE, NODECLAIM, NODEPOOL, POD
from journeyman_simulator.faults import fault_scenario
from journeyman_simulator.faults.invariants import ALL_CHECKERS
from journeyman_simulator.faults.invariants.checkers import InvariantChecker
from journeyman_simulator.faults.scenario_clouds import CLOUDS
from journeyman_simulator.faults.scenario_run import run_scenario

BOOTED = 90  # seconds: all pods run
SIX = fault_scenario.Deploy(at_seconds=0, app="a", replicas=6, cpu_millicores=900)
EACH_CLOUD = pytest.mark.parametrize("cloud", CLOUDS)
NEVER = fault_scenario.ScenarioPool(name="default", consolidate_after_seconds=-1)


class End:
    """What a scenario ends with."""

    def __init__(self, view):
        server = view.server
        self.running = sum(pod.status.phase == "Running" for pod in server.list(POD).items)
        self.pools = [pool["metadata"]["name"] for pool in server.list(NODEPOOL).items]
        self.nodes = {node.spec.provider_id for node in server.list(NODE).items}
        self.claims = {claim.status.provider_id: claim for claim in server.list(NODECLAIM).items}
        self.instances = {instance.provider_id for instance in view.instances() if instance.runs}
        self.launched = len(view.instances())


def end_of(cloud, *operations, pools=(NEVER,), first=(SIX,)):
    """Run the scenario on a cloud; return its history as text and what it ends with, without a violation of any invariant."""
    seen = []

    class AtRest(InvariantChecker):
        name = "at rest"

        def check_at_rest(self):
            seen.append(End(self.view))
            return ()

    setup = fault_scenario.ScenarioSetup(cloud=cloud, pools=pools, types=CLOUDS[cloud].large_types)
    scenario = fault_scenario.FaultScenario(seed=1, setup=setup, operations=(*first, *operations))
    result = run_scenario(scenario, checkers=[*ALL_CHECKERS, AtRest])
    assert result.violations == ()
    return [entry.what for entry in result.history], seen[-1]


def with_text(history, text):
    return [what for what in history if text in what]


@EACH_CLOUD
@pytest.mark.parametrize("wiped", [fault_scenario.WipeClaims, fault_scenario.WipeNodes])
def test_wiped_objects_cost_no_instance(cloud, wiped):
    """NodeClaims are created again for the instances; kubelets register Nodes again."""
    history, end = end_of(cloud, wiped(at_seconds=BOOTED))

    assert (end.running, end.launched) == (6, 3)
    assert end.nodes == end.claims.keys() == end.instances
    assert not with_text(history, "evict Pod")


@EACH_CLOUD
def test_wiped_nodes_are_adopted_beside_those_that_were_launched_for_their_pods(cloud):
    """Without Nodes, Kubernetes deletes their pods, and new ones need nodes at once; the first instances run on."""
    history, end = end_of(
        cloud, fault_scenario.WipeClaims(at_seconds=BOOTED), fault_scenario.WipeNodes(at_seconds=BOOTED)
    )

    assert end.running == 6
    assert len(with_text(history, "NodeClaimAdopted of NodeClaim")) == 3
    assert end.nodes == end.claims.keys() == end.instances
    assert len(end.instances) == end.launched


@EACH_CLOUD
def test_a_static_nodepool_counts_the_nodes_that_have_lost_their_nodeclaim(cloud):
    """It launches nothing beside them; their NodeClaims have the replicas' names."""
    static = fault_scenario.ScenarioPool(name="static", replicas=3)
    _, end = end_of(cloud, fault_scenario.WipeClaims(at_seconds=150), pools=(static,), first=())

    assert (end.launched, len(end.claims)) == (3, 3)
    assert end.claims.keys() == end.instances


@EACH_CLOUD
def test_without_nodepools_two_nodes_are_removed_and_the_rest_is_adopted_once_they_are_back(cloud):
    """The brake holds the others for an hour, and their pods run on."""
    history, end = end_of(
        cloud,
        fault_scenario.WipePools(at_seconds=BOOTED),
        fault_scenario.WipeClaims(at_seconds=BOOTED),
        fault_scenario.CreatePools(at_seconds=500),
        first=(fault_scenario.Deploy(at_seconds=0, app="a", replicas=5, cpu_millicores=900, one_per_node=True),),
    )

    assert len(with_text(history, "RemovalsHeld")) > 0
    assert (end.running, end.launched) == (5, 7)
    assert end.claims.keys() == end.instances


@EACH_CLOUD
def test_what_was_launched_since_a_restored_backup_is_adopted(cloud):
    """The backup has three nodes, and six run when it is restored; none is terminated, and no other is launched."""
    history, end = end_of(
        cloud,
        fault_scenario.BackUp(at_seconds=BOOTED),
        fault_scenario.Scale(at_seconds=BOOTED + 5, app="a", replicas=12),
        fault_scenario.RestoreBackup(at_seconds=2 * BOOTED),
    )

    assert (end.running, end.launched) == (6, 6)
    assert len(with_text(history, "NodeClaimAdopted of NodeClaim")) == 3
    assert len(end.claims) == 6


@EACH_CLOUD
def test_a_restored_backup_has_nodeclaims_of_instances_that_are_gone(cloud):
    """They are deleted, and their pods run on new nodes."""
    _, end = end_of(
        cloud,
        fault_scenario.BackUp(at_seconds=BOOTED),
        fault_scenario.Scale(at_seconds=BOOTED + 5, app="a", replicas=0),
        fault_scenario.RestoreBackup(at_seconds=4 * BOOTED),
        pools=(fault_scenario.ScenarioPool(name="default", consolidate_after_seconds=0),),
    )

    assert (end.running, end.launched) == (6, 6)
    assert end.claims.keys() == end.instances == end.nodes


@pytest.mark.parametrize("cloud", ["aws", "alibaba"])
def test_the_instances_of_another_cluster_of_the_same_name_run_on(cloud):
    """The new cluster launches its own ones; the first one is as it was once the register's entry is corrected."""
    away = (
        fault_scenario.RebuildCluster(at_seconds=BOOTED),
        fault_scenario.Deploy(at_seconds=BOOTED + 5, app="a", replicas=2, cpu_millicores=900),
    )
    there, new = end_of(cloud, *away)
    back, first = end_of(cloud, *away, fault_scenario.ReturnCluster(at_seconds=4 * BOOTED))

    assert (new.running, new.launched) == (2, 1)
    assert (first.running, first.launched) == (6, 3)
    assert first.claims.keys() == first.instances
    for history in (there, back):
        assert with_text(history, "ForeignInstances")
        assert not [what for what in history if what.startswith("terminate ")]


@EACH_CLOUD
@pytest.mark.parametrize("owned", [False, True])
def test_a_forged_node_takes_no_instance_along(cloud, owned):
    """It names the machine of another Node, on which pods run."""
    _, end = end_of(cloud, fault_scenario.ForgeNode(at_seconds=BOOTED, node=0, owned=owned))

    assert (end.running, end.launched) == (6, 3)
    assert end.nodes == end.claims.keys() == end.instances


@pytest.mark.parametrize("cloud", ["aws", "alibaba"])
def test_a_kubelet_that_reports_too_much_attracts_no_consolidation(cloud):
    """The pods of the other nodes would fit its 1,000 CPUs."""
    policy = fault_scenario.ScenarioPool(
        name="default", capacity_types=("on-demand",), policy="WhenEmptyOrUnderutilized"
    )
    history, end = end_of(cloud, fault_scenario.Overstate(at_seconds=50, node=0), pools=(policy,))

    assert (end.running, end.launched) == (6, 3)
    assert not with_text(history, "create NodeDisruption")


@EACH_CLOUD
@pytest.mark.parametrize("broken", ["refuses", "ends", "never-joins"])
def test_a_broken_nodepool_does_not_keep_pods_from_the_next_one(cloud, broken):
    """Its launches fail at once, at boot, or after the registration timeout; none of its nodes remains."""
    preferred = fault_scenario.ScenarioPool(name=fault_scenario.BROKEN, weight=50, broken=broken)
    history, end = end_of(cloud, pools=(NEVER, preferred))

    assert end.running == 6
    assert {claim.metadata.labels["karpenter.sh/nodepool"] for claim in end.claims.values()} == {"default"}
    assert with_text(history, "create NodeClaim broken-")
