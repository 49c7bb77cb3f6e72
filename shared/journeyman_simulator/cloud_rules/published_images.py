"""Images that EKS publishes for a Kubernetes version, and the resources that an account has before an installation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from msgspec import Struct

_AL2023_RELEASE = "v20260715"
_AL2_RELEASE = "v20260715"
_BOTTLEROCKET_RELEASE = "1.44.0"
_EKS_OWNER, _BOTTLEROCKET_OWNER = "602401143452", "092701018921"  # the publishing accounts in most regions


class SeededAccount(Struct, frozen=True, kw_only=True):
    """The resources that an account has before Journeyman is installed."""

    cluster: str
    endpoint: str
    role: str
    security_group: str
    subnets: tuple[str, ...]
    images: dict[str, str]  # image id by image name


class PublishedImage(NamedTuple):
    """An image and the Systems Manager parameters that hold its id."""

    name: str
    architecture: str
    owner: str
    parameters: tuple[str, ...]  # the names of the SSM parameters with its id


def published_images(version: str) -> tuple[PublishedImage, ...]:
    """Return the images for a Kubernetes version such as "1.33"."""
    return (*_al2023(version), *_al2(version), *_bottlerocket(version))


def _al2023(version: str) -> Iterator[PublishedImage]:
    """Yield the AL2023 images. Restates: awslabs/amazon-eks-ami names, and the SSM paths in the EKS user guide."""
    for arch, variant in (
        ("x86_64", "standard"),
        ("arm64", "standard"),
        ("x86_64", "nvidia"),
        ("arm64", "nvidia"),
        ("x86_64", "neuron"),
    ):
        name = f"amazon-eks-node-al2023-{arch}-{variant}-{version}-{_AL2023_RELEASE}"
        path = f"/aws/service/eks/optimized-ami/{version}/amazon-linux-2023/{arch}/{variant}"
        yield PublishedImage(name, arch, _EKS_OWNER, (f"{path}/recommended/image_id", f"{path}/{name}/image_id"))


def _al2(version: str) -> Iterator[PublishedImage]:
    if tuple(int(part) for part in version.split(".")) >= (1, 33):
        return  # EKS stopped publishing AL2 images with 1.33
    for suffix, arch in (("", "x86_64"), ("-arm64", "arm64"), ("-gpu", "x86_64")):
        name = f"amazon-eks{suffix}-node-{version}-{_AL2_RELEASE}"
        path = f"/aws/service/eks/optimized-ami/{version}/amazon-linux-2{suffix}"
        yield PublishedImage(name, arch, _EKS_OWNER, (f"{path}/recommended/image_id", f"{path}/{name}/image_id"))


def _bottlerocket(version: str) -> Iterator[PublishedImage]:
    for variant in ("", "-nvidia"):
        for arch in ("x86_64", "arm64"):
            flavour = f"aws-k8s-{version}{variant}"
            name = f"bottlerocket-{flavour}-{'aarch64' if arch == 'arm64' else arch}-v{_BOTTLEROCKET_RELEASE}"
            path = f"/aws/service/bottlerocket/{flavour}/{arch}"
            yield PublishedImage(
                name, arch, _BOTTLEROCKET_OWNER, (f"{path}/latest/image_id", f"{path}/{_BOTTLEROCKET_RELEASE}/image_id")
            )
