"""Static NodePools on a living cluster: as many nodes as they ask for, whatever happens to those."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from journeyman.core.api import labels
from journeyman.core.api.conditions import DISRUPTION_REASON
from journeyman.core.api.objects import NODECLAIM, NODEPOOL, is_true
from journeyman.core.plan import Step
from journeyman.steps.provision import provision
from tests.helpers import builders
from tests.helpers.builders import SMALL, TYPES, condition, pool_body, stamp
from tests.helpers.fakes import Interfering
from tests.helpers.living import Living


def a_living_cluster(replicas: int, *, gate: bool = True, pool=None, types=(SMALL,), **spec) -> Living:
    """With one pool of so many nodes, and consolidation that would take any node that it may."""
    quick = {"consolidateAfter": "0s", "budgets": [{"nodes": "100%"}]}
    living = Living(types, pool or pool_body(spec={"replicas": replicas, "disruption": quick, **spec}))
    gates = msgspec.structs.replace(living.cluster.settings.feature_gates, static_capacity=gate)
    living.cluster.settings = msgspec.structs.replace(living.cluster.settings, feature_gates=gates)
    return living


def ready(living) -> list[str]:
    """Names of the claims that are initialized and stay."""
    found = [c for c in living.claims() if c.metadata.deletion_timestamp is None]
    return [c.metadata.name for c in found if is_true(c.status.conditions, "Initialized")]


def scale(living, replicas) -> None:
    """As `kubectl scale nodepool` does."""
    living.server.patch(NODEPOOL, "default", {"spec": {"replicas": replicas}})


def settle(living, nodes) -> None:
    """Until there are so many nodes and claims, and nothing changes that for ten minutes."""
    living.until(lambda: len(ready(living)) == nodes == len(living.claims()), f"{nodes} nodes")
    launched = len(living.cloud.launches)
    living.live(minutes=10)
    assert len(ready(living)) == nodes == len(living.claims()) == len(living.nodes())
    assert len(living.cloud.launches) == launched


def test_a_static_pool_has_as_many_nodes_as_it_asks_for_at_any_time():
    """Without any pod, up, down and to zero; consolidation does not delete them as empty, and the status counts them."""
    living = a_living_cluster(3)
    settle(living, 3)
    assert living.server.list(NODEPOOL).items[0]["status"]["nodes"] == 3

    for replicas in (5, 2, 0):
        scale(living, replicas)
        settle(living, replicas)

    assert living.disruptions() == []
    assert living.cloud.price == 0
    assert living.record.count_of("karpenter_nodeclaims_created_total") == 5
    assert living.record.count_of("karpenter_nodeclaims_disrupted_total") == 5


def test_nothing_is_done_for_static_pools_while_the_feature_is_off():
    """Karpenter's gate, and its default."""
    living = a_living_cluster(2, gate=False)
    living.live(minutes=5)
    assert living.claims() == ()


def test_a_node_that_dies_is_replaced():
    """In the slot of the one that went, whose name may be free again or not."""
    living = a_living_cluster(3)
    settle(living, 3)
    slots = {c.metadata.annotations[labels.REPLICA_INDEX] for c in living.claims()}

    living.server.delete(NODECLAIM, living.claims()[0].metadata.name)
    living.requeue(Step.TERMINATE)
    settle(living, 3)

    assert {c.metadata.annotations[labels.REPLICA_INDEX] for c in living.claims()} == slots == {"0", "1", "2"}


def test_claims_are_made_of_the_template_alone():
    """Its labels, annotations, taints and requirements; no instance types were chosen, and no pods are asked for."""
    template = {
        "metadata": {"labels": {"team": "a"}, "annotations": {"note": "mine"}},
        "spec": {
            "requirements": [{"key": labels.CAPACITY_TYPE, "operator": "In", "values": ["spot", "on-demand"]}],
            "taints": [{"key": "dedicated", "value": "a", "effect": "NoSchedule"}],
        },
    }
    living = a_living_cluster(1, template=template)
    settle(living, 1)

    [claim] = living.claims()
    assert claim.metadata.labels["team"] == "a"
    assert claim.metadata.annotations["note"] == "mine"
    assert [t.key for t in claim.spec.taints] == ["dedicated"]
    wanted = {r.key: r.values for r in claim.spec.requirements}
    assert wanted[labels.CAPACITY_TYPE] == ("on-demand", "spot")
    assert labels.INSTANCE_TYPE not in wanted
    assert labels.INITIALIZED not in wanted
    assert not claim.spec.resources.requests


def test_pods_are_put_on_static_nodes_and_open_no_others():
    """The scheduler takes them as existing capacity, those just launched too."""
    living = a_living_cluster(2)
    living.deploy("web", 2, cpu="1500m")
    living.until(lambda: living.running() == 2, "two pods")
    assert living.record.count_of("karpenter_nodeclaims_created_total") == 2


def test_terminating_nodes_count_against_the_limit_until_gone():
    """Four of five; and when one is deleted the next is launched once the limit permits it."""
    living = a_living_cluster(5, limits={"nodes": "4"})
    settle(living, 4)
    assert "NodeLimitReached" in living.record.reasons
    most = 0

    def is_replaced() -> bool:
        nonlocal most
        most = max(most, len(living.claims()))
        return gone.uid not in {c.metadata.uid for c in living.claims()} and len(ready(living)) == 4

    gone = living.claims()[0].metadata
    living.server.delete(NODECLAIM, gone.name)
    living.requeue(Step.TERMINATE)
    living.until(is_replaced, "another node")
    assert most == 4


def test_a_limit_that_stays_exceeded_causes_no_requeue():
    """What it needs is another limit, and that is seen."""
    living = a_living_cluster(3, limits={"nodes": "1"})
    settle(living, 1)
    runs = len(living.functions.outcomes)
    living.live(minutes=10)
    assert not [o for _, o in living.functions.outcomes[runs:] if o.step is Step.PROVISION]

    living.server.patch(NODEPOOL, "default", {"spec": {"limits": {"nodes": "2"}}})
    settle(living, 2)


def test_two_runs_that_overlap_open_the_same_nodes():
    """The second begins as the first has opened one of three, and does all the work; the first finds it done."""
    living = a_living_cluster(3)
    cluster = living.cluster
    interfering = Interfering(
        living.server, "create", 2, lambda: provision(cluster.run(), living.functions.trigger(Step.PROVISION))
    )
    provision(cluster.run(store=interfering), living.functions.trigger(Step.PROVISION))

    assert len(living.claims()) == 3
    settle(living, 3)
    assert len(living.cloud.list()) == 3


def under_way(claim, replacement: str) -> dict:
    """A disruption that has just taken the claim, and opens another first."""
    candidate = {"nodeClaim": claim.metadata.name, "nodeClaimUID": claim.metadata.uid, "nodePool": "default"}
    spec = {
        "reason": "Drifted",
        "decision": "replace",
        "method": "static-drift",
        "candidates": [candidate],
        "replacements": [{"name": replacement}],
        "createdAt": stamp(claim.metadata.creation_timestamp + timedelta(minutes=11)),
    }
    status = {"phase": "Executing"}
    kind = {"apiVersion": "journeyman.dev/v1alpha1", "kind": "NodeDisruption"}
    return {**kind, "metadata": {"name": "drifted-1"}, "spec": spec, "status": status}


def test_a_replacement_under_way_changes_no_other_node():
    """The extra node during the replacement is not deleted, and no further one is launched after it."""
    living = a_living_cluster(2, types=TYPES)
    settle(living, 2)
    old = living.claims()[0]
    marked = [*(msgspec.to_builtins(c) for c in old.status.conditions), condition(DISRUPTION_REASON)]
    living.cluster.add(under_way(old, "replacement"), builders.claim_body("replacement"))
    living.server.patch(NODECLAIM, old.metadata.name, {"status": {"conditions": marked}}, subresource="status")
    seen = set()

    def is_done() -> bool:
        seen.add(len([c for c in living.claims() if c.metadata.deletion_timestamp is None]))
        return len(living.claims()) == 2 and "replacement" in ready(living)

    living.until(is_done, "the replacement alone")
    settle(living, 2)

    assert living.disruptions()[0][2] == "Succeeded"
    assert old.metadata.uid not in {c.metadata.uid for c in living.claims()}
    assert seen == {2, 3}
    assert living.record.count_of("karpenter_nodeclaims_created_total") == 2


def test_an_unavailable_offering_is_tried_again_after_its_expiry():
    """One refused launch; no claim is opened while nothing could come of it."""
    living = a_living_cluster(1)
    living.cloud.out_of_stock = {(SMALL.name, "a", labels.ON_DEMAND)}
    living.live(minutes=2)
    assert living.claims() == ()
    assert "InsufficientCapacityError" in living.record.reasons
    assert len(living.cloud.launches) == 1
