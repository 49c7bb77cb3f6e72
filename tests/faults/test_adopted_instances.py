"""A cluster rests with a Node that Kubernetes deleted with its NodeClaim, once the NodeClaim was created again."""

import pytest

from journeyman.core.api.labels import ADOPTED
from journeyman.core.api.objects import NODE, NODECLAIM
from journeyman_simulator.faults import fault_scenario
from journeyman_simulator.faults.invariants.checkers import InvariantChecker
from journeyman_simulator.faults.scenario_run import run_scenario

ACTS = (
    fault_scenario.Deploy(at_seconds=0, app="a", replicas=2, cpu_millicores=900),
    fault_scenario.StripFinalizer(at_seconds=90, claim=0),
)


@pytest.mark.parametrize("cloud", ["aws", "alibaba", "huawei"])
def test_cluster_rests_with_a_node_whose_nodeclaim_was_wiped(cloud):
    """The finalizer keeps the Node, its pods run on, and no step has more to do."""
    seen = []

    class Looks(InvariantChecker):
        name = "looks"

        def check_at_rest(self):
            deleted = {n.spec.provider_id for n in self.view.server.list(NODE).items if n.metadata.deletion_timestamp}
            claims = self.view.server.list(NODECLAIM).items
            seen.append((deleted, {c.status.provider_id for c in claims if ADOPTED in c.metadata.annotations}))
            return ()

    setup = fault_scenario.ScenarioSetup(
        cloud=cloud,
        pools=(fault_scenario.ScenarioPool(name="default", budgets=(fault_scenario.ScenarioBudget(nodes="0"),)),),
    )
    result = run_scenario(
        fault_scenario.FaultScenario(seed=1, setup=setup, operations=ACTS, faults=()), checkers=[Looks]
    )

    assert result.violations == ()
    ((deleted, adopted),) = seen
    assert deleted
    assert deleted == adopted
