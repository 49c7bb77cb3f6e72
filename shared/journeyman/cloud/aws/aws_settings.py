"""Settings of the AWS provider for one cluster, and its SDK clients."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from fractions import Fraction
from functools import cached_property
from typing import Any, Final

from cachetools import TTLCache
from msgspec import Struct

from journeyman.ports import Clock

# pricing.go: the Pricing API is served from few regions
_PRICING_ENDPOINTS: Final = (("ap-", "ap-south-1"), ("eu-", "eu-central-1"), ("cn-", "cn-northwest-1"))


_CACHED: Final = 1000
"""Entries of one cache, far more than a cluster needs."""


class AwsSettings(Struct, frozen=True, kw_only=True):
    """One EKS cluster. Names and defaults are Karpenter's where it has the setting."""

    cluster_name: str
    region: str
    cluster_endpoint: str = ""
    cluster_ca: str = ""  # base64 PEM, as DescribeCluster gives it
    kubernetes_version: str = "1.34"  # major.minor, selects the AMI aliases
    service_cidr: str = ""  # nodeadm (AL2023) needs it
    cluster_dns: str = ""  # IP of the kube-dns Service; empty leaves it to the AMI
    ipv6: bool = False
    vm_memory_overhead_percent: Fraction = Fraction(75, 1000)  # options.go VM_MEMORY_OVERHEAD_PERCENT
    reserved_enis: int = 0
    isolated_vpc: bool = False  # no IAM and no Pricing endpoint within reach
    max_parallel_launches: int = 8
    parallel_reads: bool = True  # off: one request after the other, so that a simulation repeats itself
    # karpenter-provider-aws pkg/controllers/providers/pricing: both every 12 h
    spot_refresh_period: timedelta | None = timedelta(hours=12)  # None: only when `refresh_prices` is called
    on_demand_refresh_period: timedelta | None = None  # a shipped table serves; the Pricing API is slow and large


def ttl_cache(clock: Clock, ttl: timedelta) -> TTLCache[Any, Any]:
    """Return an empty cache whose entries expire after `ttl` of the clock's time."""
    return TTLCache(_CACHED, ttl=ttl.total_seconds(), timer=lambda: clock.now().timestamp())


class Clients:
    """The AWS service clients, each made when it is first needed, since every one costs tens of ms of a cold start.

    Args:
        make: Gives a boto3 client for a service name and a region.
        region: The cluster's region.
    """

    def __init__(self, make: Callable[[str, str], Any], region: str) -> None:
        self._make = make
        self._region = region

    @cached_property
    def ec2(self) -> Any:
        """EC2."""
        return self._make("ec2", self._region)

    @cached_property
    def ssm(self) -> Any:
        """Systems Manager, for AMI parameters."""
        return self._make("ssm", self._region)

    @cached_property
    def iam(self) -> Any:
        """IAM, for instance profiles."""
        return self._make("iam", self._region)

    @cached_property
    def pricing(self) -> Any:
        """The Pricing API, at the endpoint that serves this region."""
        endpoint = next((where for prefix, where in _PRICING_ENDPOINTS if self._region.startswith(prefix)), "us-east-1")
        return self._make("pricing", endpoint)
