"""Nodes that do not join: given up in time, said in Events and on the NodePool, and tried again."""

import pytest

from journeyman.core.api.objects import NODEPOOL
from tests.helpers.builders import SMALL, pool_body
from tests.helpers.living import Living


@pytest.fixture
def living():
    """Two pods that need a node each; machines boot and never join, until `mend` is called."""
    living = Living((SMALL,), pool_body(spec={"disruption": {"consolidateAfter": "Never"}}))
    living.cloud.machines = tuple
    living.deploy("web", 2, cpu="1.5")
    return living


def mend(living):
    """Machines join from now on."""
    del living.cloud.machines


def health(living):
    conditions = living.server.get(NODEPOOL, "default")["status"]["conditions"]
    return next((c["status"], c["reason"]) for c in conditions if c["type"] == "NodeRegistrationHealthy")


def test_nodes_that_never_join_are_reported_on_the_pool(living):
    """Both time out after a quarter of an hour; the pool says so, and no more once enough of their successors joined."""
    living.live(minutes=10)
    assert health(living) == ("Unknown", "AwaitingReconciliation")
    living.live(minutes=6)

    assert health(living) == ("False", "RegistrationFailed")
    messages = [e.message for e in living.record.events if e.reason == "RegistrationTimedOut"]
    assert len(messages) == 2
    assert all(
        "Not registered after 15 min, NodeNotFound: " in text and " is terminated, its pods" in text
        for text in messages
    )

    mend(living)
    living.until(lambda: living.running() == 2, "both pods run")
    living.deploy("more", 1, cpu="1.5")
    living.until(lambda: living.running() == 3, "a third pod runs")
    assert health(living) == ("True", "NodeRegistrationHealthy")


@pytest.mark.parametrize("end", ["lose", "stop"])
def test_an_instance_that_ends_before_it_joins_is_replaced_at_once(living, end):
    """No interruption notice arrived, so garbage collection finds it: after minutes, not at the 15-minute time-out."""
    living.live(minutes=2)
    first, second = living.claims()
    getattr(living.cloud, end)(first.status.provider_id)
    living.live(minutes=3)

    now = {claim.metadata.uid for claim in living.claims()}
    assert len(now) == 2
    assert second.metadata.uid in now
    assert first.metadata.uid not in now
    assert len(living.cloud.launches) == 3
    [message] = [e.message for e in living.record.events if e.reason == "InstanceNotFound"]
    assert first.status.provider_id in message


def test_instances_that_end_before_they_join_are_reported_on_the_pool(living):
    """Two of the last four are enough: an image that shuts down at boot does not recover."""
    living.live(minutes=2)
    first, second = living.claims()
    living.cloud.lose(first.status.provider_id)
    living.live(minutes=3)
    assert health(living) == ("Unknown", "AwaitingReconciliation")

    living.cloud.lose(second.status.provider_id)
    living.live(minutes=3)
    assert health(living) == ("False", "RegistrationFailed")
