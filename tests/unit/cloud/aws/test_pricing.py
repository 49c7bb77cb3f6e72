"""Prices: the shipped table, estimates, refreshes from AWS or another process, and the last prices in an outage."""

import json
import logging
from datetime import timedelta

import pytest
from botocore.exceptions import ClientError
from msgspec.structs import replace

from journeyman.cloud.aws.aws_settings import Clients
from journeyman.cloud.aws.pricing import price_provider, shipped_prices
from journeyman.errors import DeadlineError
from journeyman.ports import Prices
from tests.unit.cloud.aws.conftest import START, Pages

THROTTLED = ClientError({"Error": {"Code": "RequestLimitExceeded"}}, "x")


def spot(instance_type, zone, price, timestamp):
    return {"InstanceType": instance_type, "AvailabilityZone": zone, "SpotPrice": str(price), "Timestamp": timestamp}


def product(instance_type, price, currency="USD"):
    dimension = {"pricePerUnit": {currency: str(price)}}
    return json.dumps(
        {
            "product": {"attributes": {"instanceType": instance_type}},
            "terms": {"OnDemand": {"offer": {"priceDimensions": {"rate": dimension}}}},
        }
    )


@pytest.fixture
def aws(clock):
    """Return clients in which m5.large costs 0.1, and 0.04 as Spot in zone a; a free product is ignored."""
    now = clock.now()
    history = [
        spot("m5.large", "us-east-1a", 0.03, now - timedelta(hours=2)),
        spot("m5.large", "us-east-1a", 0.04, now - timedelta(hours=1)),
    ]
    return Pages(
        describe_spot_price_history=[
            {"SpotPriceHistory": history},
            {"SpotPriceHistory": [spot("m5.large", "us-east-1a", 0.02, now - timedelta(hours=3))]},
        ],
        get_products=[{"PriceList": [product("m5.large", 0.1), product("m5.xlarge", 0)]}],
    )


@pytest.fixture
def book(aws, settings, clock):
    """Return a function that makes a price provider for settings with changes."""

    def make(**changes):
        return price_provider(Clients(lambda service, region: aws, "us-east-1"), replace(settings, **changes), clock)

    return make


def refresh(prices):
    prices.refresh_spot_if_due()
    prices.refresh_on_demand_if_due()


def test_shipped_prices_have_source_date_and_currency():
    """OfferingState and the log show them."""
    table = shipped_prices()
    assert "Amazon EC2" in table.source
    assert table.as_of == "2026-07-20"
    assert table.currency["cn-north-1"] == "CNY"
    assert table.on_demand_per_hour["us-east-1"]["m5.large"] == 0.096


@pytest.mark.parametrize(
    ("region", "source", "currency", "m5_large"),
    [
        ("us-east-1", "table of 2026-07-20", "USD", 0.096),
        ("cn-north-1", "table of 2026-07-20", "CNY", 1.013),
        ("mx-central-1", "table of 2026-07-20 for us-east-1", "USD", 0.096),
        ("cn-northwest-1", "table of 2026-07-20 for cn-north-1", "CNY", 1.013),
    ],
)
def test_region_without_shipped_prices_is_said_to_be_estimated(book, region, source, currency, m5_large):
    """An approximate price is better than no node; it is in the region's own currency."""
    prices = book(region=region)
    state = prices.state()
    assert prices.on_demand("m5.large") == pytest.approx(m5_large, abs=0.001)
    assert (state.source, state.currency, state.estimated) == (source, currency, "for" in source)


def test_estimate_is_never_below_the_spot_price(book, aws, clock):
    """AWS caps a Spot price at the on-demand price, so a region with dearer Spot is dearer on demand."""
    history = [spot("m5.large", f"sa-east-1{zone}", price, clock.now()) for zone, price in (("a", 0.14), ("b", 0.12))]
    aws.pages["describe_spot_price_history"] = [{"SpotPriceHistory": history}]
    estimated, known = book(region="sa-east-1"), book()
    for prices in (estimated, known):
        prices.refresh_spot_if_due()
    assert (estimated.on_demand("m5.large"), known.on_demand("m5.large")) == (0.14, 0.096)


def test_spot_price_is_the_on_demand_price_until_first_read(book, aws):
    """Afterwards a type without history has no Spot offering."""
    prices = book()
    assert (prices.spot("m5.large", "us-east-1a"), prices.spot("nothing", "us-east-1a")) == (0.096, None)
    assert not aws.asked

    refresh(prices)
    assert prices.spot("m5.large", "us-east-1a") == 0.04
    assert prices.spot("m5.large", "us-east-1b") is None
    assert (prices.on_demand("m5.large"), prices.on_demand("m5.xlarge")) == (0.1, 0.192)


def test_refreshed_region_has_no_price_of_another_region(book):
    """A type that the Pricing API does not sell there has no price, instead of an estimate beside real ones."""
    prices = book(region="eu-west-1")
    assert prices.on_demand("m5.xlarge") == 0.192
    refresh(prices)
    state = prices.state()
    assert (prices.on_demand("m5.large"), prices.on_demand("m5.xlarge")) == (0.1, None)
    assert (state.estimated, state.source, dict(state.on_demand)) == (False, "pricing:GetProducts", {"m5.large": 0.1})


def test_prices_of_another_currency_are_not_used(book, aws):
    """The Pricing API lists yuan for China; an answer in dollars leaves the estimate, with a message."""
    china = book(region="cn-northwest-1")
    refresh(china)
    assert (china.on_demand("m5.large") or 0) > 0.9
    assert "no price of cn-northwest-1 in CNY" in china.state().message

    aws.pages["get_products"] = [{"PriceList": [product("m5.large", 0.85, "CNY")]}]
    again = book(region="cn-northwest-1")
    refresh(again)
    assert (again.on_demand("m5.large"), again.state().currency) == (0.85, "CNY")

    dollars = book()
    dollars.adopt(again.state())
    assert dollars.on_demand("m5.large") == 0.096
    dollars.adopt(Prices(on_demand_refreshed_at=START, on_demand={"m5.large": 9.0}))  # of an earlier release, or edited
    assert dollars.on_demand("m5.large") == 0.096


@pytest.mark.parametrize(
    ("region", "endpoint"),
    [
        ("us-west-2", "us-east-1"),
        ("sa-east-1", "us-east-1"),
        ("ap-southeast-3", "ap-south-1"),
        ("eu-west-1", "eu-central-1"),
        ("cn-north-1", "cn-northwest-1"),
    ],
)
def test_pricing_api_is_called_at_the_endpoint_of_the_region(region, endpoint):
    """AWS serves the Pricing API in four regions."""
    created = []
    assert Clients(lambda service, region: created.append((service, region)), region).pricing is None
    assert created == [("pricing", endpoint)]


def test_prices_are_read_every_twelve_hours(book, aws, clock):
    """Only `refresh_on_demand_if_due` reads on-demand prices, because that takes seconds.

    Instance types are built again when the version changes, which it does only with a price.
    """
    prices = book()
    prices.refresh_spot_if_due()
    prices.refresh_spot_if_due()
    assert aws.asked == {"describe_spot_price_history": 1}
    assert prices.spot("m5.large", "us-east-1a") == 0.04

    refresh(prices)
    refresh(prices)
    assert aws.asked == {"describe_spot_price_history": 1, "get_products": 2}  # shared tenancy, bare metal

    version = prices.version
    clock.advance(12 * 3600)
    refresh(prices)
    assert aws.asked == {"describe_spot_price_history": 2, "get_products": 4}
    assert prices.version == version > 0


@pytest.mark.parametrize(
    ("changes", "asked"),
    [
        ({"isolated_vpc": True}, {"describe_spot_price_history": 1}),
        ({"region": "us-gov-west-1"}, {"describe_spot_price_history": 1}),
        ({"spot_refresh_period": None, "on_demand_refresh_period": None}, {}),
    ],
    ids=["inside a VPC", "in GovCloud", "without periods"],
)
def test_pricing_api_that_cannot_be_reached_or_shall_not_is_not_called(book, aws, changes, asked):
    """It has no endpoint there."""
    prices = book(**changes)
    refresh(prices)
    assert aws.asked == asked
    assert prices.state().on_demand_due_at is None


@pytest.mark.parametrize("error", [THROTTLED, DeadlineError("the run's time is up")])
def test_failed_read_keeps_the_last_prices_and_reports_their_age_and_the_error(book, aws, clock, caplog, error):
    """The shipped table has no age; an error is reported, with the age of the last success, until a read succeeds.

    An outage of the pricing APIs, or a slow one, never stops a launch; every process tries again after an hour.
    """
    prices = book()
    shipped = prices.state()
    refresh(prices)
    read_at = clock.now()
    fresh = prices.state()
    clock.advance(12 * 3600)
    good, aws.pages = aws.pages, dict.fromkeys(aws.pages, error)
    with caplog.at_level(logging.WARNING):
        refresh(prices)
    stale, cold = prices.state(), book()
    cold.adopt(stale)
    assert (prices.on_demand("m5.large"), prices.spot("m5.large", "us-east-1a")) == (0.1, 0.04)
    assert caplog.text.count("keeping the last") == 2
    assert stale.on_demand_due_at == cold.state().on_demand_due_at == clock.now() + timedelta(hours=1)
    clock.advance(12 * 3600)
    aws.pages = good
    refresh(prices)

    ages = [(state.spot_refreshed_at, state.on_demand_refreshed_at) for state in (shipped, fresh, stale)]
    assert ages == [(None, None), (read_at, read_at), (read_at, read_at)]
    assert (shipped.source, fresh.source, fresh.message) == ("table of 2026-07-20", "pricing:GetProducts", "")
    assert ("RequestLimitExceeded" if error is THROTTLED else "time is up") in stale.message
    assert (prices.state().message, prices.state().spot_refreshed_at) == ("", clock.now())


def test_error_of_on_demand_prices_is_reported_until_they_are_read(book, aws, clock):
    """Reading Spot prices does not mend them, here or in a process that adopts the record; each kind has its own error."""
    prices = book()
    good = aws.pages
    aws.pages = {**good, "get_products": THROTTLED}
    prices.refresh_on_demand_if_due()
    prices.refresh_spot_if_due()
    cold = book()
    cold.adopt(prices.state())
    cold.refresh_spot_if_due()
    for each in (prices, cold):
        assert "keeping the last on-demand prices" in each.state().message

    clock.advance(12 * 3600)
    aws.pages = {**good, "describe_spot_price_history": THROTTLED}
    refresh(prices)
    cold.adopt(prices.state())
    assert prices.state().message.startswith("keeping the last spot prices")
    assert cold.state().message == ""  # its own Spot prices are good
