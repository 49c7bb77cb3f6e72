"""Prices: the shipped table, refreshes from AWS, and the last prices when AWS does not respond."""

import json
import logging
from datetime import timedelta

import pytest
from botocore.exceptions import ClientError
from msgspec.structs import replace

from journeyman.cloud.aws.aws_settings import Clients
from journeyman.cloud.aws.pricing import PriceProvider, shipped_prices
from tests.unit.cloud.aws.conftest import Pages

THROTTLED = ClientError({"Error": {"Code": "RequestLimitExceeded"}}, "x")


def spot(instance_type, zone, price, timestamp):
    """Return an entry of DescribeSpotPriceHistory."""
    return {"InstanceType": instance_type, "AvailabilityZone": zone, "SpotPrice": str(price), "Timestamp": timestamp}


def product(instance_type, price, currency="USD"):
    """Return an entry of GetProducts."""
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
        return PriceProvider(Clients(lambda service, region: aws, "us-east-1"), replace(settings, **changes), clock)

    return make


def test_shipped_prices_have_source_date_and_currency():
    """OfferingState and the log show them."""
    table = shipped_prices()

    assert "Amazon EC2" in table.source
    assert table.as_of == "2026-07-20"
    assert table.currency["cn-north-1"] == "CNY"
    assert table.on_demand_per_hour["us-east-1"]["m5.large"] == 0.096


def test_unknown_region_uses_us_east_1_with_a_warning(book, caplog):
    """An approximate price is better than no node."""
    with caplog.at_level(logging.WARNING):
        prices = book(region="mx-central-1")

    assert prices.on_demand("m5.large") == 0.096
    assert "no shipped prices" in caplog.text


def test_spot_price_is_the_on_demand_price_until_first_read(book, aws):
    """Afterwards a type without history has no Spot offering."""
    prices = book()
    assert (prices.spot("m5.large", "us-east-1a"), prices.spot("nothing", "us-east-1a")) == (0.096, None)
    assert not aws.asked

    prices.refresh()
    assert prices.spot("m5.large", "us-east-1a") == 0.04
    assert prices.spot("m5.large", "us-east-1b") is None
    assert (prices.on_demand("m5.large"), prices.on_demand("m5.xlarge")) == (0.1, 0.192)


def test_version_changes_only_with_a_price(book):
    """Instance types are built again when it changes."""
    prices = book()
    prices.refresh()
    version = prices.version
    prices.refresh()

    assert prices.version == version > 0


def test_failed_read_keeps_the_last_prices(book, aws, caplog):
    """An outage of the pricing APIs never stops a launch."""
    prices = book()
    prices.refresh()
    aws.pages = dict.fromkeys(aws.pages, THROTTLED)
    with caplog.at_level(logging.WARNING):
        prices.refresh()

    assert (prices.on_demand("m5.large"), prices.spot("m5.large", "us-east-1a")) == (0.1, 0.04)
    assert caplog.text.count("keeping the last") == 2


def test_spot_prices_are_read_at_first_use_and_every_twelve_hours(book, aws, clock):
    """On-demand prices have another refresh period."""
    prices = book()
    prices.refresh_if_due()
    prices.refresh_if_due()
    assert aws.asked == {"describe_spot_price_history": 1}
    assert prices.spot("m5.large", "us-east-1a") == 0.04

    clock.advance(12 * 3600)
    prices.refresh_if_due()
    assert aws.asked == {"describe_spot_price_history": 2}


def test_refresh_periods_are_optional(book, aws):
    """Without a period no price is read; with one, on-demand prices come from the Pricing API."""
    book(spot_refresh_period=None).refresh_if_due()
    assert not aws.asked

    book(spot_refresh_period=None, on_demand_refresh_period=timedelta(hours=12)).refresh_if_due()
    assert set(aws.asked) == {"get_products"}


def test_isolated_vpc_does_not_call_the_pricing_api(book, aws):
    """The Pricing API has no endpoint inside a VPC."""
    book(isolated_vpc=True).refresh()

    assert aws.asked == {"describe_spot_price_history": 1}


def test_age_of_prices_and_last_error_are_reported(book, aws, clock):
    """The shipped table has no age; an error is reported, with the age of the last success, until a read succeeds."""
    prices = book()
    shipped = prices.state()
    prices.refresh()
    read_at = clock.now()
    fresh = prices.state()
    clock.advance(3600)
    good, aws.pages = aws.pages, dict.fromkeys(aws.pages, THROTTLED)
    prices.refresh()
    stale = prices.state()
    aws.pages = good
    prices.refresh()

    assert (shipped.source, shipped.spot_refreshed_at, shipped.on_demand_refreshed_at) == (
        "table of 2026-07-20",
        None,
        None,
    )
    assert (fresh.source, fresh.spot_refreshed_at, fresh.on_demand_refreshed_at, fresh.message) == (
        "pricing:GetProducts",
        read_at,
        read_at,
        "",
    )
    assert stale.spot_refreshed_at == stale.on_demand_refreshed_at == read_at
    assert "RequestLimitExceeded" in stale.message
    assert (prices.state().message, prices.state().spot_refreshed_at) == ("", clock.now())
