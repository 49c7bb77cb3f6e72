"""Find the vSwitches, security groups and images that an ECSNodeClass selects. Caches answers for a minute.

Restates: cloudpilot-ai/karpenter-provider-alibabacloud pkg/providers/{vswitch,securitygroup,imagefamily}.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from operator import attrgetter
from threading import Lock
from typing import Any, Final

from cachetools import TTLCache, cachedmethod
from msgspec import Struct

from journeyman.cloud.alibaba.alibaba_errors import translated
from journeyman.cloud.alibaba.cluster_details import ClusterDetails
from journeyman.cloud.alibaba.open_api import ECS, VPC, ApiCall, OpenApi
from journeyman.cloud.caching import ttl_cache
from journeyman.cloud.type_requirements import requirement
from journeyman.core.api import labels
from journeyman.core.api.ecs_settings import (
    ImageTerm,
    ResolvedImage,
    ResolvedSecurityGroup,
    ResolvedVSwitch,
    SecurityGroupTerm,
    VSwitchTerm,
)
from journeyman.errors import JourneymanError
from journeyman.ports import Clock

_TTL: Final = timedelta(minutes=1)
_VSWITCH_PAGE: Final = 50
_IMAGE_PAGE: Final = 100
_ARCHITECTURES: Final = {"x86_64": "amd64", "arm64": "arm64"}
_LATEST: Final = "latest"

IMAGE_FAMILIES: Final[Mapping[str, re.Pattern[str]]] = {
    "AlibabaCloudLinux3": re.compile(r"aliyun_3_.*G_alibase_(?P<version>[0-9]+).*\.vhd"),
    "ContainerOS": re.compile(r"lifsea_.*_alibase_(?P<version>[0-9]+).*\.vhd"),
}
"""The image ids of each alias's family; the version is the date of the release."""


class UnknownAliasError(JourneymanError):
    """No image of ACK has this alias."""


class FoundImage(Struct, frozen=True, kw_only=True):
    """An image; `created` is when, as ECS writes it, and empty for an image of ACK."""

    id: str
    name: str
    arch: str  # as in the label kubernetes.io/arch
    created: str = ""


class Discovery:
    """Finds what selector terms select in one region. Thread-safe."""

    def __init__(self, call: OpenApi, region: str, cluster: ClusterDetails, clock: Clock) -> None:
        self._call = call
        self._region = region
        self._cluster = cluster
        self._cache: TTLCache[Any, Any] = ttl_cache(clock, _TTL)
        self._lock = Lock()

    def vswitches(self, terms: Iterable[VSwitchTerm]) -> tuple[ResolvedVSwitch, ...]:
        """Return the vSwitches that any term selects, those with most free addresses first. Raises CloudProviderError."""
        found = {
            entry["VSwitchId"]: ResolvedVSwitch(
                id=entry["VSwitchId"],
                zone=entry["ZoneId"],
                free_addresses=int(entry.get("AvailableIpAddressCount") or 0),
            )
            for term in terms
            for entry in self._read_vswitches(_pairs(term.tags), term.id)
            if term.zone in ("", entry["ZoneId"])
        }
        return tuple(sorted(found.values(), key=lambda vswitch: (-vswitch.free_addresses, vswitch.id)))

    def free_addresses(self, ids: tuple[str, ...]) -> dict[str, int]:
        """Return the number of free addresses of these vSwitches by id. Raises CloudProviderError."""
        entries = (entry for id_ in ids for entry in self._describe_vswitches((), id_))
        return {entry["VSwitchId"]: int(entry.get("AvailableIpAddressCount") or 0) for entry in entries}

    def security_groups(self, terms: Iterable[SecurityGroupTerm]) -> tuple[ResolvedSecurityGroup, ...]:
        """Return the security groups that any term selects, by id. Raises CloudProviderError."""
        found = {
            entry["SecurityGroupId"]: entry.get("SecurityGroupName") or ""
            for term in terms
            for entry in self._read_groups(_pairs(term.tags), term.id, term.name)
            # ECS finds a part of the name as well
            if term.name in ("", entry.get("SecurityGroupName"))
        }
        return tuple(ResolvedSecurityGroup(id=id_, name=found[id_]) for id_ in sorted(found))

    def images(self, terms: Iterable[ImageTerm]) -> tuple[ResolvedImage, ...]:
        """Return the images that the terms select: for each architecture that of the first term, and of its images the newest.

        Raises:
            UnknownAliasError: A term's alias selects no image of ACK.
            CloudProviderError: Alibaba Cloud refused the request, or did not respond.
        """
        chosen: dict[str, FoundImage] = {}
        for term in terms:
            found = self._of_alias(term) if term.alias else self._read_images(_image_filter(term))
            for image in sorted(found, key=lambda image: (image.created, image.id), reverse=True):
                chosen.setdefault(image.arch, image)
        return tuple(
            ResolvedImage(id=chosen[arch].id, name=chosen[arch].name, requirements=(requirement(labels.ARCH, (arch,)),))
            for arch in sorted(chosen)
        )

    def _of_alias(self, term: ImageTerm) -> tuple[FoundImage, ...]:
        alias, family, version = term.alias, term.alias_family, term.alias_version
        pattern = IMAGE_FAMILIES.get(family)
        if pattern is None:
            known = ", ".join(sorted(IMAGE_FAMILIES))
            raise UnknownAliasError(f"alias {alias!r} names no image family of ACK; use one of {known}")
        matches = [
            (match["version"], image)
            for image in self._cluster.images()
            if (match := pattern.fullmatch(image.id)) is not None
        ]
        versions = sorted({found for found, _ in matches})
        images = [image for found, image in matches if version in (_LATEST, found)]
        if not images:
            raise UnknownAliasError(
                f"ACK publishes no image {alias} for Kubernetes {self._cluster.kubernetes_version}; "
                f"use {family}@latest or one of the versions {', '.join(versions) or '(none)'}"
            )
        newest: dict[str, FoundImage] = {}
        for found, image in sorted(((f, i) for f, i in matches if i in images), key=lambda match: match[0]):
            newest[image.arch] = FoundImage(id=image.id, name=image.name, arch=image.arch, created=found)
        return tuple(newest.values())

    @cachedmethod(attrgetter("_cache"), lock=attrgetter("_lock"))
    def _read_vswitches(self, tags: tuple[tuple[str, str], ...], id_: str) -> tuple[Mapping[str, Any], ...]:
        return tuple(self._describe_vswitches(tags, id_))

    def _describe_vswitches(self, tags: tuple[tuple[str, str], ...], id_: str) -> Iterator[Mapping[str, Any]]:
        parameters: dict[str, Any] = {"RegionId": self._region, "PageSize": _VSWITCH_PAGE, "PageNumber": 1}
        parameters |= {"VSwitchId": id_} if id_ else {"Tag": _tags(tags)}
        while True:
            with translated("vpc:DescribeVSwitches"):
                answer = self._call(ApiCall(service=VPC, action="DescribeVSwitches", parameters=dict(parameters)))
            page = (answer.get("VSwitches") or {}).get("VSwitch") or ()
            yield from page
            if len(page) < _VSWITCH_PAGE:
                return
            parameters["PageNumber"] += 1

    @cachedmethod(attrgetter("_cache"), lock=attrgetter("_lock"))
    def _read_groups(self, tags: tuple[tuple[str, str], ...], id_: str, name: str) -> tuple[Mapping[str, Any], ...]:
        filters: dict[str, Any] = {"SecurityGroupIds": json.dumps([id_])} if id_ else {}
        if name:
            filters["SecurityGroupName"] = name
        if tags:
            filters["Tag"] = _tags(tags)
        found: list[Mapping[str, Any]] = []
        more: dict[str, Any] = {"MaxResults": _IMAGE_PAGE}
        while True:
            parameters = {"RegionId": self._region, **filters, **more}
            with translated("ecs:DescribeSecurityGroups"):
                answer = self._call(ApiCall(service=ECS, action="DescribeSecurityGroups", parameters=parameters))
            found += (answer.get("SecurityGroups") or {}).get("SecurityGroup") or ()
            if not answer.get("NextToken"):
                return tuple(found)
            more["NextToken"] = answer["NextToken"]

    @cachedmethod(attrgetter("_cache"), lock=attrgetter("_lock"))
    def _read_images(self, filters: tuple[tuple[str, Any], ...]) -> tuple[FoundImage, ...]:
        found: list[FoundImage] = []
        number = 1
        given = {name: _tags(value) if name == "Tag" else value for name, value in filters}
        while True:
            parameters = {"RegionId": self._region, "PageSize": _IMAGE_PAGE, "PageNumber": number, **given}
            with translated("ecs:DescribeImages"):
                answer = self._call(ApiCall(service=ECS, action="DescribeImages", parameters=parameters))
            page = (answer.get("Images") or {}).get("Image") or ()
            found += [
                FoundImage(
                    id=entry["ImageId"],
                    name=entry.get("ImageName") or "",
                    arch=_ARCHITECTURES[entry["Architecture"]],
                    created=entry.get("CreationTime") or "",
                )
                for entry in page
                if entry.get("Architecture") in _ARCHITECTURES
            ]
            if len(page) < _IMAGE_PAGE:
                return tuple(found)
            number += 1


def _image_filter(term: ImageTerm) -> tuple[tuple[str, Any], ...]:
    """Return the filters of DescribeImages for a term without alias."""
    if term.id:
        return (("ImageId", term.id), ("ShowExpired", True))
    given = (
        ("ImageName", term.name),
        ("ImageFamily", term.family),
        ("ImageOwnerAlias", term.owner_alias),
        ("ImageOwnerId", term.owner_id),
        ("Tag", _pairs(term.tags)),
    )
    return tuple((name, value) for name, value in given if value)


def _pairs(tags: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(tags.items()))


def _tags(pairs: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    """Return the filter by tags; the value `*` matches any value."""
    return [{"Key": key} if value == "*" else {"Key": key, "Value": value} for key, value in pairs]
