"""AMI families with their default volumes, pod density and reservations.

Restates: karpenter-provider-aws pkg/providers/amifamily (`FeatureFlags`, `DefaultBlockDeviceMappings`,
`EphemeralBlockDevice`).
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from journeyman.cloud.kubelet_reservations import GIB

DEFAULT_VOLUME_BYTES: Final = 20 * GIB  # resolver.go `DefaultEBS`


class AmiBlockDevice(Struct, frozen=True, kw_only=True):
    """A default EBS volume (gp3, encrypted)."""

    name: str
    size_bytes: int = DEFAULT_VOLUME_BYTES


class AmiFamily(Struct, frozen=True, kw_only=True):
    """An AMI family. `ephemeral_device` names the volume of pods' ephemeral storage; empty if the family does not fix it."""

    name: str
    block_devices: tuple[AmiBlockDevice, ...] = ()
    ephemeral_device: str = ""
    eni_limited_pods: bool = True  # else 110 pods
    eni_limited_overhead: bool = True  # kube-reserved memory follows the ENI limit, even if maxPods is set
    pods_per_core: bool = True
    windows_year: str = ""
    windows_build: str = ""

    @property
    def is_windows(self) -> bool:
        """Whether nodes run Windows."""
        return bool(self.windows_year)

    @property
    def os(self) -> str:
        """Return the value of the label `kubernetes.io/os`."""
        return "windows" if self.is_windows else "linux"


def _windows(year: str, build: str) -> AmiFamily:
    return AmiFamily(
        name=f"Windows{year}",
        block_devices=(AmiBlockDevice(name="/dev/sda1", size_bytes=50 * GIB),),
        ephemeral_device="/dev/sda1",
        eni_limited_pods=False,
        eni_limited_overhead=False,
        windows_year=year,
        windows_build=build,
    )


AL2: Final = AmiFamily(name="AL2", block_devices=(AmiBlockDevice(name="/dev/xvda"),), ephemeral_device="/dev/xvda")
AL2023: Final = AmiFamily(
    name="AL2023", block_devices=(AmiBlockDevice(name="/dev/xvda"),), ephemeral_device="/dev/xvda"
)
BOTTLEROCKET: Final = AmiFamily(
    name="Bottlerocket",
    block_devices=(AmiBlockDevice(name="/dev/xvda", size_bytes=4 * GIB), AmiBlockDevice(name="/dev/xvdb")),
    ephemeral_device="/dev/xvdb",
    eni_limited_overhead=False,
    pods_per_core=False,
)
CUSTOM: Final = AmiFamily(name="Custom")

FAMILIES: Final = {
    family.name: family
    for family in (
        AL2,
        AL2023,
        BOTTLEROCKET,
        CUSTOM,
        _windows("2019", "10.0.17763"),
        _windows("2022", "10.0.20348"),
        _windows("2025", "10.0.26100"),
    )
}
BY_ALIAS: Final = {family.name.lower(): family for family in FAMILIES.values() if family is not CUSTOM}
