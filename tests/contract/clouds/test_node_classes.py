"""Every cloud's provider resolves NodeClasses, and offers their instance types with prices in one currency."""

import json
from datetime import timedelta

import pytest
from msgspec.structs import replace

from journeyman.errors import InvalidObjectError, RateLimitedError


def condition(status, type_):
    """Return (status, reason) of a condition."""
    return next((c["status"], c["reason"]) for c in status["conditions"] if c["type"] == type_)


# -- status -----------------------------------------------------------------------------------------------------------


def test_node_class_resolves_to_existing_resources(cloud, ready):
    """Ready is True at the current generation."""
    assert condition(ready["status"], "Ready") == ("True", "Ready")
    assert {c["observedGeneration"] for c in ready["status"]["conditions"]} == {2}
    assert {name for name, value in ready["status"].items() if value} >= cloud.resolved_fields


def test_invalid_node_class_gets_a_false_condition(cloud, provider):
    """No error is raised; Ready is False. An older CRD may admit a NodeClass without spec."""
    without_spec = {name: value for name, value in cloud.node_class().items() if name != "spec"}
    for body in (*(cloud.node_class(**spec) for spec in cloud.invalid_specs), without_spec):
        status = provider.resolve(body, cloud.clock.now())

        assert condition(status, "ValidationSucceeded") == ("False", "InvalidSpec")
        assert condition(status, "Ready")[0] == "False"


def test_node_class_without_subnets_gets_a_false_condition(cloud, provider):
    """Its selector terms select none."""
    type_, reason = cloud.subnet_condition
    status = provider.resolve(cloud.node_class("no-such"), cloud.clock.now())
    assert condition(status, type_) == ("False", reason)
    assert condition(status, "ValidationSucceeded") == ("False", "DependenciesNotReady")


def test_reserved_tags_are_refused_by_a_condition(cloud, provider):
    """They would hide an instance from its cluster, or show it to another one."""
    status = provider.resolve(cloud.node_class(**cloud.settings["reserved tag"]), cloud.clock.now())
    [message] = [c["message"] for c in status["conditions"] if c["type"] == "ValidationSucceeded"]
    [key] = cloud.settings["reserved tag"]["tags"]
    assert condition(status, "ValidationSucceeded")[0] == condition(status, "Ready")[0] == "False"
    assert key.partition("/")[0] in message


def test_transition_times_change_only_with_the_status(cloud, provider):
    """Resolving an hour later changes nothing."""
    body = cloud.node_class()
    first = provider.resolve(body, cloud.clock.now())
    cloud.wait(3600)
    second = provider.resolve({**body, "status": first}, cloud.clock.now())
    broken = provider.resolve({**cloud.node_class("no-such"), "status": second}, cloud.clock.now())
    third = provider.resolve({**cloud.node_class("no-such"), "status": broken}, cloud.clock.now())

    assert (second, third) == (first, broken)
    before = {c["type"]: c["lastTransitionTime"] for c in first["conditions"]}
    after = {c["type"]: c["lastTransitionTime"] for c in broken["conditions"]}
    assert after[cloud.subnet_condition[0]] > before[cloud.subnet_condition[0]]
    assert cloud.kept_condition == "Ready" or after[cloud.kept_condition] == before[cloud.kept_condition]


def test_throttling_does_not_change_the_status(cloud, provider):
    """Throttling is no property of the NodeClass, so no condition reports it."""
    cloud.fail("subnets", "throttled")
    with pytest.raises(RateLimitedError):
        provider.resolve(cloud.node_class(), cloud.clock.now())
    assert condition(provider.resolve(cloud.node_class(), cloud.clock.now()), "Ready")[0] == "True"


@pytest.mark.parametrize("failure", ["denied", "bad key"])
def test_refused_request_is_a_false_condition_of_the_present_generation(cloud, failure):
    """It names the right to grant, or the key; no condition says what held for an earlier spec."""
    body = cloud.node_class()
    body["status"] = cloud.provider("fresh").resolve(body, cloud.clock.now())
    body["metadata"] = {**body["metadata"], "generation": 3}
    cloud.fail("subnets", failure)
    status = cloud.provider("fresher").resolve(body, cloud.clock.now())

    type_, _ = cloud.subnet_condition
    [message] = [c["message"] for c in status["conditions"] if c["type"] == type_]
    assert condition(status, type_) == ("False", "RequestRefused")
    assert cloud.permissions["subnets"] in message
    assert any(word in message for word in ("grant", "key"))
    assert condition(status, "Ready")[0] == "False"
    assert {c["observedGeneration"] for c in status["conditions"]} == {3}
    assert cloud.kept_condition == "Ready" or condition(status, cloud.kept_condition)[0] == "True"


def test_invalid_change_leaves_no_condition_of_the_spec_before(cloud, provider):
    """What was found for that says nothing about this one."""
    body = cloud.node_class()
    valid = provider.resolve(body, cloud.clock.now())
    changed = cloud.node_class(**cloud.invalid_specs[0])
    changed |= {"status": valid, "metadata": {**changed["metadata"], "generation": 3}}
    status = provider.resolve(changed, cloud.clock.now())

    assert {c["observedGeneration"] for c in status["conditions"]} == {3}
    assert {c["type"] for c in status["conditions"] if c["status"] == "True"} == set()


def test_static_fields_change_the_hash_and_selectors_do_not(cloud, provider):
    """What selectors select drifts by the ids in the status."""
    plain = provider.annotations(cloud.node_class())

    assert provider.annotations(cloud.node_class()) == plain
    assert len(plain) == 2
    assert provider.annotations(cloud.node_class(**cloud.settings["static"])) != plain
    assert provider.annotations(cloud.node_class(**cloud.settings["selector"])) == plain
    with pytest.raises(InvalidObjectError):
        provider.annotations(cloud.node_class(tags="none"))


def test_released_node_class_and_unused_resources_are_safe_to_repeat(cloud, provider):
    """Nothing of another NodeClass is deleted."""
    body = cloud.node_class()
    body["status"] = provider.resolve(body, cloud.clock.now())
    for _ in range(2):
        provider.release(body)
        assert not any(provider.delete_unused([body], []).values())


# -- instance types ---------------------------------------------------------------------------------------------------


def test_offerings_have_zones_capacity_types_and_prices(cloud, instance_types):
    """Each is in a zone of a subnet; Spot costs no more than on-demand. Types are sorted by name."""
    types = {t.name: t for t in instance_types}

    assert list(types) == sorted(types)
    assert set(cloud.types) <= set(types)
    for name in cloud.types:
        prices = {(o.zone, o.capacity_type): o.price for o in types[name].offerings}
        assert {kind for _, kind in prices} == {"on-demand", "spot"}
        for zone in cloud.zones:
            assert 0 < prices[zone, "spot"] <= prices[zone, "on-demand"]
    on_demand = [min(o.price for o in types[n].offerings if o.capacity_type == "on-demand") for n in cloud.types]
    assert on_demand == sorted(on_demand)
    assert all(t.allocatable["cpu"] < t.capacity["cpu"] for t in instance_types)


def test_instance_types_are_identical_while_nothing_changes(cloud, provider, ready):
    """Solvers cache by identity; another NodeClass of equal settings shares the tuple."""
    first = provider.get_instance_types(ready)
    cloud.wait(400)
    renamed = {**ready, "metadata": {**ready["metadata"], "name": "other", "uid": "other"}}
    assert provider.get_instance_types(json.loads(json.dumps(ready))) is first
    assert provider.get_instance_types(renamed) is first


def test_offering_without_stock_stays_with_the_reason(cloud, provider, ready):
    """An explanation can name it, and it returns with the stock."""
    cloud.require("stock")
    name, zone = cloud.types[1], cloud.zones[0]

    def offering():
        found = next(t for t in provider.get_instance_types(ready) if t.name == name)
        return next(o for o in found.offerings if (o.zone, o.capacity_type) == (zone, "on-demand"))

    assert offering().available
    cloud.shows_stock(of=name, zone=zone, has_stock=False)
    cloud.wait(400)
    missing = offering()
    cloud.shows_stock(of=name, zone=zone, has_stock=True)
    cloud.wait(400)

    assert (missing.available, missing.unavailable_reason) == (False, "NoStock")
    assert offering().available


# -- prices -----------------------------------------------------------------------------------------------------------


def test_shipped_prices_name_their_table_until_the_cloud_is_read(cloud, provider):
    """A refresh replaces them; another process adopts the read prices and is not due."""
    shipped = provider.prices()
    provider.refresh_prices()
    read = provider.prices()
    cold = cloud.provider("cold")
    cold.adopt_prices(read)
    before = cloud.calls()
    cold.refresh_prices()

    assert cloud.shipped_prices in shipped.source
    assert (shipped.currency, shipped.estimated) == (cloud.currency, cloud.estimates)
    assert shipped.on_demand_due_at <= cloud.clock.now()
    assert (read.source, read.currency, read.estimated) == (cloud.price_api, cloud.currency, False)
    assert (read.message, read.on_demand_refreshed_at) == ("", cloud.clock.now())
    assert all(read.on_demand[name] > 0 for name in cloud.types)
    assert cold.prices() == read
    assert cloud.calls() == before


def test_only_newer_prices_of_the_same_currency_are_adopted(cloud, provider, ready):
    """Prices of different currencies are never compared."""
    now = cloud.clock.now()
    name = cloud.types[0]
    recorded = replace(
        provider.prices(),
        on_demand={name: 99.0},
        on_demand_refreshed_at=now,
        on_demand_tried_at=now,
        source="recorded",
        estimated=False,
    )

    def price():
        found = next(t for t in provider.get_instance_types(ready) if t.name == name)
        return max(o.price for o in found.offerings if o.capacity_type == "on-demand")

    before = price()
    provider.adopt_prices(replace(recorded, currency="XXX"))
    assert price() == before
    provider.adopt_prices(recorded)
    assert price() == 99.0
    older = now - timedelta(hours=1)
    provider.adopt_prices(replace(recorded, on_demand={name: 1.0}, on_demand_refreshed_at=older))
    assert price() == 99.0


def test_failed_price_read_keeps_the_prices_and_says_why(cloud, provider):
    """It is tried again after an hour."""
    shipped = provider.prices()
    cloud.fail("prices", "throttled")
    provider.refresh_prices()
    failed = provider.prices()

    assert (failed.source, failed.on_demand) == (shipped.source, shipped.on_demand)
    assert cloud.permissions["prices"] in failed.message
    assert failed.on_demand_due_at == cloud.clock.now() + timedelta(hours=1)
    cloud.wait(3600)
    provider.refresh_prices()
    assert provider.prices().message == ""
