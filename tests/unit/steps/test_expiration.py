"""Nodes that expire: those of one burst go one after another, each once its pods have capacity, and none is older than expireAfter."""

from datetime import timedelta

import pytest

from journeyman.core.api.labels import DO_NOT_DISRUPT
from journeyman.core.api.objects import NODECLAIM, POD
from journeyman_simulator.apiserver.server import Write
from tests.helpers.builders import SMALL, merge, pool_body
from tests.helpers.simulated_cluster import SimulatedCluster

REPLICAS = 6


class Observer:
    """Records at each write how many pods serve, and how old NodeClaims are when they are deleted."""

    def __init__(self, simulation):
        self.simulation = simulation
        self.serving = []
        self.ages = []
        self.created = {}
        self._deleted = set()
        simulation.server.on_write(self._on_write)

    def _on_write(self, write: Write) -> None:
        if write.resource.kind == "Pod":
            pods = self.simulation.server.list(POD).items
            serving = sum(p.status.phase == "Running" and p.metadata.deletion_timestamp is None for p in pods)
            self.serving.append((self.simulation.clock.now(), serving))
        if write.resource.kind == "NodeClaim":
            for claim in self.simulation.server.list(NODECLAIM).items:
                name, meta = claim.metadata.uid, claim.metadata
                self.created.setdefault(name, meta.creation_timestamp)
                if meta.deletion_timestamp is not None and name not in self._deleted:
                    self._deleted.add(name)
                    self.ages.append(meta.deletion_timestamp - meta.creation_timestamp)

    def least(self, since):
        return min(number for at, number in self.serving if at >= since)


def a_burst(expire_after, **spec):
    """Return a cluster with six nodes of one burst, a pod on each, and an observer of it."""
    template = {"template": {"spec": {"expireAfter": expire_after}}, "disruption": {"consolidateAfter": "0s"}}
    simulation = SimulatedCluster((SMALL,), pool_body(spec=merge(template, spec)))
    observer = Observer(simulation)
    simulation.deploy("web", REPLICAS, cpu="1.5")
    simulation.until(lambda: simulation.running() == REPLICAS, "all pods run")
    return simulation, observer


def test_a_node_whose_pod_must_not_be_disrupted_goes_at_its_time_and_waits_for_the_pod():
    """Its replacement does not change what the annotation protects: the drain begins at the end, and waits for the pod."""
    simulation, observer = a_burst("1h")
    pods = [p for p in simulation.server.list(POD).items if p.status.phase == "Running"]
    protected = pods[0]
    annotated = {"metadata": {"annotations": {DO_NOT_DISRUPT: "true"}}}
    simulation.server.patch(POD, protected.metadata.name, annotated, namespace="default")
    simulation.run_for(minutes=64)

    kept = next(p for p in simulation.server.list(POD).items if p.metadata.uid == protected.metadata.uid)
    assert kept.status.phase == "Running"
    [draining] = [c for c in simulation.claims() if c.metadata.deletion_timestamp is not None]
    assert draining.status.node_name == kept.spec.node_name
    assert simulation.running() == REPLICAS
    assert len(observer.ages) == REPLICAS


@pytest.mark.parametrize(("expire_after", "minutes", "least"), [("1h", 62, 5), ("10m", 11, 2)])
def test_six_nodes_of_one_burst_expire_without_an_outage(expire_after, minutes, least):
    """Karpenter deletes the six together, and no replica serves until new nodes are up: 61 seconds with 0 of 6.

    No node is older than expireAfter, none goes more than a tenth earlier, and it costs one launch for each.
    """
    simulation, observer = a_burst(expire_after)
    began = simulation.clock.now()
    first = {c.metadata.uid for c in simulation.claims()}
    simulation.run_for(minutes=minutes)

    assert not first & {c.metadata.uid for c in simulation.claims()}
    assert observer.least(began + timedelta(minutes=1)) >= least
    lifetime = timedelta(minutes=minutes - 2 if minutes > 60 else 10)
    assert len(observer.ages) == REPLICAS
    assert all(lifetime * 0.9 <= age <= lifetime for age in observer.ages), observer.ages
    assert len(simulation.cloud.launches) == 2 * REPLICAS
    assert simulation.running() == REPLICAS
