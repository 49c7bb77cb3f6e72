"""CreateFleet requests depend on the input only, and every part of the response is read."""

from msgspec.structs import replace

from journeyman.cloud.aws.create_fleet import (
    FleetError,
    FleetResponse,
    exhausted_subnets,
    fleet_request,
    parse_fleet_response,
    unavailable_offerings,
)
from journeyman.cloud.aws.launch_templates import LaunchTemplate
from journeyman.cloud.free_addresses import ChosenSubnet
from tests.unit.cloud.test_launch_filter import a_type

SUBNETS = {
    "a": ChosenSubnet(id="subnet-a", zone="a", reserved=1),
    "b": ChosenSubnet(id="subnet-b", zone="b", reserved=1),
}


def request(*types, capacity_type="on-demand", **more):
    template = LaunchTemplate(name="lt", image_id="ami-1", instance_types=types)
    return fleet_request(
        [template], SUBNETS, capacity_type=capacity_type, token="uid", instance_tags={"b": "2", "a": "1"}, **more
    )


def error(code, instance_type="m5.large", zone="a", subnet="subnet-a"):
    return FleetError(code=code, message="m", instance_type=instance_type, zone=zone, subnet=subnet)


def test_overrides_are_types_times_zones_cheapest_first():
    """The rank of the price is the priority; a zone without a subnet is omitted; a retry is identical."""
    cheap, dear = a_type("c5.large", 0.08, zones=("a", "b", "c")), a_type("m5.large", 0.1)
    parameters = request(dear, cheap)
    overrides = parameters["LaunchTemplateConfigs"][0]["Overrides"]

    assert [(o["InstanceType"], o["AvailabilityZone"], o["SubnetId"], o["Priority"]) for o in overrides] == [
        ("c5.large", "a", "subnet-a", 0),
        ("c5.large", "b", "subnet-b", 0),
        ("m5.large", "a", "subnet-a", 1),
    ]
    assert parameters == request(cheap, dear)
    assert (parameters["Type"], parameters["ClientToken"]) == ("instant", "uid")
    assert parameters["TagSpecifications"][1] == {
        "ResourceType": "instance",
        "Tags": [{"Key": "a", "Value": "1"}, {"Key": "b", "Value": "2"}],
    }


def test_strategies_follow_the_capacity_type():
    """On-demand uses the lowest price; Spot uses pools that have both low prices and much capacity."""
    on_demand, spot = (
        request(a_type("m5.large", 0.1)),
        request(a_type("m5.large", 0.1, spot=0.04), capacity_type="spot"),
    )

    assert on_demand["OnDemandOptions"] == {"AllocationStrategy": "lowest-price"}
    assert spot["SpotOptions"] == {"AllocationStrategy": "price-capacity-optimized"}
    assert spot["TargetCapacitySpecification"]["DefaultTargetCapacityType"] == "spot"
    assert "Context" not in on_demand
    assert request(a_type("m5.large", 0.1), context="c")["Context"] == "c"


def overlaid(instance_type, price):
    offerings = tuple(replace(o, price=price, price_overlaid=True) for o in instance_type.offerings)
    return replace(instance_type, offerings=offerings)


def test_overlaid_prices_are_priorities_that_ec2_follows():
    """EC2 knows no savings plan: it would launch the type with the lowest list price, not the one that was planned.

    It compares priorities across templates, and takes whole numbers from 0.
    """
    plain, planned = a_type("c5.large", 0.08, spot=0.03), overlaid(a_type("m5.large", 0.1, spot=0.04), 0.01)
    on_demand = request(plain, planned)
    spot = request(plain, planned, capacity_type="spot")

    assert on_demand["OnDemandOptions"] == {"AllocationStrategy": "prioritized"}
    assert spot["SpotOptions"] == {"AllocationStrategy": "capacity-optimized-prioritized"}
    overrides = on_demand["LaunchTemplateConfigs"][0]["Overrides"]
    assert {(o["InstanceType"], o["Priority"]) for o in overrides} >= {("m5.large", 0)}

    templates = [
        LaunchTemplate(name=name, image_id="ami-1", instance_types=(each,))
        for name, each in (("x", plain), ("y", planned))
    ]
    parameters = fleet_request(templates, SUBNETS, capacity_type="on-demand", token="uid", instance_tags={})
    configs = parameters["LaunchTemplateConfigs"]
    assert [[o["Priority"] for o in config["Overrides"]] for config in configs] == [[1, 2], [0, 0]]


def test_response_may_have_an_instance_and_errors():
    """The outcome also reports the offerings that were refused before the launch."""
    where = {
        "Overrides": {"InstanceType": "m5.large", "AvailabilityZone": "a", "SubnetId": "subnet-a", "ImageId": "ami-1"}
    }
    refused = {"ErrorCode": "InsufficientInstanceCapacity", "ErrorMessage": "m", "LaunchTemplateAndOverrides": where}
    untyped = {"InstanceIds": ["i-1"], "LaunchTemplateAndOverrides": where}
    started = {**untyped, "InstanceType": "m5.xlarge"}

    both = parse_fleet_response({"Instances": [started], "Errors": [refused]})
    assert isinstance(both, FleetResponse)
    assert (both.instance_id, both.zone, both.subnet, both.image_id) == ("i-1", "a", "subnet-a", "ami-1")
    types = [parse_fleet_response({"Instances": [each]}).instance_type for each in (started, untyped)]
    assert types == ["m5.xlarge", "m5.large"]
    assert (
        both.errors
        == parse_fleet_response({"Instances": [], "Errors": [refused]})
        == (error("InsufficientInstanceCapacity"),)
    )
    assert parse_fleet_response({}) == ()


def test_refused_offerings_follow_the_error():
    """It is one offering, all Spot ones without the service-linked role, a zone without addresses, or none.

    A reserved launch is about its reservation: others of the type and zone stay in use.
    """
    errors = [
        error("InsufficientInstanceCapacity"),
        error("AuthFailure.ServiceLinkedRoleCreationNotPermitted"),
        error("InsufficientFreeAddressesInSubnet", zone="b", subnet="subnet-b"),
        error("InvalidAMIID.NotFound", instance_type="c5.large"),
    ]

    def named(*arguments):
        return [str(offering) for offering in unavailable_offerings(*arguments)]

    assert named(errors[:1], "spot", ["a", "b"], []) == ["m5.large/a/spot"]
    assert named(errors[1:2], "spot", ["a", "b"], []) == ["*/a/spot", "*/b/spot"]
    assert named(errors[2:3], "spot", ["a", "b"], []) == []  # another subnet of the zone has addresses
    assert named(errors[2:3], "spot", ["a", "b"], ["b"]) == ["*/b/on-demand", "*/b/spot"]
    assert named(errors[3:], "spot", ["a"], []) == []
    assert exhausted_subnets(errors) == ("subnet-b",)
    assert named([error("ReservationCapacityExceeded")], "reserved", ["a"], [], "cr-1") == ["m5.large/a/reserved/cr-1"]
    in_zone = named(errors[2:3], "reserved", ["a", "b"], ["b"], "cr-1")
    assert in_zone == ["*/b/on-demand", "*/b/reserved", "*/b/spot"]
