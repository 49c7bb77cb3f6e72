"""Lists the supported actions of ECS, VPC, RAM and Container Service (CS), with the parameters that `openapi_parameters` checks.

Restates: the API references of ECS 2014-05-26, VPC 2016-04-28, RAM 2015-05-01 and CS 2015-12-15.
Differs: the services ignore an unknown parameter; the simulation rejects it, since it is always a mistake.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from journeyman.cloud.alibaba.open_api import CS, ECS, RAM, VERSIONS, VPC
from journeyman_simulator.alibaba_account.launch_parameters import (
    CLIENT_TOKEN,
    CREATE_GROUP,
    DISK_CATEGORIES,
    OWNER,
    PERFORMANCE_LEVELS,
    RUN_INSTANCES,
    SPOT_STRATEGY,
    TAG,
    TAG_FILTER,
)
from journeyman_simulator.alibaba_account.openapi_parameters import (
    Boolean,
    Decimal,
    Fields,
    Integer,
    JsonTexts,
    Many,
    Text,
    WireType,
)
from journeyman_simulator.cloud_rules.service_errors import ServiceError

_NOTHING: Final = Fields({})


class ApiAction(Struct, frozen=True, kw_only=True):
    """An action of a service. In ROA style it has a path pattern, whose groups are parameters, and maybe a JSON body."""

    service: str
    name: str
    parameters: Fields
    method: str = "POST"
    path: str = ""
    body: Fields | None = None

    @property
    def qualified_name(self) -> str:
        """Return the name in RAM policies ("ecs:RunInstances")."""
        return f"{self.service}:{self.name}"

    def path_parameters(self, path: str) -> dict[str, str] | None:
        """Return the parameters in the path of a request in ROA style; None if the path is not the action's."""
        matched = re.fullmatch(self.path, path)
        return matched.groupdict() if matched else None

    def arguments(self, path: str, query: Mapping[str, str], body: Any) -> dict[str, Any]:
        """Return the checked parameters of a request.

        Raises:
            ServiceError: The service rejects a parameter.
            NotSimulatedError: The simulation does not support a parameter.
        """
        if not self.path:
            return self.parameters.parse_flat(query)
        found = self.path_parameters(path)
        if found is None:
            raise action_not_found(self.name)
        return {
            **found,
            **self.parameters.parse_flat(query),
            **(self.body or _NOTHING).check("", body or {}),
        }


def action_not_found(name: str) -> ServiceError:
    """Return the error for an action that the service does not have in this version, or not with this method and path."""
    return ServiceError("InvalidAction.NotFound", f"The specified action {name!r} does not exist in this API version.")


def action_named(name: str, version: str) -> ApiAction:
    """Return the action with a name in the API version of its service. Raises ServiceError if there is none."""
    action = ACTIONS.get(name)
    if action is None or VERSIONS[action.service] != version:
        raise action_not_found(name)
    return action


def action_at(method: str, path: str) -> ApiAction:
    """Return the action in ROA style with a method and path. Raises ServiceError if there is none."""
    for action in ACTIONS.values():
        if action.path and action.method == method and action.path_parameters(path) is not None:
            return action
    raise action_not_found(f"{method} {path}")


_WHEN: Final = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"


def _region(
    *required: str, not_simulated: Sequence[str] = (), more: Mapping[str, WireType] = {}, **known: WireType
) -> Fields:
    """Return the parameters of an action that requires RegionId."""
    return Fields(
        {**OWNER, "RegionId": Text(), **more, **known}, required=("RegionId", *required), not_simulated=not_simulated
    )


_DELETE: Final[Mapping[str, WireType]] = {"DryRun": Boolean(), "Force": Boolean(), "ForceStop": Boolean()}
_ECS: Final = {
    "RunInstances": RUN_INSTANCES,
    "CreateAutoProvisioningGroup": CREATE_GROUP,
    "DescribeInstances": _region(
        DryRun=Boolean(),
        ImageId=Text(),
        InstanceChargeType=Text("PostPaid", "PrePaid"),
        InstanceIds=JsonTexts(100),
        InstanceName=Text(),
        InstanceType=Text(),
        MaxResults=Integer(1, 100),
        NextToken=Text(),
        PageNumber=Integer(1),
        PageSize=Integer(1, 100),
        SecurityGroupId=Text(),
        Status=Text("Pending", "Running", "Starting", "Stopping", "Stopped"),
        Tag=TAG_FILTER,
        VpcId=Text(),
        VSwitchId=Text(),
        ZoneId=Text(),
        not_simulated=(
            *("AdditionalAttributes", "DeviceAvailable", "EipAddresses", "Filter", "HpcClusterId", "HttpEndpoint"),
            *("HttpPutResponseHopLimit", "HttpTokens", "InnerIpAddresses", "InstanceNetworkType"),
            *("InstanceTypeFamily", "InternetChargeType", "IoOptimized", "Ipv6Address", "KeyPairName", "LockReason"),
            *("NeedSaleCycle", "PrivateIpAddresses", "PublicIpAddresses", "RdmaIpAddresses", "ResourceGroupId"),
        ),
    ),
    "DeleteInstance": Fields(
        {**OWNER, **_DELETE, "InstanceId": Text(), "TerminateSubscription": Boolean()}, required=("InstanceId",)
    ),
    "DeleteInstances": _region(
        "InstanceId",
        more=_DELETE,
        ClientToken=CLIENT_TOKEN,
        InstanceId=Many(Text(), 100),
        TerminateSubscription=Boolean(),
    ),
    "TagResources": _region(
        *("ResourceType", "ResourceId", "Tag"),
        ResourceId=Many(Text(), 50),
        ResourceType=Text("instance"),
        Tag=Many(TAG, 20),
    ),
    "UntagResources": _region(
        *("ResourceType", "ResourceId"),
        All=Boolean(),
        ResourceId=Many(Text(), 50),
        ResourceType=Text("instance"),
        TagKey=Many(Text(), 20),
    ),
    "ListTagResources": _region(
        "ResourceType",
        NextToken=Text(),
        ResourceId=Many(Text(), 50),
        ResourceType=Text("instance"),
        Tag=TAG_FILTER,
        not_simulated=("TagFilter",),
    ),
    "DescribeInstanceTypes": Fields(
        {
            **OWNER,
            "CpuArchitecture": Text("X86", "ARM"),
            "InstanceTypeFamily": Text(),
            "InstanceTypes": Many(Text(), 10),
            "MaxResults": Integer(1, 1600),
            "MaximumCpuCoreCount": Integer(1),
            "MinimumCpuCoreCount": Integer(1),
            "MinimumGPUAmount": Integer(),
            "NextToken": Text(),
        },
        not_simulated=(
            *("AdditionalAttributes", "CpuArchitectures", "GPUSpec", "GpuSpecs", "InstanceCategories"),
            *("InstanceCategory", "InstanceFamilyLevel", "InstanceTypeFamilies", "LocalStorageCategories"),
            *("MaximumGPUAmount", "MaximumMemorySize", "MinimumMemorySize", "NvmeSupport", "PhysicalProcessorModel"),
        ),
    ),
    "DescribeAvailableResource": _region(
        "DestinationResource",
        DestinationResource=Text("Zone", "IoOptimized", "InstanceType", "SystemDisk", "DataDisk", "Network", "ddh"),
        Cores=Integer(1),
        InstanceChargeType=Text("PostPaid", "PrePaid"),
        InstanceType=Text(),
        IoOptimized=Text("optimized", "none"),
        Memory=Decimal(),
        NetworkCategory=Text("vpc", "classic"),
        ResourceType=Text("instance", "disk", "reservedinstance", "ddh"),
        SpotDuration=Integer(0, 1),
        SpotStrategy=SPOT_STRATEGY,
        SystemDiskCategory=Text(*DISK_CATEGORIES),
        ZoneId=Text(),
        not_simulated=("DataDiskCategory", "DedicatedHostId", "Scope"),
    ),
    "DescribePrice": _region(
        Amount=Integer(1, 1000),
        ImageId=Text(),
        InstanceNetworkType=Text("vpc", "classic"),
        InstanceType=Text(),
        IoOptimized=Text("optimized", "none"),
        Period=Integer(1),
        PriceUnit=Text("Hour", "Week", "Month", "Year"),
        ResourceType=Text("instance", "disk", "bandwidth", "ddh", "ElasticityAssurance", "CapacityReservation"),
        SpotDuration=Integer(0, 1),
        SpotStrategy=SPOT_STRATEGY,
        SystemDisk=Fields(
            {
                "Category": Text(*DISK_CATEGORIES),
                "PerformanceLevel": Text(*PERFORMANCE_LEVELS),
                "Size": Integer(20, 2048),
            }
        ),
        ZoneId=Text(),
        not_simulated=("Capacity", "DataDisk", "InstanceTypeList", "InternetMaxBandwidthOut", "OfferingType", "Scope"),
    ),
    "DescribeSpotPriceHistory": _region(
        *("InstanceType", "NetworkType"),
        EndTime=Text(pattern=_WHEN),
        InstanceType=Text(),
        IoOptimized=Text("optimized", "none"),
        NetworkType=Text("vpc", "classic"),
        Offset=Integer(),
        OSType=Text("linux", "windows"),
        SpotDuration=Integer(0, 1),
        StartTime=Text(pattern=_WHEN),
        ZoneId=Text(),
    ),
    "DescribeSpotAdvice": _region(
        InstanceTypes=Many(Text(), 10),
        Cores=Integer(1),
        InstanceTypeFamily=Text(),
        Memory=Decimal(),
        MinCores=Integer(1),
        MinMemory=Decimal(),
        ZoneId=Text(),
        not_simulated=("GpuAmount", "GpuSpec", "InstanceFamilyLevel"),
    ),
    "DescribeZones": _region(
        AcceptLanguage=Text(), InstanceChargeType=Text("PostPaid", "PrePaid"), SpotStrategy=Text(), Verbose=Boolean()
    ),
    "DescribeSecurityGroups": _region(
        DryRun=Boolean(),
        MaxResults=Integer(1, 100),
        NetworkType=Text("vpc", "classic"),
        NextToken=Text(),
        PageNumber=Integer(1),
        PageSize=Integer(1, 50),
        SecurityGroupId=Text(),
        SecurityGroupIds=JsonTexts(100),
        SecurityGroupName=Text(),
        SecurityGroupType=Text("normal", "enterprise"),
        Tag=TAG_FILTER,
        VpcId=Text(),
        not_simulated=("FuzzyQuery", "IsQueryEcsCount", "ResourceGroupId", "ServiceManaged"),
    ),
    "DescribeImages": _region(
        Architecture=Text("i386", "x86_64", "arm64"),
        ImageFamily=Text(),
        ImageId=Text(),
        ImageName=Text(),
        ImageOwnerAlias=Text("system", "self", "others", "marketplace"),
        ImageOwnerId=Integer(high=2**63),
        OSType=Text("linux", "windows"),
        PageNumber=Integer(1),
        PageSize=Integer(1, 100),
        ShowExpired=Boolean(),  # no simulated image expires
        Status=Text(),
        Tag=TAG_FILTER,
        not_simulated=("ActionType", "DryRun", "Filter", "InstanceType", "IsPublic", "SnapshotId"),
    ),
    "DescribeImageFromFamily": _region("ImageFamily", ImageFamily=Text(least=2, most=128)),
    "DescribeInstanceHistoryEvents": _region(
        EventCycleStatus=Text(),
        EventId=Many(Text(), 100),
        EventType=Text(),
        InstanceEventCycleStatus=Many(Text(), 30),
        InstanceEventType=Many(Text(), 30),
        InstanceId=Text(),
        MaxResults=Integer(1, 100),
        NextToken=Text(),
        NotBefore=Fields({"Start": Text(pattern=_WHEN), "End": Text(pattern=_WHEN)}),
        PageNumber=Integer(1),
        PageSize=Integer(1, 100),
        ResourceId=Many(Text(), 100),
        ResourceType=Text("instance", "ddh"),
        not_simulated=("EventPublishTime", "ImpactLevel", "ResourceGroupId", "Tag"),
    ),
}
_VPC: Final = {
    "DescribeVSwitches": _region(
        DryRun=Boolean(),
        PageNumber=Integer(1),
        PageSize=Integer(1, 50),
        Tag=TAG_FILTER,
        VpcId=Text(),
        VSwitchId=Text(),
        VSwitchName=Text(),
        ZoneId=Text(),
        not_simulated=("EnableIpv6", "IsDefault", "ResourceGroupId", "RouteTableId", "VSwitchOwnerId"),
    )
}
_RAM: Final = {"GetRole": Fields({"RoleName": Text(most=64)}, required=("RoleName",))}
_CLUSTER: Final = r"/clusters/(?P<ClusterId>[^/]+)"
_CS: Final = (
    ApiAction(service=CS, name="DescribeClusterDetail", parameters=_NOTHING, method="GET", path=_CLUSTER),
    ApiAction(
        service=CS,
        name="DescribeClusterAttachScripts",
        parameters=_NOTHING,
        path=f"{_CLUSTER}/attachscript",
        body=Fields(
            {
                "arch": Text("amd64", "arm64"),
                "expired": Integer(high=2**53),
                "format_disk": Boolean(),
                "keep_instance_name": Boolean(),
                "nodepool_id": Text(),
                "one_time_token": Boolean(),
                "rds_instances": Many(Text()),
            }
        ),
    ),
    ApiAction(
        service=CS,
        name="DescribeClusterNodePools",
        parameters=Fields({"NodepoolName": Text()}),
        method="GET",
        path=f"{_CLUSTER}/nodepools",
    ),
    ApiAction(
        service=CS,
        name="GetClusterAddonInstance",
        parameters=_NOTHING,
        method="GET",
        path=f"{_CLUSTER}/addon_instances/(?P<InstanceName>[^/]+)",
    ),
    ApiAction(
        service=CS,
        name="DescribeKubernetesVersionMetadata",
        parameters=Fields(
            {
                "ClusterType": Text("Kubernetes", "ManagedKubernetes"),
                "KubernetesVersion": Text(),
                "Mode": Text(),
                "Profile": Text(),
                "Region": Text(),
                "runtime": Text(),
            },
            required=("ClusterType", "Region"),
        ),
        method="GET",
        path="/api/v1/metadata/versions",
    ),
)
ACTIONS: Final[Mapping[str, ApiAction]] = {
    **{name: ApiAction(service=ECS, name=name, parameters=fields) for name, fields in _ECS.items()},
    **{name: ApiAction(service=VPC, name=name, parameters=fields) for name, fields in _VPC.items()},
    **{name: ApiAction(service=RAM, name=name, parameters=fields) for name, fields in _RAM.items()},
    **{action.name: action for action in _CS},
}
"""The supported actions by name; no two services share a name."""
