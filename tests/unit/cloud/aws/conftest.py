"""Fixtures for tests of the AWS adapter: clock, settings, NodeClass, NodeClaim, and API clients with listed responses."""

from collections import Counter
from datetime import datetime, timezone

import msgspec
import pytest
from msgspec.structs import replace

from journeyman.cloud.aws.aws_settings import AwsSettings, Clients
from journeyman.cloud.aws.instance_type_info import InstanceTypeInfo
from journeyman.cloud.aws.nodeclass_view import NodeClassView, ec2_node_class
from journeyman.cloud.aws.provider import AwsCloudProvider
from journeyman.core.api import labels
from journeyman.core.api.objects import NodeClaim, NodeSelectorRequirement
from journeyman.core.state import NodeClassState
from journeyman.ports import LaunchRequest
from journeyman_simulator.clock import VirtualClock
from journeyman_simulator.in_process_account.account import REGION, InProcessAccount
from journeyman_simulator.in_process_account.ec2_catalogue import KNOWN_TYPES

DISCOVERED = [{"tags": {"karpenter.sh/discovery": "demo"}}]
PRIMARY = {"networkCardIndex": 0, "deviceIndex": 0, "interfaceType": "interface"}
EFA_ONLY = {"networkCardIndex": 0, "deviceIndex": 1, "interfaceType": "efa-only"}
START = datetime(2026, 11, 2, 8, 0, tzinfo=timezone.utc)
M5_LARGE = InstanceTypeInfo(
    name="m5.large",
    arch="amd64",
    vcpus=2,
    memory_mib=8192,
    usage_classes=("on-demand", "spot"),
    hypervisor="nitro",
    cpu_manufacturer="Intel",
    clock_mhz=3100,
    default_card_interfaces=3,
    card_interfaces=(3,),
    ipv4_per_interface=10,
    ebs_megabits=4750,
)


@pytest.fixture
def clock():
    return VirtualClock(START)


@pytest.fixture
def settings():
    return AwsSettings(cluster_name="demo", region="us-east-1", service_cidr="10.100.0.0/16", max_parallel_launches=1)


def info(**changes) -> InstanceTypeInfo:
    return msgspec.structs.replace(M5_LARGE, **changes)


def node_class(status=None, **spec) -> NodeClassView:
    """Return an EC2NodeClass on AL2023 with subnets in two zones, and the given changes."""
    subnets = [{"id": f"subnet-{z}", "zone": f"us-east-1{z}", "zoneID": f"use1-az{z}"} for z in "ab"]
    arch = [{"key": labels.ARCH, "operator": "In", "values": ["amd64"]}]
    resolved = {
        "subnets": subnets,
        "amis": [{"id": "ami-1", "name": "image", "requirements": arch}],
        "securityGroups": [{"id": "sg-1", "name": "nodes"}],
        "instanceProfile": "profile",
    }
    metadata = {"name": "default", "uid": "class-uid", "generation": 1, "creationTimestamp": "2026-11-02T07:00:00Z"}
    selected = {"subnetSelectorTerms": DISCOVERED, "securityGroupSelectorTerms": DISCOVERED}
    given = {"amiSelectorTerms": [{"alias": "al2023@latest"}], "role": "node", **selected, **spec}
    return ec2_node_class({"metadata": metadata, "spec": given, "status": {**resolved, **(status or {})}})


def claim(name="default-abc", *, requests=None, annotations=None, spec=None, **requirements) -> NodeClaim:
    """Return a NodeClaim of NodePool `default`; a keyword such as `arch=("amd64",)` becomes an `In` requirement."""
    keys = {
        "arch": labels.ARCH,
        "capacity_type": labels.CAPACITY_TYPE,
        "instance_type": labels.INSTANCE_TYPE,
        "zone": labels.ZONE,
    }
    wanted = [NodeSelectorRequirement(key=keys[k], operator="In", values=tuple(v)) for k, v in requirements.items()]
    body = {
        "metadata": {
            "name": name,
            "uid": f"{name}-uid",
            "labels": {labels.NODEPOOL: "default", "team": "web", "node.kubernetes.io/role": "x"},
            "annotations": annotations or {},
        },
        "spec": {
            "requirements": msgspec.to_builtins(wanted),
            "resources": {"requests": requests or {}},
            **(spec or {}),
        },
    }
    return msgspec.convert(body, NodeClaim)


@pytest.fixture
def aws(clock):
    account = InProcessAccount(clock, types=KNOWN_TYPES)
    account.seed(cluster="demo", kubernetes_version="1.34")
    account.identity.roles.update({"first", "second"})
    return account


@pytest.fixture
def provider(aws, settings, clock):
    clients = Clients(lambda service, region: aws.client(service), REGION)
    return AwsCloudProvider(clients, replace(settings, parallel_reads=False), clock)


@pytest.fixture
def resolved(provider, clock):
    """Return a function that returns an EC2NodeClass with its status; `status` is its earlier one."""

    def resolve(status=None, **spec):
        metadata = {"name": "default", "uid": "0c6f", "generation": 1, "creationTimestamp": "2026-11-02T07:00:00Z"}
        selected = {"subnetSelectorTerms": DISCOVERED, "securityGroupSelectorTerms": DISCOVERED}
        given = {"amiSelectorTerms": [{"alias": "al2023@latest"}], "role": "first", **selected, **spec}
        kind = {"apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass"}
        body = {**kind, "metadata": metadata, "spec": given, "status": status or {}}
        return {**body, "status": provider.resolve(body, clock.now())}

    return resolve


def launching_claim(
    name: str,
    created: datetime,
    *,
    team: str = "web",
    profile: str = "",
    launched: bool = True,
    capacity_type: str = labels.ON_DEMAND,
    **requirements: str,
) -> NodeClaim:
    """Return a NodeClaim that any type of the capacity type suits; `zone="a"` is a further requirement."""
    keys = {
        "zone": labels.ZONE,
        "instance_type": labels.INSTANCE_TYPE,
        "reservation": labels.RESERVATION_ID,
        "interruptible": f"{labels.AWS_GROUP}/capacity-reservation-interruptible",
        "partition": f"{labels.AWS_GROUP}/placement-group-partition",
    }
    wanted = {labels.CAPACITY_TYPE: capacity_type, **{keys[name]: value for name, value in requirements.items()}}
    body = {
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "creationTimestamp": created.isoformat(),
            "labels": {labels.NODEPOOL: "default", "team": team},
            "annotations": {"karpenter.k8s.aws/instance-profile-name": profile} if profile else {},
        },
        "spec": {
            "nodeClassRef": {"group": labels.AWS_GROUP, "kind": "EC2NodeClass", "name": "default"},
            "requirements": [{"key": key, "operator": "In", "values": [value]} for key, value in wanted.items()],
            "resources": {"requests": {"cpu": "100m", "pods": "1"}},
        },
        "status": {"providerID": f"aws:///a/i-{name}"} if launched else {},
    }
    return msgspec.convert(body, NodeClaim)


@pytest.fixture
def launch(provider):
    def one(claim, node_class, types=None):
        state = NodeClassState(
            name="default", uid="0c6f", kind="EC2NodeClass", group=labels.AWS_GROUP, generation=1, ready=True,
            raw=node_class,
        )  # fmt: skip
        request = LaunchRequest(
            claim=claim,
            node_class=state,
            instance_types=types or provider.get_instance_types(node_class),
            cluster_uid="uid-cluster",
        )
        [outcome] = provider.launch([request])
        return outcome

    return one


class Pages:
    """A client that returns listed pages for its paginated operations and counts its requests."""

    def __init__(self, **pages):
        self.pages = pages
        self.asked = Counter()

    def get_paginator(self, operation):
        return _Paginator(self, operation)


_NOTHING = {"describe_spot_price_history": [{"SpotPriceHistory": []}]}  # an account without a Spot market


class _Paginator:
    def __init__(self, owner, operation):
        self._owner, self._operation = owner, operation

    def paginate(self, **_):
        self._owner.asked[self._operation] += 1
        pages = self._owner.pages.get(self._operation, _NOTHING.get(self._operation))
        if isinstance(pages, Exception):
            raise pages
        return pages
