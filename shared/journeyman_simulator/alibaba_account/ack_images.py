"""Implements the images that ACK publishes: DescribeImages, DescribeImageFromFamily, and the metadata's list."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from msgspec import Struct, field

from journeyman_simulator.alibaba_account.openapi_requests import (
    ActionHandlers,
    ActionRequest,
    has_tags,
    numbered_page,
    tag_entries,
    to_second,
)
from journeyman_simulator.cloud_rules.service_errors import ServiceError
from journeyman_simulator.cloud_rules.service_time import ServiceTime

_RELEASES: Final = ("20250429", "20260629")  # of the images at the start, the older first


class AckImageType(Struct, frozen=True, kw_only=True):
    """A kind of node image, of which ACK publishes releases. `image_id` is a pattern for its ids."""

    name: str  # as in the metadata's image_type
    family: str
    architecture: str
    os_name: str
    platform: str
    image_id: str
    size: int


_TYPES: Final = (
    AckImageType(
        name="AliyunLinux3",
        family="acs:alibaba_cloud_linux_3_2104_lts_x64",
        architecture="x86_64",
        os_name="Alibaba Cloud Linux  3.2104 LTS 64bit",
        platform="AliyunLinux",
        image_id="aliyun_3_x64_20G_alibase_{release}.vhd",
        size=20,
    ),
    AckImageType(
        name="AliyunLinux3Arm64",
        family="acs:alibaba_cloud_linux_3_2104_lts_arm64",
        architecture="arm64",
        os_name="Alibaba Cloud Linux  3.2104 LTS 64bit ARM Edition",
        platform="AliyunLinux",
        image_id="aliyun_3_arm64_20G_alibase_{release}.vhd",
        size=20,
    ),
    AckImageType(
        name="AliyunLinux3ContainerOptimized",
        family="acs:alibaba_cloud_linux_3_2104_lts_x64_container",
        architecture="x86_64",
        os_name="Alibaba Cloud Linux  3.2104 LTS 64bit Container Optimized Edition",
        platform="AliyunLinux",
        image_id="aliyun_3_x64_20G_container_optimized_alibase_{release}.vhd",
        size=20,
    ),
    AckImageType(
        name="ContainerOS",
        family="acs:containeros_3_x64",
        architecture="x86_64",
        os_name="ContainerOS 3 64bit",
        platform="ContainerOS",
        image_id="lifsea_3_x64_10G_containerd_{version}_alibase_{release}.vhd",
        size=10,
    ),
    AckImageType(
        name="ContainerOS",
        family="acs:containeros_3_arm64",
        architecture="arm64",
        os_name="ContainerOS 3 64bit ARM Edition",
        platform="ContainerOS",
        image_id="lifsea_3_arm64_10G_containerd_{version}_alibase_{release}.vhd",
        size=10,
    ),
)


class EcsImage(Struct, kw_only=True, eq=False):
    """A release of an image, or a custom image, which has no type."""

    id: str
    architecture: str
    created_at: datetime
    owner_alias: str = "system"
    type: AckImageType | None = None
    release: str = ""
    size: int = 20
    tags: dict[str, str] = field(default_factory=dict)


class EcsImages:
    """The images that the account can use."""

    def __init__(self, region: str, time: ServiceTime) -> None:
        self._region = region
        self._time = time
        self._version = "1_33"
        self.known: dict[str, EcsImage] = {}

    def publish_first(self, kubernetes_version: str) -> dict[str, str]:
        """Publish two releases of each type. Return the newer ids by type, and by type and architecture ("ContainerOS/arm64")."""
        self._version = "_".join(kubernetes_version.split(".")[:2])
        ids: dict[str, str] = {}
        for release in _RELEASES:
            ids.update(self.publish(release))
        return ids

    def publish(self, release: str) -> dict[str, str]:
        """Publish a release ("20260701") of each type, and return its ids as `publish_first` does."""
        ids: dict[str, str] = {}
        for kind in _TYPES:
            id_ = kind.image_id.format(release=release, version=self._version)
            self.known[id_] = EcsImage(
                id=id_,
                architecture=kind.architecture,
                created_at=self._time.now(),
                type=kind,
                release=release,
                size=kind.size,
            )
            ids.setdefault(kind.name, id_)
            ids[f"{kind.name}/{kind.architecture}"] = id_
        return ids

    def add_custom(self, image_id: str, architecture: str = "x86_64", *, tags: dict[str, str] | None = None) -> str:
        """Create a custom image of the account, and return its id."""
        self.known[image_id] = EcsImage(
            id=image_id,
            architecture=architecture,
            created_at=self._time.now(),
            owner_alias="self",
            tags=dict(tags or {}),
        )
        return image_id

    def withdraw(self, image_id: str) -> None:
        """Remove an image."""
        del self.known[image_id]

    def require(self, image_id: str) -> EcsImage:
        """Return an image. Raises ServiceError if it does not exist."""
        if image_id not in self.known:
            raise ServiceError("InvalidImageId.NotFound", f"The specified ImageId {image_id} does not exist.")
        return self.known[image_id]

    def latest_of_family(self, family: str) -> EcsImage | None:
        """Return the newest image of a family; None if the family does not exist."""
        found = [image for image in self.known.values() if image.type and image.type.family == family]
        return max(found, key=lambda image: image.release, default=None)

    def metadata(self) -> list[dict[str, Any]]:
        """Return the newest image of each type, as in Container Service's version metadata."""
        return [
            {
                "image_id": image.id,
                "image_name": image.type.os_name,
                "image_type": image.type.name,
                "image_category": "system",
                "architecture": image.architecture,
                "os_type": "Linux",
                "os_version": "3",
                "platform": image.type.platform,
            }
            for kind in _TYPES
            if (image := self.latest_of_family(kind.family)) and image.type
        ]

    def handlers(self) -> ActionHandlers:
        """Return the handlers of ECS's actions."""
        return {"DescribeImages": self._describe, "DescribeImageFromFamily": self._describe_from_family}

    def _describe(self, request: ActionRequest) -> dict[str, Any]:
        page, numbers = numbered_page(request, list(self._selected(request)))
        return {"RegionId": self._region, "Images": {"Image": [_image_entry(image) for image in page]}, **numbers}

    def _selected(self, request: ActionRequest) -> Iterator[EcsImage]:
        ids = request.get("ImageId")
        wanted = set(ids.split(",")) if ids else None
        for image in self.known.values():
            family = image.type.family if image.type else ""
            if (
                (wanted is None or image.id in wanted)
                and request.get("Architecture", image.architecture) == image.architecture
                and request.get("ImageOwnerAlias", image.owner_alias) == image.owner_alias
                and request.get("ImageFamily", family) == family
                and request.get("ImageName", image.id) == image.id
                and request.get("OSType", "linux") == "linux"
                and "Available" in request.get("Status", "Available").split(",")
                and has_tags(image.tags, request.tags())
            ):
                yield image

    def _describe_from_family(self, request: ActionRequest) -> dict[str, Any]:
        image = self.latest_of_family(request["ImageFamily"])
        return {"Image": _image_entry(image) if image else {}}


def _image_entry(image: EcsImage) -> dict[str, Any]:
    return {
        "ImageId": image.id,
        "ImageName": image.id,
        "ImageFamily": image.type.family if image.type else "",
        "ImageOwnerAlias": image.owner_alias,
        "Architecture": image.architecture,
        "OSType": "linux",
        "OSName": image.type.os_name if image.type else "Custom Linux",
        "Platform": image.type.platform if image.type else "Customized Linux",
        "Size": image.size,
        "Status": "Available",
        "CreationTime": to_second(image.created_at),
        "Tags": tag_entries(image.tags),
    }
