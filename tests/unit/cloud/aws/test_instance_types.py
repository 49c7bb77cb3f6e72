"""The instance types of a NodeClass: labels, offerings, and when the same tuple is returned."""

import pytest
from botocore.exceptions import ClientError

from journeyman.cloud.aws.aws_settings import Clients
from journeyman.cloud.aws.capacity_reservations import CapacityReservationProvider
from journeyman.cloud.aws.instance_type_info import Accelerator, parse, parse_all
from journeyman.cloud.aws.instance_type_labels import labels_of
from journeyman.cloud.aws.instance_types import InstanceTypeProvider, incompatibility
from journeyman.cloud.aws.network_discovery import PlacementGroupProvider
from journeyman.cloud.aws.pricing import price_provider
from journeyman.core.api import labels
from journeyman.errors import NodeClassNotReadyError, RateLimitedError
from tests.unit.cloud.aws.conftest import EFA_ONLY, PRIMARY, Pages, info, node_class

AWS = labels.AWS_GROUP


def described(name, **changes):
    return {
        "InstanceType": name,
        "SupportedUsageClasses": ["on-demand", "spot"],
        "ProcessorInfo": {
            "SupportedArchitectures": ["x86_64"],
            "SustainedClockSpeedInGhz": 3.1,
            "Manufacturer": "Intel",
        },
        "VCpuInfo": {"DefaultVCpus": 2},
        "MemoryInfo": {"SizeInMiB": 8192},
        "Hypervisor": "nitro",
        "NetworkInfo": {
            "DefaultNetworkCardIndex": 0,
            "NetworkCards": [{"NetworkCardIndex": 0, "MaximumNetworkInterfaces": 3}],
            "Ipv4AddressesPerInterface": 10,
        },
        **changes,
    }


def offered(name, *zones):
    return [{"InstanceType": name, "Location": f"us-east-1{zone}"} for zone in zones]


@pytest.fixture
def ec2():
    """Return an EC2 client with two pages of types, one of them without a price, and their offerings."""
    return Pages(
        describe_instance_types=[
            {"InstanceTypes": [described("m5.xlarge"), described("m5.large")]},
            {
                "InstanceTypes": [
                    described("z9.large", ProcessorInfo={"SupportedArchitectures": ["arm64"]}),
                    described("t1.micro", ProcessorInfo={"SupportedArchitectures": ["i386"]}),
                ]
            },
        ],
        describe_instance_type_offerings=[
            {"InstanceTypeOfferings": offered("m5.large", "a", "b", "c") + offered("m5.xlarge", "b")},
            {"InstanceTypeOfferings": offered("z9.large", "a")},
        ],
    )


@pytest.fixture
def clients(ec2):
    return Clients(lambda service, region: ec2, "us-east-1")


@pytest.fixture
def prices(clients, settings, clock):
    return price_provider(clients, settings, clock)


@pytest.fixture
def catalogue(clients, settings, prices, clock):
    reservations, groups = CapacityReservationProvider(clients, clock), PlacementGroupProvider(clients, clock)
    return InstanceTypeProvider(clients, settings, prices, clock, reservations=reservations, groups=groups)


def offerings_of(types, name):
    return [(o.zone, o.capacity_type) for t in types if t.name == name for o in t.offerings]


def test_offerings_are_in_zones_of_the_type_and_of_the_node_class(catalogue):
    """They come from all pages; a zone without a subnet or a type without a price has no offering.

    EKS has no Windows images for arm64.
    """
    types = catalogue.for_node_class(node_class())

    assert [t.name for t in types] == ["m5.large", "m5.xlarge", "z9.large"]
    assert offerings_of(types, "m5.large") == [
        ("us-east-1a", "on-demand"),
        ("us-east-1a", "spot"),
        ("us-east-1b", "on-demand"),
        ("us-east-1b", "spot"),
    ]
    assert offerings_of(types, "m5.xlarge") == [("us-east-1b", "on-demand"), ("us-east-1b", "spot")]
    assert offerings_of(types, "z9.large") == []
    windows = catalogue.for_node_class(node_class(amiSelectorTerms=[{"alias": "windows2022@latest"}]))
    assert [t.name for t in windows] == ["m5.large", "m5.xlarge"]


def test_unchanged_instance_types_are_the_same_tuple(catalogue, ec2, prices, clock):
    """The scheduler caches by identity; EC2 is read again after 12 hours, and a changed price returns new types."""
    first = catalogue.for_node_class(node_class())
    other = catalogue.for_node_class(node_class(kubelet={"maxPods": 20}))

    assert catalogue.for_node_class(node_class()) is first
    assert other is not first
    assert {t.capacity["pods"] for t in other} == {20}
    assert ec2.asked["describe_instance_types"] == 1

    clock.advance(12 * 3600)
    read_again = catalogue.for_node_class(node_class())
    assert read_again is not first
    assert ec2.asked["describe_instance_types"] == 2

    clock.advance(12 * 3600)
    spot = {"InstanceType": "m5.large", "AvailabilityZone": "us-east-1a", "Timestamp": clock.now(), "SpotPrice": "0.01"}
    ec2.pages |= {"describe_spot_price_history": [{"SpotPriceHistory": [spot]}], "get_products": [{"PriceList": []}]}
    prices.refresh_spot_if_due()
    after = catalogue.for_node_class(node_class())
    assert after is not read_again
    assert {o.price for t in after for o in t.offerings if o.capacity_type == "spot"} == {0.01}


def test_node_class_without_subnets_has_no_instance_types(catalogue):
    with pytest.raises(NodeClassNotReadyError, match="no subnets"):
        catalogue.for_node_class(node_class(status={"subnets": []}))


def test_failed_read_is_not_cached(catalogue, ec2):
    """Throttling is reported, and the next call reads again."""
    pages = ec2.pages["describe_instance_types"]
    ec2.pages["describe_instance_types"] = ClientError({"Error": {"Code": "RequestLimitExceeded"}}, "x")
    with pytest.raises(RateLimitedError):
        catalogue.for_node_class(node_class())
    ec2.pages["describe_instance_types"] = pages
    assert len(catalogue.for_node_class(node_class())) == 3


@pytest.mark.parametrize(
    ("type_", "class_", "why"),
    [
        (info(), node_class(), ""),
        (info(name="a1.large"), node_class(), "AL2023"),
        (info(name="a1.large"), node_class(amiSelectorTerms=[{"alias": "bottlerocket@latest"}]), ""),
        (info(arch="arm64"), node_class(), "no AMI"),
        (info(hypervisor="xen"), node_class(connectionTracking={"udpTimeout": 30}), "Nitro"),
        (info(), node_class(cpuOptions={"nestedVirtualization": "enabled"}), "nested"),
        (info(nested_virtualization=True), node_class(cpuOptions={"nestedVirtualization": "enabled"}), ""),
        (info(), node_class(networkInterfaces=[PRIMARY, {**PRIMARY, "deviceIndex": 2}]), ""),
        (info(), node_class(networkInterfaces=[PRIMARY, {**PRIMARY, "deviceIndex": 3}]), "layout"),
        (info(), node_class(networkInterfaces=[PRIMARY, {**PRIMARY, "networkCardIndex": 1}]), "layout"),
        (info(), node_class(networkInterfaces=[PRIMARY, EFA_ONLY]), "layout"),
    ],
)
def test_incompatible_type_is_unavailable_with_the_reason(type_, class_, why):
    values = labels_of(type_, family=class_.family, region="r", zone_ids={}, capacity_types=())
    found = incompatibility(type_, values, class_)
    assert (why in found) if why else found == ""


def test_labels_are_karpenters():
    """Every label of the provider is set, with `DoesNotExist` for features that the type lacks."""
    gpu = Accelerator(name="Tesla T4", manufacturer="NVIDIA", count=1, memory_mib=16384)
    type_ = info(name="g4dn.xlarge", gpus=(gpu,), local_storage_gb=125, nvme=True)
    zones = {"us-east-1b": "use1-az1"}
    values = labels_of(type_, family=node_class().family, region="us-east-1", zone_ids=zones, capacity_types=("spot",))
    own = {key.removeprefix(f"{AWS}/"): value for key, value in values.items() if key.startswith(AWS)}
    expected = {
        "instance-category": ("g",),
        "instance-generation": ("4",),
        "instance-family": ("g4dn",),
        "instance-gpu-name": ("tesla-t4",),
        "instance-gpu-memory": ("16384",),
        "instance-local-nvme": ("125",),
        "instance-cpu": ("2",),
        "instance-memory": ("8192",),
        "instance-cpu-manufacturer": ("intel",),
        "instance-accelerator-count": (),
        "capacity-reservation-id": (),
    }

    assert values[labels.ZONE] == ("us-east-1b",)
    assert values["topology.k8s.aws/zone-id"] == ("use1-az1",)
    assert values[labels.WINDOWS_BUILD] == ()
    assert own.items() >= expected.items()
    assert set(own) | {"placement-group-id", "placement-group-partition"} == {
        key.removeprefix(f"{AWS}/") for key in labels.WELL_KNOWN if key.startswith(AWS)
    }


@pytest.mark.parametrize(
    ("name", "category", "generation"),
    [
        ("u-6tb1.metal", ("u",), ("1",)),
        ("m7i-flex.large", ("m",), ("7",)),
        ("p6-b300.48xlarge", ("p",), ("6",)),
        ("odd", (), ()),
    ],
)
def test_type_names_are_parsed_as_by_karpenter(name, category, generation):
    """A pattern gives category and generation; a name that does not match has neither."""
    values = labels_of(info(name=name), family=node_class().family, region="r", zone_ids={}, capacity_types=())
    assert values[f"{AWS}/instance-category"] == category
    assert values[f"{AWS}/instance-generation"] == generation
    assert values[f"{AWS}/instance-capability-flex"] == (("true",) if "-flex" in name else ("false",))


def test_description_is_reduced_to_used_fields():
    """Metal has no hypervisor; EBS bandwidth counts if it is on by default; 32-bit types are skipped."""
    entry = described(
        "c5n.metal",
        BareMetal=True,
        EbsInfo={"EbsOptimizedSupport": "default", "EbsOptimizedInfo": {"MaximumBandwidthInMbps": 19000}},
        SupportedUsageClasses=["on-demand", "capacity-block"],
        NeuronInfo={"NeuronDevices": [{"Count": 2, "Name": "Trainium2", "CoreInfo": {"Count": 4}}]},
    )
    entry["ProcessorInfo"]["SupportedFeatures"] = ["amd-sev-snp", "nested-virtualization"]
    del entry["Hypervisor"]
    parsed = parse(entry)

    assert (parsed.hypervisor, parsed.ebs_megabits, parsed.usage_classes) == ("", 19000, ("on-demand",))
    assert (parsed.bare_metal, parsed.nested_virtualization, parsed.clock_mhz) == (True, True, 3100)
    assert not parse(described("m5.large")).nested_virtualization
    assert parsed.neuron == (Accelerator(name="Trainium2", manufacturer="aws", count=2, cores=4),)
    assert parse_all([described("t1.micro", ProcessorInfo={"SupportedArchitectures": ["i386"]})]) == []
