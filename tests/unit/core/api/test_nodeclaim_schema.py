"""The schema of NodeClaims."""

import pytest

from journeyman.core.api import objects
from journeyman.core.api.model import parse
from journeyman.core.api.nodeclaim_schema import NodeClaimSchema
from journeyman.errors import InvalidObjectError


def a_claim(**spec):
    """A NodeClaim as provisioning creates it."""
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodeClaim",
        "metadata": {"name": "default-x7k2p", "labels": {"karpenter.sh/nodepool": "default"}},
        "spec": {
            "requirements": [
                {"key": "karpenter.sh/nodepool", "operator": "In", "values": ["default"]},
                {"key": "karpenter.k8s.aws/ec2nodeclass", "operator": "In", "values": ["default"]},
                {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["m5.large"], "minValues": 1},
            ],
            "resources": {"requests": {"cpu": "1930m", "memory": "3Gi", "pods": "12"}},
            "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"},
            **spec,
        },
    }


def test_nodeclaim_may_require_its_nodepool_and_nodeclass_labels():
    """The template of a NodePool may not."""
    claim = parse(NodeClaimSchema, a_claim())
    assert claim.spec.requirements[0].values == ("default",)
    assert claim.spec.resources == objects.ResourceRequirements(
        requests={"cpu": "1930m", "memory": "3Gi", "pods": "12"}
    )
    assert claim.spec.expire_after == "720h"


def test_schema_and_struct_read_the_same_nodeclaim():
    """The struct reads what the schema writes."""
    import msgspec

    claim = parse(NodeClaimSchema, a_claim(startupTaints=[{"key": "a", "effect": "NoExecute"}], expireAfter="Never"))
    read = msgspec.convert(claim.to_wire(), objects.NodeClaim)
    assert read.metadata == claim.metadata
    for field in ("requirements", "resources", "taints", "startup_taints", "node_class_ref", "expire_after"):
        assert getattr(read.spec, field) == getattr(claim.spec, field)
    assert read.spec.termination_grace_period is None


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"requirements": None}, r"spec\.requirements: required, but missing"),
        ({"resources": {"requests": {"cpu": "-1"}}}, r"spec\.resources\.requests\.cpu: '-1' is negative"),
        (
            {"requirements": [{"key": "kubernetes.io/hostname", "operator": "Exists"}]},
            r"requirements\[0\]\.key: .*reserved",
        ),
        ({"taints": [{"key": "a", "effect": "NoSchedule"}] * 2}, r"taint a:NoSchedule appears 2 times"),
        ({"expireAfter": "soon"}, r"spec\.expireAfter: 'soon' is not a duration"),
    ],
)
def test_invalid_nodeclaim_is_rejected(spec, words):
    """The error is raised before anything is written."""
    with pytest.raises(InvalidObjectError, match=words):
        parse(NodeClaimSchema, a_claim(**spec))
