"""OfferingState: unavailable offerings, prices with their age, and owner."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from journeyman.core.api.objects import OFFERING_STATE, OfferingKey
from journeyman.core.plan import ClearOfferingFailures, MarkOfferingUnavailable, Plan, Step, chain_of
from journeyman.errors import RateLimitedError
from journeyman.ports import ClusterChanged, Prices
from journeyman.steps.consolidate import consolidate
from journeyman.steps.provision import provision
from tests.helpers.builders import CLASS, NOW, SMALL, node_class_body, pod_body, pool_body, stamp
from tests.helpers.fakes import Altered, Cluster, FakeCloud, failing
from tests.helpers.simulated_cluster import SimulatedCluster

TRIGGER = ClusterChanged(id="1", cluster="demo", step=Step.PROVISION, reason="pods", time=NOW)
OFFERING = OfferingKey("m.small", "a", "spot")


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
    prices = state(cluster)["status"]["prices"]
    assert (prices["source"], prices["message"]) == ("table of 2026-01", "")
    assert prices["spotRefreshedAt"] == stamp(NOW + timedelta(minutes=1))
    assert "onDemandRefreshedAt" not in prices

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
    apply(cluster, failed(OfferingKey("m.large", "a", "spot")))

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


@pytest.mark.parametrize(("conflicts", "counts"), [(2, {"MarkOfferingUnavailable": 1}), (3, {"conflicts": 1})])
def test_update_is_repeated_twice_if_another_step_writes_meanwhile(cluster, conflicts, counts):
    """Several steps write the same OfferingState; after three conflicts the step decides again."""
    others = [{"metadata": {"labels": {"written": str(number)}}} for number in range(conflicts)]

    def patch(resource, name, body, **how):
        if others:
            cluster.server.patch(resource, name, others.pop())
        return cluster.server.patch(resource, name, body, **how)

    run = cluster.run(store=Altered(cluster.server, patch=patch))
    assert cluster.execute(Plan(chains=(chain_of("o", failed()),)), run=run).counts == counts


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
    known = simulation.server.get(OFFERING_STATE, CLASS)["status"]["unavailable"]
    return {(o["instanceType"], o["zone"], o["capacityType"]): o["failures"] for o in known}


def test_offering_state_is_written_once_per_refresh_period(cluster):
    """Two runs within a NodeClass's refresh period read its prices once."""
    cluster.add(pod_body("p"))
    recorded = []
    for minutes in (6, 1, 4):
        cluster.clock.advance(minutes * 60)
        recorded.append(provision(cluster.run(), TRIGGER).counts.get("RecordPriceAge", 0))
    assert recorded == [1, 0, 1]


def test_no_prices_are_recorded_for_a_node_class_whose_types_cannot_be_listed(cluster):
    """They would be those of another NodeClass."""
    throttled = Altered(cluster.cloud, get_instance_types=failing(RateLimitedError("slow down")))
    outcome = provision(cluster.run(cloud=throttled), TRIGGER)
    assert "RecordPriceAge" not in outcome.counts


class PricingCloud(PricedCloud):
    """A cloud whose pricing API returns `listed`, or nothing; every 12 hours."""

    listed: dict[str, float] | None = None
    reads = 0
    adopted: Prices | None = None

    def prices(self):
        tried_at = self.current.on_demand_tried_at
        return replace(self.current, on_demand_due_at=tried_at + timedelta(hours=12) if tried_at else self.clock.now())

    def adopt_prices(self, recorded):
        self.adopted = recorded

    def refresh_prices(self):
        self.reads += 1
        now = self.clock.now()
        if self.listed is None:
            self.current = replace(self.current, on_demand_tried_at=now, message="no answer")
        else:
            self.current = Prices(
                source="api",
                currency="EUR",
                on_demand=self.listed,
                on_demand_tried_at=now,
                on_demand_refreshed_at=now,
            )


@pytest.fixture
def priced():
    """Return a cluster whose on-demand prices are estimated so far."""
    cluster = Cluster()
    cluster.cloud = PricingCloud(cluster.clock)
    cluster.cloud.current = Prices(source="table for elsewhere", currency="EUR", estimated=True)
    cluster.add(pool_body(), node_class_body())
    return cluster


def refreshed(cluster):
    [condition] = state(cluster)["status"]["conditions"]
    assert condition["type"] == "PricesRefreshed"
    return condition["status"], condition["reason"], condition["message"]


def test_consolidate_reads_on_demand_prices_that_provision_uses(priced):
    """The first provision run says that prices are estimated and requeues consolidate, which reads and records them.

    Before that no NodeClass is Ready, so that nothing needs them.
    """
    consolidate(priced.run(), TRIGGER)
    assert priced.cloud.reads == 0
    priced.queue.sent.clear()
    run_later(priced)
    assert refreshed(priced) == ("False", "Estimated", "on-demand prices are an estimate: table for elsewhere")
    assert priced.record.count_of("journeyman_on_demand_prices_estimated") == 1
    assert (priced.cloud.reads, [m.step for m in priced.queue.sent]) == (0, [Step.CONSOLIDATE])

    priced.cloud.listed = {"m.small": 0.05, "m.large": 0.2}
    consolidate(priced.run(), TRIGGER)
    assert refreshed(priced)[:2] == ("True", "PricesRefreshed")
    assert state(priced)["status"]["prices"]["onDemand"] == {"m.large": "0.2", "m.small": "0.05"}
    assert state(priced)["status"]["prices"]["estimated"] is False
    assert priced.cloud.adopted is None or not priced.cloud.adopted.on_demand

    run_later(priced)
    consolidate(priced.run(), TRIGGER)
    assert priced.cloud.reads == 1
    assert dict(priced.cloud.adopted.on_demand) == {"m.large": 0.2, "m.small": 0.05}
    assert priced.cloud.adopted.currency == "EUR"


def test_prices_that_cannot_be_refreshed_say_why(priced):
    """The condition has the error; prices that are a day and a half old are outdated. Removed ones do not stay in the record."""
    run_later(priced)
    consolidate(priced.run(), TRIGGER)
    assert refreshed(priced)[2] == "on-demand prices are an estimate: table for elsewhere; no answer"

    for listed in ({"m.small": 0.05, "m.large": 0.2}, {"m.small": 0.06}):
        priced.clock.advance(12 * 3600)
        priced.cloud.listed = listed
        consolidate(priced.run(), TRIGGER)
    assert state(priced)["status"]["prices"]["onDemand"] == {
        "m.small": "0.06"
    }  # a merge patch alone would keep the other
    priced.cloud.listed = None
    priced.clock.advance(36 * 3600)
    consolidate(priced.run(), TRIGGER)
    status, reason, message = refreshed(priced)
    assert (status, reason) == ("False", "Outdated")
    assert message.endswith("UTC; no answer")


def test_edited_prices_are_ignored(priced):
    """A user may edit the object; what is no positive number is no price."""
    run_later(priced)
    texts = {"m.small": "0.05", "zero": "0", "negative": "-1", "text": "cheap", "endless": "inf", "none": "nan"}
    patch = {"status": {"prices": {"onDemand": texts}}}
    priced.server.patch(OFFERING_STATE, CLASS, patch, subresource="status")
    run_later(priced)

    assert dict(priced.cloud.adopted.on_demand) == {"m.small": 0.05}
