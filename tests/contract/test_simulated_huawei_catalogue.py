"""The simulated region has flavors, zones, Spot policies, subnets, prices and machines like Huawei Cloud's."""

import json

import pytest

from journeyman.cloud.huawei.rest_api import RestApiError, RestCall
from journeyman_simulator.huawei_account import HuaweiAccount
from journeyman_simulator.huawei_account.flavor_data import SMALL_SELECTION, all_flavors
from journeyman_simulator.huawei_account.huawei_machines import (
    HuaweiMachines,
    filesystem_bytes,
    node_sizes,
    reserved_millicores,
)
from tests.contract.official_huawei_sdk import cce_call, node_body, project_call, refused
from tests.helpers.small_clusters import table

ZONES = ["cn-north-4a", "cn-north-4b", "cn-north-4c"]


@pytest.fixture
def flavors(rest_api, cce):
    """Return a function that lists flavors."""
    return lambda **query: rest_api(project_call(cce, "ecs", "ListFlavors", "cloudservers/flavors", **query))["flavors"]


@pytest.fixture
def specs(flavors):
    """Return a function that returns the extra specs of a flavor."""
    return lambda name: flavors(flavor_id=name)[0]["os_extra_specs"]


@pytest.fixture
def policies(rest_api, cce):
    """Return a function that lists sell policies."""
    path = "cloudservers/flavor-sell-policies"
    return lambda **query: rest_api(project_call(cce, "ecs", "ListFlavorSellPolicies", path, **query))


@pytest.fixture
def rated(rest_api, cce):
    """Return a function that rates products, each given by its changes of a valid one."""

    def rate(*changes, **body):
        valid = {
            "cloud_service_type": "hws.service.type.ec2",
            "resource_type": "hws.resource.type.vm",
            "resource_spec": "c7.large.2.linux",
            "region": "cn-north-4",
            "usage_factor": "Duration",
            "usage_value": 1,
            "usage_measure_id": 4,
            "subscription_num": 1,
        }
        products = [{"id": str(number), **valid, **change} for number, change in enumerate(changes)]
        whole = {"project_id": cce.project_id, "inquiry_precision": 1, "product_infos": products, **body}
        path = "/v2/bills/ratings/on-demand-resources"
        name = "ListOnDemandResourceRatings"
        return rest_api(RestCall(service="bss", operation=name, method="POST", path=path, body=whole))

    return rate


def code_of(call, *arguments, **parameters):
    """Return the code of the error of a call."""
    return refused(call, *arguments, **parameters)[0]


def test_flavors_are_listed_in_pages(flavors):
    """The last flavor of a page is the marker of the next."""
    every = [flavor["id"] for flavor in flavors()]
    assert every == sorted(all_flavors())
    first = flavors(limit=40)
    second = flavors(limit=40, marker=first[-1]["id"])
    assert [flavor["id"] for flavor in [*first, *second]] == every
    assert flavors(limit=40, marker=every[-1]) == []
    assert code_of(flavors, marker="unknown") == "Ecs.0005"


def test_flavor_has_the_types_of_the_service(flavors):
    """The number of vCPUs is a text, the memory a number of MiB; ECS names the architecture of Kunpeng only."""
    by_name = {flavor["id"]: flavor for flavor in flavors()}
    c9, kc1, gpu = by_name["c9.4xlarge.4"], by_name["kc1.xlarge.2"], by_name["pi2.4xlarge.4"]
    assert (c9["vcpus"], c9["ram"]) == ("16", 65536)
    assert c9["os_extra_specs"]["quota:sub_network_interface_max_num"] == "128"
    assert "ecs:instance_architecture" not in c9["os_extra_specs"]
    assert kc1["os_extra_specs"]["ecs:instance_architecture"] == "arm64"
    assert gpu["os_extra_specs"]["pci_passthrough:alias"] == "nvidia-t4:2"
    assert json.loads(gpu["os_extra_specs"]["info:gpus"])[0]["count"] == 2
    assert "quota:sub_network_interface_max_num" not in by_name["s6.large.2"]["os_extra_specs"]


def test_unusual_flavors_are_marked(specs):
    """Statuses differ by region and by zone, and the punctuation by flavor."""
    assert specs("s6.2xlarge.4")["cond:operation:az"] == (
        "cn-north-4a(normal), cn-north-4b(sellout), cn-north-4c(normal)"
    )
    full_width = specs("m6.2xlarge.8")["cond:operation:az"]
    assert full_width.endswith("cn-north-4c（sellout）")  # noqa: RUF001 - as the service writes it
    assert specs("m6.4xlarge.8")["cond:operation:charge"] == "period"
    assert specs("c6.4xlarge.4")["cond:operation:status"] == "abandon"
    assert "cond:operation:status" not in specs("c7n.large.2")
    assert "cond:spot:operation:status" not in specs("pi2.2xlarge.4")


def test_sold_out_pool_is_shown_and_refused(specs, policies, rest_api, cce, huawei, clock):
    """On-demand and Spot stock are separate. A hidden lack of stock is reported by CreateNode only."""
    before = specs("c7.large.2")
    huawei.out_of_stock("c7.large.2", ZONES[2], "on-demand", clock.now().replace(year=2027))
    assert specs("c7.large.2") == before
    huawei.set_sold_out("c7.large.2", ZONES[0], "on-demand")
    huawei.set_sold_out("c7.large.2", ZONES[1], "spot")
    shown = specs("c7.large.2")
    assert shown["cond:operation:az"].startswith("cn-north-4a(sellout), cn-north-4b(normal)")
    assert shown["cond:spot:operation:az"].startswith("cn-north-4a(normal), cn-north-4b(sellout)")
    found = policies(flavor_id="c7.large.2")["sell_policies"]
    sold = {each["availability_zone_id"]: each["sell_status"] for each in found}
    assert sold == {ZONES[0]: "available", ZONES[1]: "sellout", ZONES[2]: "available"}
    create = cce_call(cce, "CreateNode", "POST", body=node_body(cce))
    assert code_of(rest_api, create) == "CCE.01400021"
    huawei.set_sold_out("c7.large.2", ZONES[0], "on-demand", sold_out=False)
    assert rest_api(create)["metadata"]["uid"]


def test_sell_policies_are_filtered_and_listed_in_pages(policies):
    """The marker is the flavor of the last policy."""
    zone = {"availability_zone_id": ZONES[2], "sell_mode": "spot"}
    every = policies(**zone)
    assert every["count"] == len(every["sell_policies"]) == len([f for f in all_flavors().values() if f.has_spot])
    first = policies(**zone, limit=10)["sell_policies"]
    second = policies(**zone, limit=1000, marker=first[-1]["flavor_id"])["sell_policies"]
    assert [*first, *second] == every["sell_policies"]
    assert code_of(policies, sell_mode="postPaid") == "Ecs.0005"
    sold_out = policies(sell_status="sellout", availability_zone_id=ZONES[1])["sell_policies"]
    assert {each["flavor_id"] for each in sold_out} == {*("c6.4xlarge.4", "m6.4xlarge.8", "s6.2xlarge.4")}


def test_zones_and_subnets_are_listed(rest_api, cce):
    """A launched node takes an address of its subnet."""
    zones = rest_api(project_call(cce, "ecs", "ListServerAzInfo", "availability-zones"))["availability_zones"]
    assert [zone["availability_zone_id"] for zone in zones] == ZONES

    def subnets(**query):
        return rest_api(project_call(cce, "vpc", "ListSubnets", "subnets", **query))["subnets"]

    def free():
        return {subnet["name"]: subnet["available_ip_address_count"] for subnet in subnets(limit=500)}

    before = free()
    rest_api(cce_call(cce, "CreateNode", "POST", body=node_body(cce)))
    assert (before["demo"], free()) == (4091, {"demo": 4090, "demo-2": 4091})
    ids = {subnet["name"]: subnet["id"] for subnet in subnets(limit=500)}
    assert ids["demo"] == "30abcb7b-ddeb-4a93-9e83-0b21f59b07a3"
    (first,) = subnets(limit=1)
    (second,) = subnets(limit=1, marker=first["id"])
    assert {first["name"], second["name"]} == {"demo", "demo-2"}


def test_prices_are_rated_with_the_currency_at_the_top(rated, huawei):
    """A product's amount is that of its hours."""
    price = huawei.prices.price("c7.large.2", ZONES[0], "on-demand")
    answer = rated({}, {"usage_value": 2, "available_zone": ZONES[1]})
    assert answer["currency"] == "CNY"
    results = answer["product_rating_results"]
    assert [(each["id"], each["amount"]) for each in results] == [("0", price), ("1", 2 * price)]
    assert answer["official_website_amount"] == pytest.approx(3 * price)
    assert "currency" not in results[0]


def test_discount_is_shown_to_those_who_may_see_it(rated, huawei):
    """Without the right, the answer has list prices."""
    huawei.billing.discount = 0.5
    full, half = rated({})["official_website_amount"], rated({})["amount"]
    assert half == pytest.approx(full / 2)
    huawei.deny("bss:discount:view")
    assert rated({})["amount"] == full


@table(
    "changes", "code",
    unknown_flavor=([{"resource_spec": "c7.huge.2.linux"}], "CBC.99006006"),
    no_operating_system=([{"resource_spec": "c7.large.2"}], "CBC.99006006"),
    another_region=([{"region": "cn-south-1"}], "CBC.99006006"),
    equal_ids=([{"id": "same"}, {"id": "same"}], "CBC.0100"),
    many=([{}] * 101, "CBC.0100"),
    none=([], "CBC.0100"),
    value_as_text=([{"usage_value": "1"}], "CBC.0100"),
    another_measure=([{"usage_measure_id": 10}], "CBC.0100"),
    unknown_field=([{"unknown": 1}], "CBC.0100"),
)  # fmt: skip
def test_wrong_products_are_refused(rated, changes, code):
    """One wrong product fails the whole request."""
    assert code_of(rated, *changes) == code


def test_unknown_product_is_named(rated):
    """A caller leaves it out, and asks again."""
    with pytest.raises(RestApiError, match=r"Can not find product c7\.huge\.2\.linux"):
        rated({}, {"resource_spec": "c7.huge.2.linux"})


def test_spot_prices_are_shares_of_the_on_demand_price(huawei):
    """They differ by zone, and are the same for the same seed."""
    on_demand = huawei.prices.price("c7.large.2", ZONES[0], "on-demand")
    spot = [huawei.prices.price("c7.large.2", zone, "spot") for zone in ZONES]
    assert all(0.2 * on_demand <= price <= 0.5 * on_demand for price in spot)
    assert len(set(spot)) == 3
    assert huawei.prices.price("pi2.2xlarge.4", ZONES[0], "spot") is None
    assert huawei.prices.price("unknown", ZONES[0], "on-demand") is None


def test_small_selection_has_both_architectures(clock):
    """It is a part of the catalogue, with several sizes."""
    account = HuaweiAccount(clock, types=SMALL_SELECTION, zones=ZONES[:1], missing=[("c7.large.2", ZONES[0])])
    flavors = account.catalogue.flavors.values()
    assert {flavor.architecture for flavor in flavors} == {"", "arm64"}
    assert len({flavor.vcpus for flavor in flavors}) == 4
    assert not account.prices.is_offered("c7.large.2", ZONES[0])


# --- machines ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def machine(huawei, cce, clock):
    """Return a function that creates a node, and returns its machine."""
    machines = HuaweiMachines(huawei, cce.cluster_id)

    def created(**changes):
        huawei.rest_api()(cce_call(cce, "CreateNode", "POST", body=node_body(cce, **changes)))
        clock.advance(6)
        huawei.act()
        return machines.machines()[-1]

    return created


def test_machine_has_labels_taints_and_name_of_the_request(machine, huawei):
    """Its name is its address unless the request asks for CCE's name; its provider id is the node's.

    The kubelet of one that never joins registers no node; CCE keeps it in Installing.
    """
    made = machine(flavor="kc1.large.2")
    (instance,) = huawei.instances.known.values()
    assert (made.provider_id, made.node_name) == (instance.node_id, "10.0.0.2")
    expected = {
        "karpenter.sh/nodepool": "default",
        "kubernetes.io/arch": "arm64",
        "topology.kubernetes.io/zone": ZONES[0],
    }
    assert made.labels.items() >= expected.items()
    assert made.taints == ({"key": "karpenter.sh/unregistered", "effect": "NoExecute"},)
    assert made.running_since == huawei.time.now().replace(second=5)
    huawei.prevent_next_from_joining()
    assert machine(name="alone").running_since is None
    named = machine(name="named", hostnameConfig={"type": "cceNodeName"})
    assert named.node_name == "named"
    assert named.running_since is not None


@table(
    "extend", "reserved_mib", "cpu", "pods",
    as_cce_does=({}, 600 + 700 + 100, "1930m", "40"),
    as_the_request_says=(
        {"maxPods": 100, "kubeReservedMem": 1000, "systemReservedCpu": 100, "kubeReservedCpu": 200},
        600 + 1000 + 100, "1700m", "100",
    ),
)  # fmt: skip
def test_machine_is_reserved(machine, extend, reserved_mib, cpu, pods):
    """8 GiB: 400 MiB + 25 MiB per GiB, 500 MiB + 5 MiB for each of 40 pods, and 100 MiB for evictions."""
    made = machine(flavor="c9.large.4", extend=extend)
    assert (made.capacity["memory"], made.allocatable["memory"]) == ("8192Mi", f"{8192 - reserved_mib}Mi")
    assert (made.capacity["cpu"], made.allocatable["cpu"], made.capacity["pods"]) == ("2", cpu, pods)


def test_pods_of_a_turbo_cluster_need_sub_interfaces(cce):
    """A large flavor has 16 of them, whatever the pod limit is."""
    flavor = all_flavors()["c9.large.4"]
    spec = node_body(cce, extend={"maxPods": 100})["spec"]
    assert node_sizes(flavor, spec, "eni")[0]["pods"] == "16"
    assert node_sizes(flavor, spec, "vpc-router")[0]["pods"] == "100"


@pytest.mark.parametrize(("vcpus", "millicores"), [(2, 70), (4, 80), (8, 90), (16, 110), (32, 150)])
def test_reserved_cpu_follows_the_tiers(vcpus, millicores):
    """6 % of core 1, 1 % of core 2, 0.5 % of cores 3 and 4, 0.25 % of the others."""
    assert reserved_millicores(vcpus) == millicores


@pytest.mark.parametrize(("gib", "blocks"), [(2, 26_150), (10, 66_747), (13, 80_110)])
def test_filesystem_has_the_overhead_of_mke2fs(gib, blocks):
    """The numbers are those that mke2fs 1.47 reports for volumes of these sizes, in blocks of 4 KiB."""
    assert filesystem_bytes(gib * 2**30) == gib * 2**30 - 4096 * blocks
