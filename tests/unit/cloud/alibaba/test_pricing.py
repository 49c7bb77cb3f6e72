"""Prices of ECS types: the shipped table, on-demand prices of the account by family, and Spot prices by zone."""

import pytest

from journeyman.cloud.alibaba.alibaba_settings import AlibabaSettings
from journeyman.cloud.alibaba.instance_types import parse_type
from journeyman.cloud.alibaba.open_api import OpenApiError
from journeyman.cloud.alibaba.pricing import price_provider, shipped_on_demand, shipped_prices
from journeyman_simulator.clock import VirtualClock
from tests.unit.cloud.alibaba.conftest import START

LARGE, XLARGE, MEMORY = "ecs.g7.large", "ecs.g7.xlarge", "ecs.r7.large"
SHIPPED = shipped_on_demand("cn-hangzhou")


def a_type(name, vcpus, memory_gib):
    size = {"CpuCoreCount": vcpus, "MemorySize": float(memory_gib), "EniQuantity": 3, "EniPrivateIpAddressQuantity": 10}
    return parse_type({"InstanceTypeId": name, "CpuArchitecture": "X86", **size})


TYPES = (a_type(XLARGE, 4, 16), a_type("ecs.g7.new", 1, 4), a_type(LARGE, 2, 8), a_type(MEMORY, 2, 16))


def priced(price, *, currency="CNY", details=()):
    """Return an answer of DescribePrice; `details` are (resource, price)."""
    parts = [{"Resource": resource, "TradePrice": part} for resource, part in details]
    return {"PriceInfo": {"Price": {"TradePrice": price, "Currency": currency, "DetailInfos": {"DetailInfo": parts}}}}


class Ecs:
    """An API with the answers of DescribePrice by type, which may be errors, and Spot discounts by type in zone h."""

    def __init__(self, prices=(), discounts=()):
        self.prices = dict(prices)
        self.discounts = dict(discounts)
        self.asked = []

    def __call__(self, call):
        if call.action == "DescribeSpotAdvice":
            found = [{"InstanceType": name, "AverageSpotDiscount": percent} for name, percent in self.discounts.items()]
            zones = [{"ZoneId": "h", "AvailableSpotResources": {"AvailableSpotResource": found}}, {"ZoneId": "i"}]
            return {"AvailableSpotZones": {"AvailableSpotZone": zones}}
        self.asked.append(call.parameters["InstanceType"])
        answer = self.prices.get(call.parameters["InstanceType"], {})
        if isinstance(answer, Exception):
            raise answer
        return answer


def prices_of(api, *, region="cn-hangzhou"):
    settings = AlibabaSettings(cluster_id="c1", region=region)
    prices = price_provider(api, settings, lambda: TYPES, VirtualClock(START))
    prices.refresh_on_demand_if_due()
    prices.refresh_spot_if_due()
    return prices


def test_shipped_prices_are_the_regions_own_or_those_of_hangzhou():
    """The source says which; they are estimates, since accounts have discounts."""
    table = shipped_prices().on_demand_per_hour
    known, unknown = (prices_of(Ecs(), region=region) for region in ("cn-beijing", "cn-moon"))

    assert known.on_demand(LARGE) == table["cn-beijing"][LARGE]
    assert unknown.on_demand(LARGE) == SHIPPED[LARGE]
    assert known.state().source == f"estimated table of {shipped_prices().as_of}"
    assert unknown.state().source == f"estimated table of {shipped_prices().as_of} for cn-hangzhou"
    assert known.state().estimated
    assert len({prices[LARGE] for prices in table.values() if LARGE in prices}) > 1


def test_family_has_the_discount_of_its_smallest_type_with_a_known_price():
    """One request for each family; a type that the table lacks keeps none. An account may pay in dollars, the table is in yuan."""
    api = Ecs({LARGE: priced(SHIPPED[LARGE] / 2), MEMORY: priced(SHIPPED[MEMORY] / 4)})
    read = prices_of(api).state()

    assert api.asked == [LARGE, MEMORY]
    assert (read.source, read.currency) == ("ecs:DescribePrice", "CNY")
    assert dict(read.on_demand) == {
        LARGE: pytest.approx(SHIPPED[LARGE] / 2, abs=1e-6),
        XLARGE: pytest.approx(SHIPPED[XLARGE] / 2, abs=1e-6),
        MEMORY: pytest.approx(SHIPPED[MEMORY] / 4, abs=1e-6),
    }
    in_dollars = prices_of(Ecs(dict.fromkeys((LARGE, MEMORY), priced(0.1, currency="USD")))).state()
    assert (dict(in_dollars.on_demand), in_dollars.currency, "in CNY" in in_dollars.message) == ({}, "CNY", True)


@pytest.mark.parametrize(
    ("answer", "price"),
    [
        (priced(2.0), 2.0),
        (priced(2.0, details=[("systemDisk", 0.5), ("instanceType", 1.5)]), 1.5),
        (priced(2.0, details=[("systemDisk", 0.5)]), 2.0),
        (priced(2.0, currency="USD"), None),
        (priced(None), None),
        (priced(0), None),
        ({}, None),
        (OpenApiError("InvalidInstanceType.ValueNotSupported", "no", status=403), None),
    ],
)
def test_price_is_that_of_the_instance_without_its_disk(answer, price):
    """A family without one in the table's currency is skipped, and the others are read."""
    read = prices_of(Ecs({LARGE: answer, MEMORY: priced(1.0)})).state().on_demand
    assert read[MEMORY] == pytest.approx(1.0, abs=1e-6)
    assert read.get(LARGE) == (None if price is None else pytest.approx(price, abs=1e-6))


def test_throttled_read_keeps_the_shipped_prices():
    """All of them: it is repeated later, as a whole."""
    api = Ecs({LARGE: OpenApiError("Throttling.User", "slow down", status=400), MEMORY: priced(1.0)})
    state = prices_of(api).state()
    assert (api.asked, dict(state.on_demand), state.estimated) == ([LARGE], {}, True)
    assert "slow down" in state.message


@pytest.mark.parametrize(
    ("name", "percent", "share"),
    [
        (LARGE, 40, 0.4),
        (LARGE, 100, 1),
        (LARGE, 130, 1),
        (LARGE, 0, None),
        (LARGE, None, None),
        ("ecs.x9.large", 40, None),
    ],
)
def test_spot_price_is_a_share_of_the_on_demand_price_and_at_most_that(name, percent, share):
    prices = prices_of(Ecs(discounts={MEMORY: 50, name: percent}))
    assert prices.spot(name, "h") == (None if share is None else pytest.approx(SHIPPED[LARGE] * share, abs=1e-6))
    assert prices.spot(MEMORY, "h") == pytest.approx(SHIPPED[MEMORY] / 2, abs=1e-6)
    assert prices.spot(MEMORY, "i") is None
