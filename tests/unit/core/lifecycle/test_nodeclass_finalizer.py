"""NodeClass finalizer: the Event that names the NodeClaims a terminating NodeClass waits for."""

import pytest

from journeyman.core.api.objects import Resource
from journeyman.core.lifecycle.nodeclass_finalizer import finalize_nodeclasses
from tests.helpers.builders import NOW, a_claim, a_node_class, a_snapshot

KIND = Resource(
    group="karpenter.k8s.aws", version="v1", kind="EC2NodeClass", plural="ec2nodeclasses", namespaced=False, type=dict
)


@pytest.mark.parametrize(
    ("claims", "named"), [(1, "c0"), (5, "c0, c1, c2, c3, c4"), (7, "c0, c1, c2, c3, c4 and 2 other(s)")]
)
def test_event_names_five_nodeclaims_and_counts_the_others(claims, named):
    """A NodeClass may have thousands."""
    going = a_node_class(deleting=True, deletion_timestamp=NOW, finalizers=("karpenter.k8s.aws/termination",))
    snapshot = a_snapshot(node_classes=(going,), claims=tuple(a_claim(f"c{n}") for n in range(claims)))
    plan = finalize_nodeclasses(snapshot, KIND)
    assert plan.chains == ()
    assert [event.message for event in plan.events] == [f"Waiting on NodeClaim termination for {named}"]
