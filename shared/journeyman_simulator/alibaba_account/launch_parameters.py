"""Defines the parameters of the two launching actions, RunInstances and CreateAutoProvisioningGroup, and what they share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from journeyman_simulator.alibaba_account.openapi_parameters import (
    Boolean,
    Decimal,
    Fields,
    Integer,
    JsonObject,
    Many,
    Text,
    WireType,
)

DISK_CATEGORIES: Final = ("cloud", "cloud_efficiency", "cloud_ssd", "cloud_essd", "cloud_auto", "cloud_essd_entry")
OWNER: Final[Mapping[str, WireType]] = {
    "OwnerAccount": Text(),
    "OwnerId": Integer(high=2**63),
    "ResourceOwnerAccount": Text(),
    "ResourceOwnerId": Integer(high=2**63),
}
_TAG_TEXT: Final = r"(?!.*https?://).*"
TAG: Final = Fields(
    {
        "Key": Text(least=1, most=128, pattern=r"(?!aliyun|acs:)" + _TAG_TEXT),
        "Value": Text(most=128, pattern=_TAG_TEXT),
    },
    required=("Key",),
)
TAG_FILTER: Final = Many(Fields({"Key": Text(least=1, most=128), "Value": Text(most=128)}, required=("Key",)), 20)
CLIENT_TOKEN: Final = Text(most=64, pattern=r"[\x20-\x7e]*")
_DIGITS: Final = Text(pattern=r"\d+")
PERFORMANCE_LEVELS: Final = ("PL0", "PL1", "PL2", "PL3")
SPOT_STRATEGY: Final = Text("NoSpot", "SpotAsPriceGo", "SpotWithPriceLimit")


def _data_disk(encrypted: WireType, key_name: str) -> Many:
    disk = {
        "Category": Text(*DISK_CATEGORIES),
        "DeleteWithInstance": Boolean(),
        "Description": Text(most=256),
        "Device": Text(),
        "DiskName": Text(most=128),
        "Encrypted": encrypted,
        key_name: Text(),
        "PerformanceLevel": Text(*PERFORMANCE_LEVELS),
        "Size": Integer(20, 32768),
        "SnapshotId": Text(),
    }
    return Many(Fields(disk, not_simulated=("AutoSnapshotPolicyId", "BurstingEnabled", "ProvisionedIops")), 16)


RUN_INSTANCES: Final = Fields(
    {
        **OWNER,
        "Amount": Integer(1, 100),
        "ClientToken": CLIENT_TOKEN,
        "DataDisk": _data_disk(Text("true", "false"), "KMSKeyId"),
        "DeletionProtection": Boolean(),
        "Description": Text(most=256),
        "DryRun": Boolean(),
        "HostName": Text(most=64),
        "HttpEndpoint": Text("enabled", "disabled"),
        "HttpTokens": Text("optional", "required"),
        "ImageFamily": Text(least=2, most=128),
        "ImageId": Text(),
        "InstanceChargeType": Text("PostPaid", "PrePaid"),
        "InstanceName": Text(least=2, most=128),
        "InstanceType": Text(),
        "InternetMaxBandwidthOut": Integer(0, 100),
        "IoOptimized": Text("optimized", "none"),
        "Ipv6AddressCount": Integer(0, 10),
        "KeyPairName": Text(),
        "MinAmount": Integer(1, 100),
        "Password": Text(least=8, most=30),
        "PasswordInherit": Boolean(),
        "PrivatePoolOptions": Fields({"Id": Text(), "MatchCriteria": Text("Open", "Target", "None")}),
        "RamRoleName": Text(),
        "RegionId": Text(),
        "ResourceGroupId": Text(),
        "SecurityEnhancementStrategy": Text("Active", "Deactive"),
        "SecurityGroupId": Text(),
        "SecurityGroupIds": Many(Text(), 16),
        "SpotDuration": Integer(0, 1),
        "SpotInterruptionBehavior": Text("Terminate", "Stop"),
        "SpotPriceLimit": Decimal(3),
        "SpotStrategy": SPOT_STRATEGY,
        "SystemDisk": Fields(
            {
                "Category": Text(*DISK_CATEGORIES),
                "Description": Text(most=256),
                "DiskName": Text(most=128),
                "Encrypted": Text("true", "false"),
                "KMSKeyId": Text(),
                "PerformanceLevel": Text(*PERFORMANCE_LEVELS),
                "Size": _DIGITS,
            },
            not_simulated=("AutoSnapshotPolicyId", "BurstingEnabled", "ProvisionedIops", "StorageClusterId"),
        ),
        "Tag": Many(TAG, 20),
        "UserData": Text(),
        "VSwitchId": Text(),
        "ZoneId": Text(),
    },
    required=("RegionId",),
    not_simulated=(
        *(
            "Affinity",
            "Arn",
            "AutoPay",
            "AutoReleaseTime",
            "AutoRenew",
            "AutoRenewPeriod",
            "ClockOptions",
            "CpuOptions",
        ),
        *("CreditSpecification", "DedicatedHostId", "DeploymentSetGroupNo", "DeploymentSetId", "HibernationOptions"),
        *("HostNames", "HpcClusterId", "HttpPutResponseHopLimit", "ImageOptions", "InternetChargeType"),
        *("InternetMaxBandwidthIn", "Ipv6Address", "Isp", "LaunchTemplateId", "LaunchTemplateName"),
        *("LaunchTemplateVersion", "NetworkInterface", "NetworkInterfaceQueueNumber", "NetworkOptions", "Period"),
        *("PeriodUnit", "PrivateDnsNameOptions", "PrivateIpAddress", "SchedulerOptions", "SecurityOptions"),
        *("StorageSetId", "StorageSetPartitionNumber", "Tenancy", "UniqueSuffix"),
    ),
)
_LAUNCH_CONFIGURATION: Final = Fields(
    {
        "DataDisk": _data_disk(Boolean(), "KmsKeyId"),
        "HostName": Text(most=64),
        "ImageFamily": Text(least=2, most=128),
        "ImageId": Text(),
        "InstanceDescription": Text(most=256),
        "InstanceName": Text(least=2, most=128),
        "InternetMaxBandwidthOut": Integer(0, 100),
        "IoOptimized": Text("optimized", "none"),
        "KeyPairName": Text(),
        "Password": Text(least=8, most=30),
        "PasswordInherit": Boolean(),
        "RamRoleName": Text(),
        "ResourceGroupId": Text(),
        "SecurityEnhancementStrategy": Text("Active", "Deactive"),
        "SecurityGroupId": Text(),
        "SecurityGroupIds": Many(Text(), 16),
        "SpotDuration": Integer(0, 1),
        "SpotInterruptionBehavior": Text("Terminate", "Stop"),
        "SystemDisk": Fields({"Encrypted": Text("true", "false"), "KMSKeyId": Text()}),
        "SystemDiskCategory": Text(*DISK_CATEGORIES),
        "SystemDiskName": Text(most=128),
        "SystemDiskDescription": Text(most=256),
        "SystemDiskPerformanceLevel": Text(*PERFORMANCE_LEVELS),
        "SystemDiskSize": Integer(20, 500),
        "Tag": Many(TAG, 20),
        "UserData": Text(),
    },
    not_simulated=(
        *("Arn", "AutoReleaseTime", "AutoRenew", "AutoRenewPeriod", "CpuOptions", "CreditSpecification"),
        *("DeploymentSetId", "HostNames", "ImageOptions", "InternetChargeType", "InternetMaxBandwidthIn", "Period"),
        *("PeriodUnit", "SchedulerOptions", "SecurityOptions"),
    ),
)
CREATE_GROUP: Final = Fields(
    {
        **OWNER,
        "AutoProvisioningGroupName": Text(least=2, most=128),
        "AutoProvisioningGroupType": Text("request", "instant", "maintain"),
        "ClientToken": CLIENT_TOKEN,
        "DefaultTargetCapacityType": Text("Spot", "PayAsYouGo"),
        "Description": Text(most=256),
        "ExcessCapacityTerminationPolicy": Text("no-termination", "termination"),
        "LaunchConfiguration": _LAUNCH_CONFIGURATION,
        "LaunchTemplateConfig": Many(
            Fields(
                {
                    "ImageId": Text(),
                    "InstanceType": Text(),
                    "MaxPrice": Decimal(),
                    "Priority": Integer(),
                    "VSwitchId": Text(),
                    "WeightedCapacity": Decimal(),
                },
                required=("VSwitchId",),
                not_simulated=(
                    *("Architectures", "BurstablePerformance", "Cores", "ExcludedInstanceTypes"),
                    *("InstanceFamilyLevel", "MaxQuantity", "Memories"),
                ),
            ),
            20,
        ),
        "MaxSpotPrice": Decimal(),
        "MinTargetCapacity": _DIGITS,
        "PayAsYouGoAllocationStrategy": Text("lowest-price", "prioritized"),
        "PayAsYouGoTargetCapacity": _DIGITS,
        "RegionId": Text(),
        "ResourceGroupId": Text(),
        "ResourcePoolOptions": JsonObject(
            Fields(
                {
                    "PrivatePoolIds": Many(Text(), 20),
                    "Strategy": Text("PrivatePoolFirst", "PrivatePoolOnly", "PublicPoolOnly", "None"),
                }
            )
        ),
        "SpotAllocationStrategy": Text("lowest-price", "diversified", "capacity-optimized"),
        "SpotInstanceInterruptionBehavior": Text("stop", "terminate"),
        "SpotTargetCapacity": _DIGITS,
        "SystemDiskConfig": Many(Fields({"DiskCategory": Text(*DISK_CATEGORIES)}, required=("DiskCategory",)), 10),
        "DataDiskConfig": Many(Fields({"DiskCategory": Text(*DISK_CATEGORIES)}, required=("DiskCategory",)), 10),
        "Tag": Many(TAG, 20),
        "TerminateInstances": Boolean(),
        "TerminateInstancesWithExpiration": Boolean(),
        "TotalTargetCapacity": _DIGITS,
    },
    required=("RegionId", "TotalTargetCapacity"),
    not_simulated=(
        *("CandidateOptions", "ExecutionMode", "HibernationOptionsConfigured", "LaunchTemplateId"),
        *("LaunchTemplateVersion", "PrePaidOptions", "SpotInstancePoolsToUseCount", "ValidFrom", "ValidUntil"),
    ),
)
