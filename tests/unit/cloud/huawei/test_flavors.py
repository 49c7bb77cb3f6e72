"""Flavors: where they are sold, their GPUs, and which of them CCE accepts."""

import pytest

from journeyman.cloud.huawei.flavors import parse_flavor, zone_statuses

ZONES = ("cn-north-4a", "cn-north-4b", "cn-north-4c")


def a_flavor(name="c7.xlarge.2", vcpus="4", ram=8192, **specs):
    keys = {key.replace("__", ":"): value for key, value in specs.items()}
    return parse_flavor({"id": name, "name": name, "vcpus": vcpus, "ram": ram, "os_extra_specs": keys}, ZONES)


@pytest.mark.parametrize(
    ("text", "statuses"),
    [
        ("", {}),
        ("cn-north-4a(normal)", {"cn-north-4a": "normal"}),
        ("cn-north-4a(normal), cn-north-4b(sellout)", {"cn-north-4a": "normal", "cn-north-4b": "sellout"}),
        ("cn-north-4a\uff08sellout\uff09\uff0ccn-north-4b\uff08Normal\uff09", {"cn-north-4a": "sellout", "cn-north-4b": "normal"}),
        ("cn-north-4a(normal)\uff1bcn-north-4b(obt)", {"cn-north-4a": "normal", "cn-north-4b": "obt"}),
    ],
)  # fmt: skip
def test_zone_statuses_are_read_with_any_punctuation(text, statuses):
    """ECS answers with blanks and with full-width punctuation, too."""
    assert zone_statuses(text) == statuses


@pytest.mark.parametrize(
    ("status", "zones", "sold", "known"),
    [
        ("", "", "abc", "abc"),
        ("normal", "", "abc", "abc"),
        ("obt", "cn-north-4b(sellout)", "ac", "abc"),
        ("abandon", "", "", ""),
        ("sellout", "cn-north-4c(normal)", "c", "abc"),
        ("abandon", "cn-north-4a(promotion)", "a", "a"),
        ("normal", "cn-north-4a(abandon), cn-north-4b(obt_sellout)", "c", "bc"),
        ("something-new", "", "abc", "abc"),
    ],
)
def test_status_of_a_zone_overrides_that_of_the_region(status, zones, sold, known):
    """One that is unknown here counts as sold, as in the published provider. A sold-out zone stays, so that it can be named."""
    flavor = a_flavor(cond__operation__status=status, cond__operation__az=zones)
    assert "".join(zone[-1] for zone, is_sold in flavor.on_demand if is_sold) == sold
    assert "".join(zone[-1] for zone, _ in flavor.on_demand) == known


def test_spot_needs_a_status():
    assert a_flavor().spot == ()
    assert a_flavor(cond__spot__operation__status="normal").spot == ZONES
    assert a_flavor(cond__spot__operation__az="cn-north-4b(promotion), cn-north-4c(sellout)").spot == ("cn-north-4b",)


@pytest.mark.parametrize(
    "given", [{"vcpus": "1", "ram": 4096}, {"vcpus": "2", "ram": 2048}, {"cond__operation__charge": "period"}]
)
def test_flavor_that_cce_or_the_hour_does_not_allow_is_left_out(given):
    """CCE's nodes have two vCPUs and 4 GiB at least; some flavors are sold by the month only."""
    assert a_flavor(**given) is None


def test_gpus_have_number_name_and_memory():
    gpu = a_flavor("p2s.2xlarge.8", pci_passthrough__alias="nvidia-v100:2", info__gpu__name="2 * NVIDIA V100 / 2 * 32G")
    assert (gpu.gpus, gpu.gpu_name, gpu.gpu_memory_mib) == (2, "nvidia-v100", 32 * 1024)
    assert (a_flavor().gpus, a_flavor().gpu_name) == (0, "")


def test_flavor_has_the_parts_of_its_name_and_its_architecture():
    """Kunpeng flavors say that they are arm64; the others say nothing."""
    kunpeng = a_flavor("kc1.2xlarge.4", ecs__instance_architecture="arm64")
    assert (kunpeng.arch, kunpeng.family, kunpeng.size) == ("arm64", "kc1", "2xlarge")
    assert a_flavor().arch == "amd64"
