"""After random external changes to claims, nodes and instances, drawn by seed, the cluster becomes consistent again.

Covers: finalizers, owners, labels, ids and conditions removed or forged; NodeClaims and nodes deleted; instances stopped or
deleted; budgets and volumes that block drains for a while.
Scenario: four pods on four nodes; ten operations, then half an hour without any.
"""

import random
from contextlib import suppress

import msgspec
import pytest

from journeyman.core.api import labels
from journeyman.core.api.objects import NODE, NODECLAIM, PDB, POD
from journeyman.core.api.storage import VOLUME_ATTACHMENT
from journeyman.errors import NotFoundError
from tests.helpers.builders import SMALL, budget_body, condition, pool_body
from tests.helpers.simulated_cluster import SimulatedCluster

PODS = 4
RAW_CLAIM = msgspec.structs.replace(NODECLAIM, type=dict)
BARE = {"metadata": {"finalizers": []}}
BUDGET = budget_body()


class RandomOperations:
    """A user with all permissions: one random operation on a claim, its node or its instance."""

    def __init__(self, simulation, dice):
        self._living, self._server, self._dice = simulation, simulation.server, dice
        self._operations = sorted(
            name for name in dir(self) if not name.startswith("_") and name not in {"act", "finish"}
        )

    def act(self):
        joined = [c for c in self._living.claims() if c.status.node_name]
        if joined:
            getattr(self, self._dice.choice(self._operations))(self._dice.choice(joined))

    def _write(self, claim, status):
        self._server.patch(NODECLAIM, claim.metadata.name, {"status": status}, subresource="status")

    def delete_the_claim(self, claim):
        self._server.delete(NODECLAIM, claim.metadata.name)

    def delete_the_claim_for_good(self, claim):
        self._server.patch(NODECLAIM, claim.metadata.name, BARE)
        self._server.delete(NODECLAIM, claim.metadata.name)

    def delete_the_node(self, claim):
        self._server.delete(NODE, claim.status.node_name)

    def delete_the_node_for_good(self, claim):
        self._server.patch(NODE, claim.status.node_name, BARE)
        self._server.delete(NODE, claim.status.node_name)

    def stop_the_machine(self, claim):
        self._living.cloud.stop(claim.status.provider_id)

    def lose_the_machine(self, claim):
        self._living.cloud.lose(claim.status.provider_id)

    def take_the_id_off(self, claim):
        self._write(claim, {"providerID": None})

    def give_it_the_id_of_another(self, claim):
        other = self._dice.choice(self._living.claims())
        self._write(claim, {"providerID": other.status.provider_id or None})

    def wipe_the_status(self, claim):
        self._write(claim, {"providerID": None, "nodeName": None, "conditions": None})

    def forge_the_end(self, claim):
        raw = self._server.get(RAW_CLAIM, claim.metadata.name)
        forged = [condition(type_, since=self._living.clock.now()) for type_ in ("Drained", "InstanceTerminating")]
        types = {c["type"] for c in forged}
        kept = [c for c in raw["status"].get("conditions", ()) if c["type"] not in types]
        self._write(claim, {"conditions": [*kept, *forged]})

    def take_the_owner_off(self, claim):
        self._server.patch(NODE, claim.status.node_name, {"metadata": {"ownerReferences": None}})

    def take_the_label_off(self, claim):
        self._server.patch(NODE, claim.status.node_name, {"metadata": {"labels": {labels.REGISTERED: None}}})

    def forbid_evictions(self, _):
        self._living.cluster.add(BUDGET)

    def allow_evictions(self, _):
        self._server.delete(PDB, "web", namespace="default")

    def attach_a_volume(self, claim):
        node = claim.status.node_name
        spec = {"attacher": "ebs.csi.aws.com", "nodeName": node, "source": {"persistentVolumeName": f"pv-{node}"}}
        body = {"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": f"at-{node}"}}
        self._living.cluster.add({**body, "spec": spec})

    def finish(self):
        """Delete the budgets and volume attachments that block drains."""
        for budget in self._server.list(PDB).items:
            self._server.delete(PDB, budget.metadata.name, namespace="default")
        for attachment in self._server.list(VOLUME_ATTACHMENT).items:
            self._server.delete(VOLUME_ATTACHMENT, attachment.metadata.name)


def four_nodes(dice):
    period = {"terminationGracePeriod": "2m"} if dice.random() < 0.5 else {}
    spec = {"disruption": {"consolidateAfter": "0s"}, "template": {"spec": period}}
    simulation = SimulatedCluster((SMALL,), pool_body(spec=spec))
    simulation.deploy("web", PODS, cpu="1.5")
    simulation.until(lambda: simulation.running() == PODS and len(simulation.initialized()) == PODS, "pods run")
    return simulation


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.slow
def test_after_random_changes_every_claim_has_its_node_and_instance(seed):
    dice = random.Random(seed)
    simulation = four_nodes(dice)
    operations = RandomOperations(simulation, dice)
    for _ in range(10):
        with suppress(NotFoundError):  # the instance is terminated already
            operations.act()
        simulation.run_for(minutes=dice.choice([0.1, 0.2, 0.5, 1, 3]))
    operations.finish()
    simulation.run_for(minutes=30)

    writes = []
    simulation.server.on_write(writes.append)
    simulation.run_for(minutes=5)

    ids = sorted(c.status.provider_id for c in simulation.initialized())
    assert ids == sorted(i.provider_id for i in simulation.cloud.list())
    assert ids == sorted(n.spec.provider_id for n in simulation.server.list(NODE).items)
    assert len(ids) == len(simulation.claims())
    assert [p.status.phase for p in simulation.server.list(POD).items] == ["Running"] * PODS
    assert writes == []
    assert [o.notes for _, o in simulation.functions.outcomes if o.counts.get("errors")] == []
