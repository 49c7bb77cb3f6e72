"""OfferingState: unavailable offerings, age of prices, and owner."""

from datetime import timedelta

import pytest

from journeyman.core.api.objects import OFFERING_STATE
from journeyman.core.plan import ClearOfferingFailures, MarkOfferingUnavailable, Plan, Step, chain_of
from journeyman.ports import ClusterChanged, Prices
from journeyman.steps.provision import provision
from tests.helpers.builders import CLASS, NOW, SMALL, node_class_body, pod_body, pool_body, stamp
from tests.helpers.fakes import Cluster, FakeCloud
from tests.helpers.simulated_cluster import SimulatedCluster

TRIGGER = ClusterChanged(id="1", cluster="demo", step=Step.PROVISION, reason="pods", time=NOW)
OFFERING = ("m.small", "a", "spot")


class PricedCloud(FakeCloud):
    """A cloud whose prices have a given age."""

    current = Prices(source="table of 2026-01")

    def prices(self):
        return self.current


@pytest.fixture
def cluster():
    cluster = Cluster()
    cluster.cloud = PricedCloud(cluster.clock)
    cluster.add(pool_body(), node_class_body())
    return cluster


def state(cluster):
    return cluster.server.get(OFFERING_STATE, CLASS)


def run_later(cluster, *, minutes=6):
    """Run the provision step after the NodeClass is due again."""
    cluster.clock.advance(minutes * 60)
    provision(cluster.run(), TRIGGER)


def apply(cluster, *actions):
    cluster.execute(Plan(chains=(chain_of("o", *actions),)))


def failed(offering=OFFERING, at=NOW):
    wait = timedelta(minutes=3)
    return MarkOfferingUnavailable(
        node_class=CLASS, offerings=(offering,), at=at, first=wait, longest=timedelta(hours=1), reason="ICE"
    )


def test_offering_state_has_the_age_of_prices(cluster):
    """A sandbox with newer prices updates the age; one with older prices writes nothing."""
    read = NOW + timedelta(minutes=1, microseconds=5)
    cluster.cloud.current = Prices(source="table of 2026-01", spot_refreshed_at=read)
    run_later(cluster)
    assert state(cluster)["status"]["prices"] == {
        "source": "table of 2026-01",
        "spotRefreshedAt": stamp(NOW + timedelta(minutes=1)),
        "message": "",
    }

    version = state(cluster)["metadata"]["resourceVersion"]
    run_later(cluster)
    cluster.cloud.current = Prices(source="table of 2026-01")
    run_later(cluster)
    assert state(cluster)["metadata"]["resourceVersion"] == version

    cluster.cloud.current = Prices(source="table of 2026-01", spot_refreshed_at=read, message="keeping the last prices")
    run_later(cluster)
    assert state(cluster)["status"]["prices"]["message"] == "keeping the last prices"


def test_offering_state_is_deleted_with_its_node_class(cluster):
    """The first step with a failure creates it; the next run for the NodeClass sets its owner."""
    apply(cluster, failed())
    assert "ownerReferences" not in state(cluster)["metadata"]

    run_later(cluster)
    apply(cluster, failed(("m.large", "a", "spot")))

    [owner] = state(cluster)["metadata"]["ownerReferences"]
    stored = cluster.server.get(cluster.cloud.node_class, CLASS)
    assert (owner["kind"], owner["name"], owner["uid"]) == ("EC2NodeClass", CLASS, stored["metadata"]["uid"])
    assert len(state(cluster)["status"]["unavailable"]) == 2


def test_launched_offering_is_removed_unless_it_failed_later(cluster):
    """A launch that succeeds while the offering is unavailable started before the failure was recorded."""
    apply(cluster, failed())
    apply(cluster, ClearOfferingFailures(node_class=CLASS, offering=OFFERING, at=NOW + timedelta(minutes=1)))
    assert len(state(cluster)["status"]["unavailable"]) == 1

    apply(cluster, ClearOfferingFailures(node_class=CLASS, offering=OFFERING, at=NOW + timedelta(minutes=3)))
    assert state(cluster)["status"]["unavailable"] == []


def test_back_off_restarts_after_a_successful_launch():
    """After a failure, a success and another failure the back-off is as short as after the first one."""
    simulation = SimulatedCluster((SMALL,), pool_body(spec={"disruption": {"consolidateAfter": "Never"}}))
    simulation.cloud.out_of_stock |= {(SMALL.name, o.zone, o.capacity_type) for o in SMALL.offerings}
    simulation.deploy("web", 1, cpu="1.5")
    simulation.run_for(minutes=5)
    assert max(failures(simulation).values()) == 2

    simulation.cloud.out_of_stock.clear()
    simulation.until(lambda: simulation.running() == 1, "it runs at last", minutes=10)

    [bought] = simulation.cloud.list()
    assert (bought.instance_type, bought.zone, bought.capacity_type) not in failures(simulation)


def failures(simulation):
    """Return how many failures the OfferingState has for each offering."""
    known = simulation.server.get(OFFERING_STATE, CLASS)["status"]["unavailable"]
    return {(o["instanceType"], o["zone"], o["capacityType"]): o["failures"] for o in known}


def test_offering_state_is_written_once_per_refresh_period(cluster):
    """Two runs within a NodeClass's refresh period read its prices once."""
    cluster.add(pod_body("p"))
    run_later(cluster)
    version = state(cluster)["metadata"]["resourceVersion"]
    run_later(cluster, minutes=1)
    assert state(cluster)["metadata"]["resourceVersion"] == version
