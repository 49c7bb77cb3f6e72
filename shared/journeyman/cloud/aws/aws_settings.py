"""Settings of the AWS provider for one cluster, and its SDK clients."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from fractions import Fraction
from functools import cached_property
from typing import Any, Final

from msgspec import Struct

# pricing.go: the Pricing API is served from few regions
_PRICING_ENDPOINTS: Final = (("ap-", "ap-south-1"), ("eu-", "eu-central-1"), ("cn-", "cn-northwest-1"))


DEFAULT_MEMORY_OVERHEAD: Final = Fraction(75, 1000)  # options.go VM_MEMORY_OVERHEAD_PERCENT


class AwsSettings(Struct, frozen=True, kw_only=True):
    """Settings for one EKS cluster. Names and defaults are Karpenter's, where Karpenter has the setting."""

    cluster_name: str
    region: str
    cluster_endpoint: str = ""
    cluster_ca: str = ""  # base64 PEM, as DescribeCluster gives it
    kubernetes_version: str = "1.34"  # major.minor, selects the AMI aliases
    service_cidr: str = ""  # nodeadm (AL2023) needs it
    cluster_dns: str = ""  # address of the Service kube-dns; empty leaves it to the AMI
    ipv6: bool = False
    vm_memory_overhead_percent: Fraction = DEFAULT_MEMORY_OVERHEAD
    reserved_enis: int = 0
    isolated_vpc: bool = False  # the VPC reaches neither IAM nor the Pricing API
    reserved_capacity: bool = True  # the feature gate ReservedCapacity
    max_parallel_launches: int = 8
    parallel_reads: bool = True  # False sends requests one after another, so that a simulation is reproducible
    # karpenter-provider-aws pkg/controllers/providers/pricing: both every 12 h; None: never
    spot_refresh_period: timedelta | None = timedelta(hours=12)
    on_demand_refresh_period: timedelta | None = timedelta(hours=12)


class Clients:
    """The AWS service clients. Each is created on first use, since each adds tens of ms to a cold start.

    Args:
        create: Returns a boto3 client for a service name and a region.
        region: The cluster's region.
    """

    def __init__(self, create: Callable[[str, str], Any], region: str) -> None:
        self._create = create
        self._region = region

    @cached_property
    def ec2(self) -> Any:
        """Return the client of EC2."""
        return self._create("ec2", self._region)

    @cached_property
    def ssm(self) -> Any:
        """Return the client of Systems Manager, for AMI parameters."""
        return self._create("ssm", self._region)

    @cached_property
    def sts(self) -> Any:
        """Return the client of STS, which decodes authorization messages."""
        return self._create("sts", self._region)

    @cached_property
    def iam(self) -> Any:
        """Return the client of IAM, for instance profiles."""
        return self._create("iam", self._region)

    @cached_property
    def pricing(self) -> Any:
        """Return the client of the Pricing API, at the endpoint that serves this region."""
        endpoint = next(
            (region for prefix, region in _PRICING_ENDPOINTS if self._region.startswith(prefix)), "us-east-1"
        )
        return self._create("pricing", endpoint)
