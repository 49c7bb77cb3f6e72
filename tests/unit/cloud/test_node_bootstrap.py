"""`cloud.node_bootstrap`: the labels and taints with which a node registers."""

import pytest

from journeyman.cloud.node_bootstrap import boot_taints, kubelet_labels
from journeyman.core.api import labels
from tests.unit.cloud.aws.conftest import claim

UNREGISTERED = {"key": labels.UNREGISTERED_TAINT, "effect": "NoExecute"}
GPU = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("taints", "startup", "keys"),
    [
        ([], [], [labels.UNREGISTERED_TAINT]),
        ([GPU], [], ["gpu", labels.UNREGISTERED_TAINT]),
        ([GPU], [{"key": "cni", "effect": "NoSchedule"}], ["gpu", "cni", labels.UNREGISTERED_TAINT]),
        ([GPU], [UNREGISTERED], ["gpu", labels.UNREGISTERED_TAINT]),
        ([UNREGISTERED, GPU], [], [labels.UNREGISTERED_TAINT, "gpu"]),
        ([{**UNREGISTERED, "effect": "NoSchedule"}], [], [labels.UNREGISTERED_TAINT, labels.UNREGISTERED_TAINT]),
    ],
)
def test_node_registers_with_its_taints_and_once_as_unregistered(taints, startup, keys):
    """A NodePool may have that taint itself; with another effect it is another taint."""
    found = boot_taints(claim(spec={"taints": taints, "startupTaints": startup}))
    assert [taint.key for taint in found] == keys
    assert (labels.UNREGISTERED_TAINT, "NoExecute") in {(taint.key, taint.effect) for taint in found}


def test_kubelet_sets_no_labels_of_kubernetes_own_domains():
    """The API server rejects them; a domain that only looks like one is the user's."""
    rejected = ("kubernetes.io/os", "node.kubernetes.io/type", "k8s.io/a", "x.k8s.io/b")
    accepted = ("kubernetes.io", "kubernetes.io.example/d", "notkubernetes.io/c", labels.CAPACITY_TYPE)
    found = kubelet_labels(claim(), dict.fromkeys((*rejected, *accepted), "x"))
    assert list(found) == sorted((*accepted, labels.NODEPOOL, "team"))
