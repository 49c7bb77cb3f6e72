"""Adoption: NodeClaims that are created again for the instances that lost them."""

from journeyman.core.api import labels
from journeyman.core.lifecycle.adoption import adopt_instances, adoptable
from journeyman.core.plan import CreateObject, PatchObject
from tests.helpers.builders import NOW, a_node, a_pool, a_running_claim, a_snapshot, an_instance, provider_id_of
from tests.helpers.small_clusters import table

HASHES = {labels.NODEPOOL_HASH: "1", labels.NODEPOOL_HASH_VERSION: "v3"}


def snapshot(*nodes, **more):
    return a_snapshot(nodes=nodes, **{"node_pools": (a_pool(),), **more})


def a_labelled_node(**changes):
    metadata = {"labels": {labels.INSTANCE_TYPE: "m.medium", "team": "a"}, "annotations": HASHES}
    return a_node(**{"metadata": metadata, **changes})


def test_nodeclaim_is_created_again_from_the_tags_the_node_and_the_nodepool():
    """Its hashes are the Node's, so that it has drifted exactly if it had before."""
    [chain] = adopt_instances(snapshot(a_labelled_node()), [an_instance(image_id="ami-1")]).chains
    create, status = chain.actions[:2]
    assert isinstance(create, CreateObject)
    assert isinstance(status, PatchObject)
    meta, spec = create.body["metadata"], create.body["spec"]
    assert (meta["name"], meta["finalizers"]) == ("default-1", [labels.TERMINATION_FINALIZER])
    assert meta["annotations"] == {**HASHES, labels.ADOPTED: provider_id_of("default-1")}
    assert meta["labels"].items() >= {labels.NODEPOOL: "default", labels.INSTANCE_TYPE: "m.medium", "team": "a"}.items()
    assert not {labels.REGISTERED, labels.INITIALIZED, labels.HOSTNAME} & meta["labels"].keys()
    assert {r["key"]: r["values"] for r in spec["requirements"]}[labels.INSTANCE_TYPE] == ["m.medium"]
    written = status.patch["status"]
    assert (written["providerID"], written["nodeName"]) == (provider_id_of("default-1"), "node-default-1")
    assert written["imageID"] == "ami-1"
    true = {c["type"] for c in written["conditions"] if c["status"] == "True"}
    assert true == {"Launched", "Registered", "Initialized", "Ready"}


def test_nodeclaim_of_an_unregistered_node_is_only_launched():
    """Its kubelet registered it again, and registration goes on from there."""
    instance = an_instance(tags={labels.NODEPOOL: "default"})
    [chain] = adopt_instances(snapshot(a_node(registered=False)), [instance]).chains
    written = chain.actions[1].patch["status"]
    assert {c["type"] for c in written["conditions"] if c["status"] == "True"} == {"Launched"}
    assert not written.get("nodeName")


OTHER = {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "name": "default-lost", "uid": "uid-lost"}
DRAINING = {"spec": {"taints": [{"key": labels.DISRUPTED_TAINT, "effect": "NoSchedule"}]}}


@table(
    "nodes, more, instance, is_adopted",
    deleted_with_its_owner=([a_node(deleting=NOW)], {}, {}, True),
    draining=([a_node(deleting=NOW, **DRAINING)], {}, {}, False),
    no_node=([], {}, {}, False),
    no_pool=([a_node()], {"node_pools": ()}, {}, False),
    stopped=([a_node()], {}, {"state": "stopped"}, False),
    two_nodes=([a_node(), a_node(metadata={"name": "other"})], {}, {}, False),
    name_is_taken=([a_node()], {"claims": (a_running_claim(provider_id=provider_id_of("z")),)}, {}, False),
    tags_edited=(
        [a_node(metadata={"ownerReferences": [OTHER]})], {"claims": (a_running_claim(provider_id="z"),)}, {}, True
    ),
)  # fmt: skip
def test_only_instances_whose_pods_run_on_are_adopted(nodes, more, instance, is_adopted):
    """All others look lost."""
    assert bool(list(adoptable(snapshot(*nodes, **more), [an_instance(**instance)]))) is is_adopted
