"""Warm reads on the real API server: it says its version, watches and forgets as `kube.mirror` takes it to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from journeyman.core.api.objects import NAMESPACE, POD
from journeyman.kube.access import from_kubeconfig
from journeyman.kube.allowance import Allowance
from journeyman.kube.http_store import HttpKubeStore
from journeyman.kube.mirror import MirroredKubeStore, Mirrors
from journeyman.kube.transport import Transport

if TYPE_CHECKING:
    from tests.controlplane.plane import ControlPlane

pytestmark = pytest.mark.xdist_group("control-plane")
QUIET_SECONDS = 1.0  # a busy machine
CONTAINER = {"name": "main", "image": "registry.example.com/app:1"}


@pytest.fixture
def direct(control_plane: ControlPlane) -> Iterator[HttpKubeStore]:
    """Reads everything each time."""
    transport = Transport(from_kubeconfig(str(control_plane.kubeconfig)))
    yield HttpKubeStore(transport)
    transport.close()


def test_a_warm_list_is_what_a_fresh_one_would_be(direct: HttpKubeStore, namespace: str) -> None:
    """Created, changed, deleted; with another kind's change as the last one, which no event of ours tells."""
    for number in range(5):
        direct.create(
            POD, {"metadata": {"name": f"p{number}"}, "spec": {"containers": [CONTAINER]}}, namespace=namespace
        )
    kept = MirroredKubeStore(direct, Mirrors(worth_keeping=0), quiet_seconds=QUIET_SECONDS)
    first = kept.for_run(Allowance()).list(POD, namespace=namespace)

    direct.create(POD, {"metadata": {"name": "p9"}, "spec": {"containers": [CONTAINER]}}, namespace=namespace)
    direct.patch(POD, "p3", {"metadata": {"labels": {"seen": "yes"}}}, namespace=namespace)
    direct.delete(POD, "p4", namespace=namespace, grace_period_seconds=0)
    direct.patch(NAMESPACE, namespace, {"metadata": {"labels": {"last": "change"}}})
    allowance = Allowance()
    second = kept.for_run(allowance).list(POD, namespace=namespace)

    assert second.items == direct.list(POD, namespace=namespace).items
    assert [pod.metadata.name for pod in second.items] == ["p0", "p1", "p2", "p3", "p9"]
    assert second.items[0] is first.items[0]
    assert allowance.usage.requests == 2
    assert int(direct.latest(POD, namespace=namespace)) >= int(second.resource_version)  # versions are numbers
