"""Hash migration: hashes of another version are replaced by current ones."""

import pytest

from journeyman.core.api import labels
from journeyman.core.api.hashes import NODEPOOL_HASH_VERSION, node_pool_hash
from journeyman.core.lifecycle.hydration import with_current_hashes
from tests.helpers.builders import a_node_class, a_pool, a_running_claim, condition

CLASS_HASH = "karpenter.k8s.aws/ec2nodeclass-hash"
BY_KARPENTER = {labels.NODEPOOL_HASH: "1234", labels.NODEPOOL_HASH_VERSION: "v3"}
BY_KARPENTER |= {CLASS_HASH: "5678", f"{CLASS_HASH}-version": "v4"}
POOL = a_pool()
NODE_CLASS = a_node_class(hash="ours", hash_version="journeyman-v6")


def annotations(claim, pool=POOL, node_class=NODE_CLASS):
    return with_current_hashes(claim, pool, node_class).metadata.annotations


@pytest.mark.parametrize("before", [BY_KARPENTER, {}])
def test_claim_with_a_hash_of_another_version_gets_current_hashes(before):
    """Karpenter's hashes cannot be compared; later changes of its NodePool and NodeClass are detected."""
    assert annotations(a_running_claim(metadata={"annotations": {**before, "kept": "yes"}})) == {
        labels.NODEPOOL_HASH: node_pool_hash(POOL),
        labels.NODEPOOL_HASH_VERSION: NODEPOOL_HASH_VERSION,
        CLASS_HASH: "ours",
        f"{CLASS_HASH}-version": "journeyman-v6",
        "kept": "yes",
    }


@pytest.mark.parametrize(
    ("group", "kind", "key"),
    [
        ("karpenter.k8s.alibabacloud", "ECSNodeClass", "karpenter.k8s.alibabacloud/ecsnodeclass-hash"),
        ("karpenter.alibabacloud.com", "ECSNodeClass", "karpenter.sh/ecsnodeclass-hash"),
        ("karpenter.k8s.huawei", "CCENodeClass", "karpenter.k8s.huawei/ccenodeclass-hash"),
    ],
)
def test_claim_has_the_hash_in_the_annotations_of_its_nodeclass(group, kind, key):
    """The vendor's ECSNodeClass has them in Karpenter's own domain."""
    node_class = a_node_class(group=group, kind=kind, hash="ours", hash_version="journeyman-v3")
    after = annotations(a_running_claim(metadata={"annotations": {}}), node_class=node_class)
    own = {name: value for name, value in after.items() if "nodeclass" in name}
    assert own == {key: "ours", f"{key}-version": "journeyman-v3"}


def test_drifted_claim_stays_drifted():
    """It keeps its old hash, which never equals a new one."""
    drifted = {"status": {"conditions": [condition("Drifted", reason="NodePoolDrifted")]}}
    after = annotations(a_running_claim(metadata={"annotations": BY_KARPENTER}, **drifted))
    assert (after[labels.NODEPOOL_HASH], after[CLASS_HASH]) == ("1234", "5678")
    assert after[labels.NODEPOOL_HASH_VERSION] == NODEPOOL_HASH_VERSION


def test_hash_of_the_current_version_is_not_changed():
    """A different hash means drift; without an owner there is nothing to compare."""
    today = annotations(a_running_claim()) | {labels.NODEPOOL_HASH: "another", CLASS_HASH: "another"}
    claim = a_running_claim(metadata={"annotations": today})
    assert with_current_hashes(claim, POOL, NODE_CLASS) is claim
    foreign = a_running_claim(metadata={"annotations": BY_KARPENTER})
    assert with_current_hashes(foreign, None, a_node_class()) is foreign
