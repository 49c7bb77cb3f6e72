"""Prices: a table to begin with, what AWS says once asked, and the last known when AWS does not answer."""

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
    """An entry of DescribeSpotPriceHistory."""
    return {"InstanceType": instance_type, "AvailabilityZone": zone, "SpotPrice": str(price), "Timestamp": timestamp}


def product(instance_type, price, currency="USD"):
    """An entry of GetProducts."""
    dimension = {"pricePerUnit": {currency: str(price)}}
    return json.dumps(
        {
            "product": {"attributes": {"instanceType": instance_type}},
            "terms": {"OnDemand": {"offer": {"priceDimensions": {"rate": dimension}}}},
        }
    )


@pytest.fixture
def aws(clock):
    """m5.large costs 0.1, as spot 0.04 in zone a; a free product is no price."""
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
    """A price book, for settings with changes."""

    def make(**changes):
        return PriceProvider(Clients(lambda service, region: aws, "us-east-1"), replace(settings, **changes), clock)

    return make


def test_prices_ship_with_their_source_date_and_currency():
    """A figure without a source is a rumour."""
    table = shipped_prices()

    assert "Amazon EC2" in table.source
    assert table.as_of == "2026-07-20"
    assert table.currency["cn-north-1"] == "CNY"
    assert table.on_demand_per_hour["us-east-1"]["m5.large"] == 0.096


def test_an_unknown_region_falls_back_with_a_warning(book, caplog):
    """Wrong by some percent beats no node; the log says so."""
    with caplog.at_level(logging.WARNING):
        prices = book(region="mx-central-1")

    assert prices.on_demand("m5.large") == 0.096
    assert "no shipped prices" in caplog.text


def test_spot_costs_as_on_demand_until_the_first_update(book, aws):
    """Nothing is asked before anyone wants it; afterwards no history means no spot."""
    prices = book()
    assert (prices.spot("m5.large", "us-east-1a"), prices.spot("nothing", "us-east-1a")) == (0.096, None)
    assert not aws.asked

    prices.refresh()
    assert prices.spot("m5.large", "us-east-1a") == 0.04
    assert prices.spot("m5.large", "us-east-1b") is None
    assert (prices.on_demand("m5.large"), prices.on_demand("m5.xlarge")) == (0.1, 0.192)


def test_the_version_moves_only_when_a_price_does(book):
    """Catalogues are rebuilt by it."""
    prices = book()
    prices.refresh()
    version = prices.version
    prices.refresh()

    assert prices.version == version > 0


def test_what_cannot_be_read_keeps_its_last_value(book, aws, caplog):
    """A pricing outage never stops a launch."""
    prices = book()
    prices.refresh()
    aws.pages = dict.fromkeys(aws.pages, THROTTLED)
    with caplog.at_level(logging.WARNING):
        prices.refresh()

    assert (prices.on_demand("m5.large"), prices.spot("m5.large", "us-east-1a")) == (0.1, 0.04)
    assert caplog.text.count("keeping the last") == 2


def test_spot_prices_are_read_at_first_use_and_then_every_twelve_hours(book, aws, clock):
    """A cold sandbox must not plan with list prices; on-demand prices wait for a period of their own."""
    prices = book()
    prices.refresh_if_due()
    prices.refresh_if_due()
    assert aws.asked == {"describe_spot_price_history": 1}
    assert prices.spot("m5.large", "us-east-1a") == 0.04

    clock.advance(12 * 3600)
    prices.refresh_if_due()
    assert aws.asked == {"describe_spot_price_history": 2}


def test_periods_can_be_turned_off_and_on(book, aws):
    """None never asks; a period for on-demand prices asks the Pricing API."""
    book(spot_refresh_period=None).refresh_if_due()
    assert not aws.asked

    book(spot_refresh_period=None, on_demand_refresh_period=timedelta(hours=12)).refresh_if_due()
    assert set(aws.asked) == {"get_products"}


def test_an_isolated_network_is_not_asked_for_list_prices(book, aws):
    """The Pricing API has no endpoint inside a VPC."""
    book(isolated_vpc=True).refresh()

    assert aws.asked == {"describe_spot_price_history": 1}


def test_the_age_of_prices_and_the_last_error_are_reported(book, aws, clock):
    """A table has no time of reading; a failure is reported until a later attempt succeeds, and keeps the last time."""
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
