"""On-demand prices from BSS: unknown products, currencies, settings, batches; and the estimates until prices were read."""

import logging

import pytest
from msgspec.structs import replace

from journeyman.cloud.huawei.flavors import FlavorReader
from journeyman.cloud.huawei.pricing import price_provider
from journeyman.cloud.huawei.rest_api import RestApiError
from tests.unit.cloud.huawei.conftest import CceCluster

RATINGS = "ListOnDemandResourceRatings"


class NamelessErrors:
    """An API whose BSS does not name the product that it does not know."""

    def __init__(self, send):
        self._send = send
        self.sizes = []

    def __call__(self, call):
        if call.operation == RATINGS:
            self.sizes.append(len(call.body["product_infos"]))
        try:
            return self._send(call)
        except RestApiError as error:
            raise RestApiError("CBC.6006", "The product is not supported", status=error.status) from error


class Priced:
    """The prices of an account with some flavors; `unknown` ones are flavors that BSS does not know."""

    def __init__(self, *, known=3, unknown=(), **settings):
        self.cluster = CceCluster(types=None)
        settings = replace(self.cluster.settings, **settings)
        read = FlavorReader(self.cluster.account.rest_api(), settings, self.cluster.clock).read()
        self.known = read[:known]
        self.flavors = (*self.known, *(replace(read[0], name=name) for name in unknown))
        self.settings = settings

    def read(self, api=None):
        provider = price_provider(api or self.cluster.api, self.settings, lambda: self.flavors, self.cluster.clock)
        provider.refresh_on_demand_if_due()
        return provider

    def expected(self):
        catalogue = self.cluster.account.catalogue.flavors
        return {flavor.name: catalogue[flavor.name].price for flavor in self.known}

    @property
    def requests(self):
        return [len(body["product_infos"]) for body in self.cluster.api.bodies(RATINGS)]


def test_more_than_a_hundred_flavors_are_several_requests():
    """BSS prices 100 products a request; no product is in two."""
    priced = Priced(known=1, unknown=[f"x9.{n}xlarge.2" for n in range(1, 105)])
    (name,) = priced.expected()

    def send(call):
        products = [{**product, "resource_spec": f"{name}.linux"} for product in call.body["product_infos"]]
        return priced.cluster.api(replace(call, body={**call.body, "product_infos": products}))

    state = priced.read(send).state()

    assert priced.requests == [100, 5]
    assert dict(state.on_demand) == dict.fromkeys((f.name for f in priced.flavors), priced.expected()[name])


@pytest.mark.parametrize("text", ["Can not find product {}", '{{"message":"Can not find product {}"}}'])
def test_named_unknown_product_is_left_out(text, caplog):
    """The others are priced; the log names it. BSS sometimes puts JSON into the text."""
    priced = Priced(unknown=["x9.large.2"])

    def send(call):
        try:
            return priced.cluster.api(call)
        except RestApiError as error:
            raise RestApiError(error.code, text.format("x9.large.2.linux"), status=error.status) from error

    with caplog.at_level(logging.INFO):
        provider = priced.read(send)

    assert dict(provider.state().on_demand) == priced.expected()
    assert provider.on_demand("x9.large.2") is None
    assert priced.requests == [4, 3]
    assert "BSS has no price of x9.large.2" in caplog.text


def test_unnamed_unknown_products_are_found_by_halving():
    priced = Priced(known=6, unknown=["a0.large.2", "x9.large.2"])
    api = NamelessErrors(priced.cluster.api)
    provider = priced.read(api)
    assert dict(provider.state().on_demand) == priced.expected()
    assert api.sizes[:3] == [8, 4, 2]
    assert len(api.sizes) <= 13


def test_only_unknown_products_leave_the_estimates():
    """The message says so; reading is tried again after an hour."""
    priced = Priced(known=0, unknown=["x9.large.2"])
    provider = priced.read()
    state = provider.state()
    assert (dict(state.on_demand), state.estimated) == ({}, True)
    assert "returned no price of cn-north-4 in CNY" in state.message
    assert (state.on_demand_due_at - priced.cluster.clock.now()).total_seconds() == 3600


@pytest.mark.parametrize(
    ("settings", "said", "requests"),
    [
        ({"currency": "USD"}, "prices in CNY; set HUAWEICLOUD_CURRENCY=CNY", [3]),
        ({"domain_id": ""}, "set HUAWEICLOUD_SDK_DOMAIN_ID", []),
    ],
    ids=["another currency, with which they are not compared", "no id of the account, which BSS needs"],
)
def test_wrong_setting_is_named(settings, said, requests):
    priced = Priced(**settings)
    state = priced.read().state()
    assert not state.on_demand
    assert said in state.message
    assert priced.requests == requests


def test_refused_request_keeps_the_prices_and_names_the_right():
    """Those of the account after its discount; a right that is missing later does not take them."""
    priced = Priced()
    priced.cluster.account.billing.discount = 0.5
    half = {name: pytest.approx(price / 2) for name, price in priced.expected().items()}
    provider = priced.read()
    state = provider.state()
    assert dict(state.on_demand) == half
    assert (state.currency, state.estimated, state.message) == ("CNY", False, "")

    priced.cluster.wait(12 * 3600)
    priced.cluster.account.fail_next(RATINGS, "CBC.0151", 3)
    provider.refresh_on_demand_if_due()
    assert dict(provider.state().on_demand) == half
    assert "grant bss:discount:view" in provider.state().message


def test_incomplete_answers_are_no_prices():
    """A flavor without an amount keeps its estimate, and a product that was not asked for is skipped."""
    priced = Priced(known=3)
    first = min(priced.expected())
    results = [
        {"id": "1", "amount": 0.25},
        {"id": "2"},
        {"id": "3", "amount": None},
        {"id": "4", "amount": 9},
        {"amount": 9},
    ]
    priced.cluster.api.answers[RATINGS] = {"currency": "CNY", "product_rating_results": results}

    assert dict(priced.read().state().on_demand) == {first: 0.25}
