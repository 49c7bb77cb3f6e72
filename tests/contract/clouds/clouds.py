"""The clouds that the conformance suite runs on: one class for each cloud and transport.

A `CloudUnderTest` is one simulated account. It makes providers for any number of clusters in it, which share nothing but the
account, and has the account's faults by the same names for all clouds. What a cloud cannot do is in its `differences`, with the
reason. A further cloud is one more class, and one more line in `CLOUDS`.
"""

import itertools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any, ClassVar

import pytest
from botocore.exceptions import ConnectionClosedError

from journeyman.cloud.alibaba.alibaba_settings import AlibabaSettings
from journeyman.cloud.alibaba.open_api import OpenApi, OpenApiError
from journeyman.cloud.alibaba.provider import AlibabaCloudProvider
from journeyman.cloud.alibaba.sdk_client import SdkOpenApi
from journeyman.cloud.alibaba.tags import cluster_tag
from journeyman.cloud.aws.aws_settings import AwsSettings, Clients
from journeyman.cloud.aws.pricing import shipped_on_demand
from journeyman.cloud.aws.provider import AwsCloudProvider
from journeyman.cloud.huawei.huawei_settings import HuaweiSettings
from journeyman.cloud.huawei.node_names import CLUSTER
from journeyman.cloud.huawei.provider import HuaweiCloudProvider
from journeyman.cloud.huawei.rest_api import CCE, RestApi, RestApiError, RestCall
from journeyman.cloud.huawei.sdk_client import SdkRestApi
from journeyman.core.api import labels
from journeyman.core.api.ecs_settings import ACS_API, ECS_API, ECSNodeClassAPI
from journeyman.core.api.objects import CCENODECLASS
from journeyman.ports import CloudProvider, Instance
from journeyman.signing import Credentials
from journeyman_simulator.alibaba_account import AlibabaAccount
from journeyman_simulator.alibaba_account.openapi_server import serving
from journeyman_simulator.clock import VirtualClock
from journeyman_simulator.huawei_account import rest_server
from journeyman_simulator.huawei_account.huawei_account import HuaweiAccount
from tests.contract.conftest import opened, seeded

START = datetime(2026, 11, 2, 8, 0, tzinfo=timezone.utc)
JSON = dict[str, Any]


class CloudUnderTest(ABC):
    """One account of a cloud, with faults.

    Operations are `launch`, `list`, `get`, `delete`, `subnets`, `prices` and `statuses`; failures are `throttled`, `unavailable`,
    `denied`, `expired` and `bad key`.
    """

    name: ClassVar[str]
    types: ClassVar[tuple[str, str, str]]  # cheapest first
    currency: ClassVar[str]
    group: ClassVar[str]
    kind: ClassVar[str]
    page: ClassVar[int]  # instances in one page of a list
    subnet_condition: ClassVar[tuple[str, str]]  # type and reason, if the selector terms select none
    kept_condition: ClassVar[str] = "SecurityGroupsReady"  # the type of one that does not depend on subnets
    drift_reasons: ClassVar[Mapping[str, str]]  # by field of the status with the ids that an instance is compared with
    resolved_fields: ClassVar[frozenset[str]] = frozenset({"securityGroups", "conditions"})  # of the status
    invalid_specs: ClassVar[tuple[JSON, ...]] = (
        {"securityGroupSelectorTerms": "mine"},
        {"tags": {f"k{i}": "v" for i in range(51)}},
    )
    early_end: ClassVar[str]
    unknown_provider_id: ClassVar[str]
    foreign_provider_ids: ClassVar[tuple[str, ...]]
    permissions: ClassVar[Mapping[str, str]]  # by operation
    failures: ClassVar[Mapping[str, str]]  # error codes
    settings: ClassVar[Mapping[str, JSON]] = {}
    """Parts of a spec: `static` counts for drift by the hash, `selector` does not, `reserved tag` is refused."""
    zones_per_launch: ClassVar[int] = 2  # of the zones that a claim allows, at most two here
    estimates: ClassVar[bool]  # whether the shipped prices of the region are estimates
    shipped_prices: ClassVar[str] = "table of "  # in the text that says where they come from
    price_api: ClassVar[str]
    deletion: ClassVar[str]  # the operation that deletes instances
    one_deletion_a_request: ClassVar[bool] = False
    differences: ClassVar[Mapping[str, str]] = {}
    """The reason why a behaviour is not tested on this cloud, by behaviour."""

    def __init__(self) -> None:
        self.clock = VirtualClock(START)
        self.zones: tuple[str, ...] = ()
        self.published: list[JSON] = []
        self._stack = ExitStack()
        self._serial = itertools.count(1)

    def __enter__(self) -> "CloudUnderTest":
        with ExitStack() as stack:
            self.open(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @abstractmethod
    def open(self, stack: ExitStack) -> None:
        """Open the account, and create what a NodeClass selects."""

    @abstractmethod
    def provider(self, cluster: str, *, unreachable: bool = False) -> CloudProvider:
        """Return a provider with empty caches for a cluster, which is created when it is first named."""

    @abstractmethod
    def node_class(self, network: str = "demo", **spec: Any) -> JSON:
        """Return a NodeClass as a user writes it, in the subnets whose tag names the network."""

    @abstractmethod
    def add_subnet(self, zone: str, network: str, *, is_full: bool = False) -> None:
        """Create a subnet in a zone that NodeClasses of the network select."""

    @abstractmethod
    def fail(self, operation: str, failure: str) -> None:
        """Make the next request for an operation fail, however often the client repeats it."""

    @contextmanager
    def denying(self, operation: str) -> Iterator[None]:
        """Lack the permission for an operation inside the block, in which it is requested once."""
        self.fail(operation, "denied")
        yield

    @abstractmethod
    def lose_next_launch(self) -> None:
        """Let the next launch take effect without an answer."""

    @abstractmethod
    def out_of_stock(self, instance_type: str, zone: str, capacity_type: str) -> None:
        """Make launches of an offering fail for three minutes."""

    @abstractmethod
    def shows_stock(self, *, of: str, zone: str, has_stock: bool) -> None:
        """Let instance types show whether an offering has stock."""

    @abstractmethod
    def interrupt(self, instance_id: str) -> None:
        """Reclaim a Spot instance, after its notice."""

    @abstractmethod
    def terminate(self, instance_id: str) -> None:
        """Terminate an instance as a user can."""

    @abstractmethod
    def stop(self, instance_id: str) -> None:
        """Stop an instance as a user can."""

    @abstractmethod
    def tag(self, instance_id: str, tags: Mapping[str, str]) -> None:
        """Add tags to an instance."""

    @abstractmethod
    def untag(self, instance_id: str, key: str) -> None:
        """Remove a tag of an instance."""

    @abstractmethod
    def schedule_maintenance(self, instance_id: str) -> None:
        """Schedule maintenance of an instance's host."""

    @abstractmethod
    def add_copies(self, instance: Instance, number: int) -> None:
        """Launch further instances with the tags of one."""

    @abstractmethod
    def act(self) -> None:
        """Make the transitions that are due."""

    @abstractmethod
    def calls(self) -> Counter[str]:
        """Return the number of requests by the cloud's operation."""

    def require(self, behaviour: str) -> None:
        """Skip the test if the cloud does not have a behaviour."""
        if reason := self.differences.get(behaviour):
            pytest.skip(f"{self.name}: {reason}")

    def _node_class(self, version: str, spec: JSON) -> JSON:
        metadata = {"name": "default", "uid": "0c6f", "generation": 2, "creationTimestamp": "2026-11-02T07:00:00Z"}
        return {"apiVersion": f"{self.group}/{version}", "kind": self.kind, "metadata": metadata, "spec": spec}

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.clock.advance(seconds)
        self.act()

    def cluster_tags(self, cluster: str) -> Mapping[str, str]:
        """Return the tags by which a cluster's instances are found."""
        raise NotImplementedError

    def instance_id(self, instance: Instance) -> str:
        """Return the cloud's id of an instance."""
        return instance.provider_id[instance.provider_id.rindex("i-") :]


class _LossyEc2:
    """EC2, whose next answer to CreateFleet is lost on request."""

    def __init__(self, client: Any, losses: Counter[str]) -> None:
        self._client = client
        self._losses = losses

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._client, name)
        if name != "create_fleet" or not self._losses[name]:
            return call

        def send(**parameters: Any) -> Any:
            self._losses[name] -= 1
            call(**parameters)
            raise ConnectionClosedError(endpoint_url="https://ec2.example")

        return send


class _Aws(CloudUnderTest):
    """An AWS account; its clients do not repeat requests."""

    account_kind: ClassVar[str]
    opening: ClassVar[Mapping[str, Any]] = {}
    region = "us-east-1"
    types = ("c5.large", "m5.large", "m5.xlarge")
    currency = "USD"
    group = labels.AWS_GROUP
    kind = "EC2NodeClass"
    page = 1000
    estimates = False
    subnet_condition = ("SubnetsReady", "SubnetsNotFound")
    drift_reasons: ClassVar[Mapping[str, str]] = {
        "subnets": "SubnetDrift",
        "securityGroups": "SecurityGroupDrift",
        "amis": "AMIDrift",
    }
    early_end = "Client.InternalError"
    unknown_provider_id = "aws:///us-east-1a/i-00000000000000000"
    foreign_provider_ids = ("", "i-1", "kwok://node", "aws:///us-east-1a/eni-1", "cn-hangzhou.i-bp1abc")
    price_api = "pricing:GetProducts"
    deletion = "TerminateInstances"
    operations: ClassVar[Mapping[str, str]] = {
        "launch": "CreateFleet",
        "list": "DescribeInstances",
        "get": "DescribeInstances",
        "delete": "TerminateInstances",
        "subnets": "DescribeSubnets",
        "prices": "GetProducts",
        "statuses": "DescribeInstanceStatus",
    }
    permissions: ClassVar[Mapping[str, str]] = {name: f"ec2:{operation}" for name, operation in operations.items()} | {
        "prices": "pricing:GetProducts"
    }
    failures: ClassVar[Mapping[str, str]] = {
        "throttled": "RequestLimitExceeded",
        "unavailable": "InternalError",
        "denied": "UnauthorizedOperation",
        "expired": "RequestExpired",
        "bad key": "AuthFailure",
    }
    settings: ClassVar[Mapping[str, JSON]] = {
        "static": {"userData": "echo hello"},
        "selector": {"subnetSelectorTerms": [{"id": "subnet-1"}]},
        "reserved tag": {"tags": {"kubernetes.io/cluster/x": "owned"}},
    }

    def open(self, stack: ExitStack) -> None:
        prices = shipped_on_demand(self.region)
        account = opened(self.account_kind, self.clock, prices, on_event=self.published.append, **self.opening)
        self.account = stack.enter_context(account)
        self._seeded = seeded(self.account, kubernetes_version="1.34")
        self._losses: Counter[str] = Counter()
        self._ec2 = self.account.client("ec2", max_attempts=1)
        subnets = self._ec2.describe_subnets(SubnetIds=list(self._seeded.subnets))["Subnets"]
        self._vpc = subnets[0]["VpcId"]
        self.zones = tuple(sorted(s["AvailabilityZone"] for s in subnets))[:3]

    def provider(self, cluster: str, *, unreachable: bool = False) -> CloudProvider:
        settings = AwsSettings(
            cluster_name=cluster,
            region=self.region,
            kubernetes_version="1.34",
            cluster_endpoint="https://demo",
            cluster_ca="Y2E=",
            service_cidr="10.100.0.0/16",
            max_parallel_launches=4,
        )
        create = _unreachable_aws_client if unreachable else self._client
        return AwsCloudProvider(Clients(create, self.region), settings, self.clock)

    def _client(self, service: str, region: str) -> Any:
        client = self.account.client(service, max_attempts=1)
        return _LossyEc2(client, self._losses) if service == "ec2" else client

    def node_class(self, network: str = "demo", **spec: Any) -> JSON:
        spec = {
            "amiSelectorTerms": [{"alias": "al2023@latest"}],
            "role": self._seeded.role,
            "subnetSelectorTerms": [{"tags": {"karpenter.sh/discovery": network}}],
            "securityGroupSelectorTerms": [{"tags": {"karpenter.sh/discovery": "demo"}}],
            **spec,
        }
        return self._node_class("v1", spec)

    def add_subnet(self, zone: str, network: str, *, is_full: bool = False) -> None:
        block = f"172.31.{128 + next(self._serial)}.0/28"
        made = self._ec2.create_subnet(VpcId=self._vpc, CidrBlock=block, AvailabilityZone=zone)["Subnet"]["SubnetId"]
        self._ec2.create_tags(Resources=[made], Tags=[{"Key": "karpenter.sh/discovery", "Value": network}])
        if is_full:
            image = next(id_ for name, id_ in self._seeded.images.items() if "al2023-x86_64" in name)
            self._ec2.run_instances(
                ImageId=image, InstanceType="m5.large", SubnetId=made, MinCount=11, MaxCount=11
            )  # all addresses of the block

    def fail(self, operation: str, failure: str) -> None:
        self.account.fail_next(self.operations[operation], self.failures[failure])

    def lose_next_launch(self) -> None:
        self._losses["create_fleet"] += 1

    def out_of_stock(self, instance_type: str, zone: str, capacity_type: str) -> None:
        self.account.out_of_stock(instance_type, zone, capacity_type, self.clock.now() + timedelta(minutes=3))

    def shows_stock(self, *, of: str, zone: str, has_stock: bool) -> None:
        raise NotImplementedError

    def interrupt(self, instance_id: str) -> None:
        self.account.interrupt(instance_id)

    def terminate(self, instance_id: str) -> None:
        self._ec2.terminate_instances(InstanceIds=[instance_id])

    def stop(self, instance_id: str) -> None:
        self._ec2.stop_instances(InstanceIds=[instance_id])

    def tag(self, instance_id: str, tags: Mapping[str, str]) -> None:
        self._ec2.create_tags(Resources=[instance_id], Tags=[{"Key": k, "Value": v} for k, v in tags.items()])

    def untag(self, instance_id: str, key: str) -> None:
        [tag] = self._ec2.describe_tags(
            Filters=[{"Name": "resource-id", "Values": [instance_id]}, {"Name": "key", "Values": [key]}]
        )["Tags"]
        self._ec2.delete_tags(Resources=[instance_id], Tags=[{"Key": key, "Value": tag["Value"]}])

    def schedule_maintenance(self, instance_id: str) -> None:
        self.account.instances.checks.plan(instance_id, "instance-retirement", self.clock.now() + timedelta(days=2))

    def add_copies(self, instance: Instance, number: int) -> None:
        tags = [{"Key": key, "Value": value} for key, value in instance.tags.items() if not key.startswith("aws:")]
        self._ec2.run_instances(
            ImageId=instance.image_id,
            InstanceType=instance.instance_type,
            MinCount=number,
            MaxCount=number,
            TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
        )

    def act(self) -> None:
        self.account.act()

    def calls(self) -> Counter[str]:
        return Counter(self.account.calls())

    def cluster_tags(self, cluster: str) -> Mapping[str, str]:
        return {"eks:eks-cluster-name": cluster}


def _unreachable_aws_client(service: str, region: str) -> Any:
    import boto3
    from botocore.config import Config

    dead = Config(connect_timeout=0.2, read_timeout=0.2, retries={"total_max_attempts": 1})
    secret = {"aws_access_key_id": "x", "aws_secret_access_key": "y"}
    return boto3.client(service, region_name=region, endpoint_url="http://127.0.0.1:9", config=dead, **secret)


_STOCK_IS_UNKNOWN = "EC2 does not report which offerings have stock; a launch finds out"


class AwsOnMoto(_Aws):
    """AWS over its wire protocols, with boto3."""

    name = "AWS on moto"
    account_kind = "moto"
    opening: ClassVar[Mapping[str, Any]] = {"families": ("c5", "m5")}
    differences: ClassVar[Mapping[str, str]] = {
        "stock": _STOCK_IS_UNKNOWN,
        "node pool tag": "moto applies one of several filters by tag key; EC2 applies all",
        "pages": "moto takes seconds for the 1,000 instances of EC2's page; boto3's paginator turns the pages",
    }


class AwsInProcess(_Aws):
    """AWS in this process."""

    name = "AWS in process"
    account_kind = "in process"
    differences: ClassVar[Mapping[str, str]] = {"stock": _STOCK_IS_UNKNOWN}

    def tag(self, instance_id: str, tags: Mapping[str, str]) -> None:
        """See `CloudUnderTest`; the account in process tags no instances by request."""
        self.account.instances.known[instance_id].tags.update(tags)

    def untag(self, instance_id: str, key: str) -> None:
        del self.account.instances.known[instance_id].tags[key]


class _SimulatedAccount(CloudUnderTest):
    """A cloud with an account that is simulated in this process, whose instances tests change directly."""

    account: AlibabaAccount | HuaweiAccount

    @contextmanager
    def denying(self, operation: str) -> Iterator[None]:
        self.account.deny(self.permissions[operation])
        try:
            yield
        finally:
            self.account.allow(self.permissions[operation])

    def out_of_stock(self, instance_type: str, zone: str, capacity_type: str) -> None:
        self.account.out_of_stock(instance_type, zone, capacity_type, self.clock.now() + timedelta(minutes=3))

    def interrupt(self, instance_id: str) -> None:
        self.account.interrupt(instance_id)

    def terminate(self, instance_id: str) -> None:
        self.account.terminate(instance_id)

    def stop(self, instance_id: str) -> None:
        self.account.stop(instance_id)

    def tag(self, instance_id: str, tags: Mapping[str, str]) -> None:
        self.account.set_tags(instance_id, tags)

    def untag(self, instance_id: str, key: str) -> None:
        self.account.remove_tags(instance_id, key)

    def schedule_maintenance(self, instance_id: str) -> None:
        self.account.schedule_maintenance(instance_id)

    def act(self) -> None:
        with self.account.gate.lock:
            self.account.act()

    def calls(self) -> Counter[str]:
        return Counter(self.account.calls())


class _Alibaba(_SimulatedAccount):
    """An Alibaba Cloud account with an ACK cluster for each cluster's name."""

    region = "cn-hangzhou"
    node_class_api: ClassVar[ECSNodeClassAPI] = ECS_API
    attempts: ClassVar[int] = 1
    types = ("ecs.c7.large", "ecs.g7.large", "ecs.g7.xlarge")
    currency = "CNY"
    group = ECS_API.resource.group
    kind = "ECSNodeClass"
    page = 100
    estimates = True
    subnet_condition = ("VSwitchesReady", "VSwitchesNotFound")
    drift_reasons: ClassVar[Mapping[str, str]] = {
        "vSwitches": "VSwitchDrift",
        "securityGroups": "SecurityGroupDrift",
        "images": "ImageDrift",
    }
    early_end = "The instance could not be created, because its KMS key is disabled."
    unknown_provider_id = "cn-hangzhou.i-bp100000000000000000"
    foreign_provider_ids = ("", "i-1", "kwok://node", "cn-hangzhou.eni-1", "aws:///us-east-1a/i-00000000000000001")
    price_api = "ecs:DescribePrice"
    deletion = "DeleteInstances"
    operations: ClassVar[Mapping[str, tuple[str, str]]] = {
        "launch": ("ecs", "CreateAutoProvisioningGroup"),
        "list": ("ecs", "DescribeInstances"),
        "get": ("ecs", "DescribeInstances"),
        "delete": ("ecs", "DeleteInstances"),
        "subnets": ("vpc", "DescribeVSwitches"),
        "prices": ("ecs", "DescribePrice"),
        "statuses": ("ecs", "DescribeInstanceHistoryEvents"),
    }
    permissions: ClassVar[Mapping[str, str]] = {
        name: f"{service}:{action}" for name, (service, action) in operations.items()
    }
    failures: ClassVar[Mapping[str, str]] = {
        "throttled": "Throttling.User",
        "unavailable": "InternalError",
        "denied": "Forbidden.RAM",
        "expired": "InvalidSecurityToken.Expired",
        "bad key": "InvalidAccessKeyId.NotFound",
    }
    settings: ClassVar[Mapping[str, JSON]] = {
        "static": {"userData": "echo hello"},
        "selector": {"vSwitchSelectorTerms": [{"id": "vsw-1"}]},
        "reserved tag": {"tags": {"ecs:ecs-cluster-id": "c1"}},
    }

    def open(self, stack: ExitStack) -> None:
        self.account: AlibabaAccount = AlibabaAccount(self.clock, on_event=self.published.append)
        self._seeded = self.account.seed(cluster="demo")
        self.zones = tuple(sorted(self._seeded.vswitches))
        self._clusters: dict[str, str] = {}
        self._api = self.api(stack)

    @abstractmethod
    def api(self, stack: ExitStack) -> OpenApi:
        """Return a client of the account."""

    @abstractmethod
    def unreachable_api(self) -> OpenApi:
        """Return a client whose requests get no answer."""

    def provider(self, cluster: str, *, unreachable: bool = False) -> CloudProvider:
        settings = AlibabaSettings(cluster_id=self._cluster_id(cluster), region=self.region, max_parallel_launches=4)
        api = self.unreachable_api() if unreachable else self._api
        return AlibabaCloudProvider(api, settings, self.clock, self.node_class_api)

    def _cluster_id(self, cluster: str) -> str:
        if cluster not in self._clusters:
            seeded_ = self._seeded
            self._clusters[cluster] = self.account.clusters.add(
                name=cluster,
                kubernetes_version=seeded_.kubernetes_version,
                endpoint=seeded_.endpoint,
                network=seeded_.network,
                security_group=seeded_.security_group,
            ).id
        return self._clusters[cluster]

    def node_class(self, network: str = "demo", **spec: Any) -> JSON:
        spec = {
            "imageSelectorTerms": [{"alias": "AlibabaCloudLinux3@latest"}],
            "vSwitchSelectorTerms": [{"tags": {"karpenter.sh/discovery": network}}],
            "securityGroupSelectorTerms": [{"tags": {"karpenter.sh/discovery": "demo"}}],
            "systemDisk": {"volumeSize": "40Gi"},
            **spec,
        }
        return self._node_class("v1alpha1", spec)

    def add_subnet(self, zone: str, network: str, *, is_full: bool = False) -> None:
        with self.account.gate.lock:
            made = self.account.network.add_vswitch(zone, f"10.0.{100 + next(self._serial)}.0/28")
            made.tags["karpenter.sh/discovery"] = network
            if is_full:
                self.account.set_free_addresses(made.id, 0)

    def fail(self, operation: str, failure: str) -> None:
        _, action = self.operations[operation]
        is_repeated = failure in ("throttled", "unavailable")
        self.account.fail_next(action, self.failures[failure], self.attempts if is_repeated else 1)

    def lose_next_launch(self) -> None:
        _, action = self.operations["launch"]
        self.account.lose_next_answer(action)

    def shows_stock(self, *, of: str, zone: str, has_stock: bool) -> None:
        self.account.set_stock(of, zone, "on-demand", category="" if has_stock else "WithoutStock")

    def add_copies(self, instance: Instance, number: int) -> None:
        for _ in range(number):
            self.account.instances.launch(
                instance_type=instance.instance_type,
                vswitch_id=self._seeded.vswitches[instance.zone],
                image_id=instance.image_id,
                security_groups=[self._seeded.security_group],
                spot_strategy="NoSpot",
                tags=instance.tags,
                settings={},
            )

    def cluster_tags(self, cluster: str) -> Mapping[str, str]:
        return {cluster_tag(self._cluster_id(cluster)): "owned"}


def _unreachable_api(call: Any) -> Any:
    raise OpenApiError("", "the connection was refused")


class AlibabaOverHttp(_Alibaba):
    """Alibaba Cloud over HTTP, with the official SDK; it sends a throttled or failed request three times."""

    name = "Alibaba Cloud over HTTP"
    attempts = 3

    def api(self, stack: ExitStack) -> OpenApi:
        return self._client(stack.enter_context(serving(self.account)))

    def unreachable_api(self) -> OpenApi:
        return self._client("127.0.0.1:9")

    def _client(self, endpoint: str) -> OpenApi:
        key = self.account.access_key
        credentials = Credentials(access_key_id=key.id, access_key_secret=key.secret)
        return SdkOpenApi(
            self.region,
            self.clock,
            lambda: credentials,
            endpoint=lambda service, region: (endpoint, False),
            pause=lambda seconds: None,
        )


class AlibabaInProcess(_Alibaba):
    """Alibaba Cloud in this process."""

    name = "Alibaba Cloud in process"

    def api(self, stack: ExitStack) -> OpenApi:
        return self.account.open_api()

    def unreachable_api(self) -> OpenApi:
        return _unreachable_api


class AlibabaRunInstances(AlibabaInProcess):
    """Alibaba Cloud with the NodeClasses of the vendor's provider, whose metadata options only RunInstances can set."""

    name = "Alibaba Cloud with RunInstances"
    zones_per_launch = 1
    node_class_api = ACS_API
    group = ACS_API.resource.group
    subnet_condition = ("VSwitchResolved", "VSwitchesNotFound")
    kept_condition = "SecurityGroupResolved"
    operations: ClassVar[Mapping[str, tuple[str, str]]] = {**_Alibaba.operations, "launch": ("ecs", "RunInstances")}
    permissions: ClassVar[Mapping[str, str]] = {**_Alibaba.permissions, "launch": "ecs:RunInstances"}
    settings: ClassVar[Mapping[str, JSON]] = {
        **_Alibaba.settings,
        "reserved tag": {"tags": {"kubernetes.io/cluster/x": "owned"}},
    }
    differences: ClassVar[Mapping[str, str]] = {
        "several offerings": "RunInstances has one type and vSwitch; the next launch uses another offering"
    }

    def node_class(self, network: str = "demo", **spec: Any) -> JSON:
        family = {"imageFamily": "acs:alibaba_cloud_linux_3_2104_lts_x64"}
        given = {"imageSelectorTerms": [family], "systemDisk": {"size": 40}, "metadataOptions": {}, **spec}
        return {**super().node_class(network, **given), "apiVersion": ACS_API.resource.api_version}


class _Huawei(_SimulatedAccount):
    """A Huawei Cloud account with a CCE cluster for each cluster's name."""

    region = "cn-north-4"
    attempts: ClassVar[int] = 1
    types = ("c7.large.2", "c9.large.4", "c9.xlarge.4")
    currency = "CNY"
    group = CCENODECLASS.group
    kind = "CCENodeClass"
    page = 500
    estimates = True
    shipped_prices = "estimate"
    price_api = "bss:ListOnDemandResourceRatings"
    deletion = "cce DeleteNode"
    one_deletion_a_request = True
    subnet_condition = ("SubnetsReady", "SubnetsNotFound")
    drift_reasons: ClassVar[Mapping[str, str]] = {
        "subnets": "SubnetDrift"
    }  # CCE sets groups, and the hash has the image
    kept_condition = "Ready"
    resolved_fields = frozenset({"subnets", "conditions"})
    invalid_specs = ({"subnetSelectorTerms": "mine"}, {"tags": {f"k{i}": "v" for i in range(5)}})
    early_end = "the KMS key of the root volume is disabled"
    unknown_provider_id = "ffffffff-0000-4000-8000-000000000000"
    foreign_provider_ids = ("", "i-1", "kwok://node", "cn-hangzhou.i-bp1abc", "aws:///us-east-1a/i-00000000000000001")
    operations: ClassVar[Mapping[str, str]] = {
        "launch": "CreateNode",
        "list": "ListNodes",
        "get": "ShowNode",
        "delete": "DeleteNode",
        "subnets": "ListSubnets",
        "prices": "ListOnDemandResourceRatings",
        "statuses": "ListScheduledEvents",
    }
    permissions: ClassVar[Mapping[str, str]] = {
        "launch": "cce:node:create",
        "list": "cce:node:list",
        "get": "cce:node:get",
        "delete": "cce:node:delete",
        "subnets": "vpc:subnets:get",
        "prices": "bss:discount:view",
        "statuses": "ecs:instanceScheduledEvents:list",
    }
    failures: ClassVar[Mapping[str, str]] = {
        "throttled": "APIGW.0308",
        "unavailable": "CCE.01500001",
        "denied": "CCE.01403001",
        "expired": "APIGW.0307",
        "bad key": "APIGW.0301",
    }
    settings: ClassVar[Mapping[str, JSON]] = {
        "static": {"ecsGroupId": "0c6f0000-0000-4000-8000-000000000001"},
        "selector": {"subnetSelectorTerms": [{"id": "0c6f0000-0000-4000-8000-000000000002"}]},
        "reserved tag": {"tags": {"karpenter-cluster": "c1"}},
    }
    differences: ClassVar[Mapping[str, str]] = {
        "client token": "CreateNode has no client token; the Lease keeps runs apart, and a second node is garbage-collected",
        "zonal subnets": "a subnet belongs to a region",
        "node pool tag": "the name of a node says whose it is, since CCE does not return tags",
        "external termination": "a CCE node outlives the server that a user deletes, as a stopped instance",
    }

    def open(self, stack: ExitStack) -> None:
        self.account: HuaweiAccount = HuaweiAccount(self.clock, region=self.region, on_event=self.published.append)
        self._seeded = self.account.seed(cluster="demo")
        self.zones = self.account.zones
        self._clusters: dict[str, str] = {}
        self._api = self.api(stack)

    @abstractmethod
    def api(self, stack: ExitStack) -> RestApi:
        """Return a client of the account."""

    @abstractmethod
    def unreachable_api(self) -> RestApi:
        """Return a client whose requests get no answer."""

    def provider(self, cluster: str, *, unreachable: bool = False) -> CloudProvider:
        settings = HuaweiSettings(
            cluster_id=self._cluster_id(cluster),
            project_id=self._seeded.project_id,
            region=self.region,
            domain_id=self._seeded.domain_id,
            max_parallel_launches=4,
        )
        return HuaweiCloudProvider(self.unreachable_api() if unreachable else self._api, settings, self.clock)

    def _cluster_id(self, cluster: str) -> str:
        if cluster not in self._clusters:
            version = self._seeded.kubernetes_version
            with self.account.gate.lock:
                added = self.account.clusters.add(name=cluster, kubernetes_version=version)
                added.most_nodes = 2 * self.page
                self._clusters[cluster] = added.id
        return self._clusters[cluster]

    def node_class(self, network: str = "demo", **spec: Any) -> JSON:
        """See `CloudUnderTest`; subnets of a network have its name."""
        spec = {
            "subnetSelectorTerms": [{"name": network}],
            "imsSelector": {"imsFamily": "Huawei Cloud EulerOS 2.0"},
            "blockDeviceMappings": {"root": {"volumeSize": 40, "volumeType": "SSD"}},
            "login": {"sshKey": self._seeded.key_pair},
            **spec,
        }
        return self._node_class("v1alpha1", spec)

    def add_subnet(self, zone: str, network: str, *, is_full: bool = False) -> None:
        with self.account.gate.lock:
            made = self.account.network.add_subnet(network, f"10.0.{100 + next(self._serial)}.0/28")
            if is_full:
                self.account.set_free_addresses(made.id, 0)

    def fail(self, operation: str, failure: str) -> None:
        is_repeated = failure == "throttled" or (failure == "unavailable" and operation != "launch")
        times = self.attempts if is_repeated else 1
        self.account.fail_next(self.operations[operation], self.failures[failure], times)

    def lose_next_launch(self) -> None:
        self.account.lose_next_answer(self.operations["launch"])

    def shows_stock(self, *, of: str, zone: str, has_stock: bool) -> None:
        self.account.set_sold_out(of, zone, "on-demand", sold_out=not has_stock)

    def add_copies(self, instance: Instance, number: int) -> None:
        first = self.account.instances.known[self.instance_id(instance)]
        settings = self._seeded
        path = f"/api/v3/projects/{settings.project_id}/clusters/{first.cluster_id}/nodes"
        for copy in range(number):
            body = {"kind": "Node", "apiVersion": "v3", "metadata": {"name": f"copy-{copy:032x}"}, "spec": first.spec}
            call = RestCall(service=CCE, operation="CreateNode", method="POST", path=path, body=body)
            self.account.rest_api()(call)
        self.wait(60)

    def cluster_tags(self, cluster: str) -> Mapping[str, str]:
        return {CLUSTER: self._cluster_id(cluster)}

    def instance_id(self, instance: Instance) -> str:
        """Return the id of the node's server, which events have."""
        known = self.account.instances.known.values()
        return next(server.id for server in known if server.node_id == instance.provider_id)


def _unreachable_rest_api(call: Any) -> Any:
    raise RestApiError("", "the connection was refused")


class HuaweiOverHttp(_Huawei):
    """Huawei Cloud over HTTP, with the official SDK; it sends a throttled or failed request three times."""

    name = "Huawei Cloud over HTTP"
    attempts = 3

    def api(self, stack: ExitStack) -> RestApi:
        return self._client(stack.enter_context(rest_server.serving(self.account)))

    def unreachable_api(self) -> RestApi:
        return self._client("http://127.0.0.1:9")

    def _client(self, url: str) -> RestApi:
        key = self.account.access_key
        credentials = Credentials(access_key_id=key.id, access_key_secret=key.secret)
        return SdkRestApi(
            self.region,
            self._seeded.project_id,
            self._seeded.domain_id,
            self.clock,
            lambda: credentials,
            endpoint=lambda service, region: url,
            pause=lambda seconds: None,
        )


class HuaweiInProcess(_Huawei):
    """Huawei Cloud in this process."""

    name = "Huawei Cloud in process"

    def api(self, stack: ExitStack) -> RestApi:
        return self.account.rest_api()

    def unreachable_api(self) -> RestApi:
        return _unreachable_rest_api


CLOUDS: Sequence[type[CloudUnderTest]] = (
    AwsOnMoto,
    AwsInProcess,
    AlibabaOverHttp,
    AlibabaInProcess,
    AlibabaRunInstances,
    HuaweiOverHttp,
    HuaweiInProcess,
)
