"""Find the AMIs of an EC2NodeClass by id, name, tags, SSM parameter or alias, with the instance types they fit.

Restates: karpenter-provider-aws pkg/providers/amifamily (ami.go, types.go, al2.go, al2023.go, bottlerocket.go, windows.go).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta, timezone
from operator import attrgetter
from threading import Lock
from typing import Any, Final

from cachetools import TTLCache, cachedmethod
from cachetools.keys import hashkey
from msgspec import Struct, field

from journeyman.cloud.aws.ami_families import AL2, AL2023, BOTTLEROCKET, AmiFamily
from journeyman.cloud.aws.aws_errors import translated
from journeyman.cloud.aws.aws_settings import AwsSettings, Clients
from journeyman.cloud.aws.instance_type_labels import ACCELERATOR_COUNT, GPU_COUNT
from journeyman.cloud.aws.network_discovery import tag_filters
from journeyman.cloud.aws.nodeclass_view import AmiAlias, NodeClassView
from journeyman.cloud.caching import ttl_cache
from journeyman.core.api import labels
from journeyman.core.api.ec2nodeclass_selectors import AMISelectorTerm
from journeyman.ports import JSON, Clock

Requirement = tuple[str, str, tuple[str, ...]]
"""A requirement on the labels of an instance type: (label, operator, values)."""

_ALIAS_TTL: Final = timedelta(hours=24)
_CUSTOM_TTL: Final = timedelta(minutes=5)
_IMAGES_TTL: Final = timedelta(minutes=1)
_NAMES_PER_CALL: Final = 10  # ssm:GetParameters
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_ARCHITECTURES: Final = {"x86_64": "amd64", "arm64": "arm64"}

# types.go `Variant.Requirements`
_STANDARD: Final = ((ACCELERATOR_COUNT, "DoesNotExist", ()), (GPU_COUNT, "DoesNotExist", ()))
_NVIDIA: Final = ((GPU_COUNT, "Exists", ()),)
_NEURON: Final = ((ACCELERATOR_COUNT, "Exists", ()),)
_Variant = tuple[Requirement, ...]


class UnsupportedAliasError(Exception):
    """The alias has no AMI for this Kubernetes version. `NodeClassReconciler` reports it as a condition."""


class Ami(Struct, frozen=True, kw_only=True):
    """An AMI, with requirements that instance types must meet to launch from it. An image with n variants gives n of them."""

    id: str
    name: str
    created: datetime
    deprecated: bool
    requirements: tuple[Requirement, ...]

    def to_status(self) -> dict[str, Any]:
        """Return the entry of `status.amis`."""
        entries = [
            {"key": key, "operator": operator, **({"values": list(values)} if values else {})}
            for key, operator, values in sorted(self.requirements, key=lambda r: (len(r[0]), r))
        ]
        return {
            "id": self.id,
            "name": self.name,
            **({"deprecated": True} if self.deprecated else {}),
            "requirements": entries,
        }


class _Query(Struct, frozen=True, kw_only=True):
    """A DescribeImages request. `variants` maps an image id to the variants of the SSM parameters that hold the id."""

    filters: tuple[tuple[str, tuple[str, ...]], ...]
    owners: tuple[str, ...] = ()
    variants: Mapping[str, tuple[_Variant, ...]] = field(default_factory=dict)


class AmiProvider:
    """Finds AMIs. Caches the parameters of aliases for 24 h, those of users for 5 min, and image descriptions for 1 min."""

    def __init__(self, clients: Clients, settings: AwsSettings, clock: Clock) -> None:
        self._clients = clients
        self._settings = settings
        self._alias_cache: TTLCache[Any, Mapping[str, str]] = ttl_cache(clock, _ALIAS_TTL)
        self._parameter_cache: TTLCache[Any, Mapping[str, str]] = ttl_cache(clock, _CUSTOM_TTL)
        self._image_cache: TTLCache[Any, tuple[JSON, ...]] = ttl_cache(clock, _IMAGES_TTL)
        self._lock = Lock()

    def find(self, node_class: NodeClassView, now: datetime) -> tuple[Ami, ...]:
        """Return the best AMI for each set of requirements, newest first; empty if the terms match none.

        An AMI that is not deprecated is better than a deprecated one; then the newest is best, then the last by name.

        Raises:
            UnsupportedAliasError: The alias has no images for this Kubernetes version.
            CloudProviderError: AWS did not respond.
        """
        best: dict[tuple[Requirement, ...], Ami] = {}
        for query in self._queries(node_class):
            for description in self._describe(query):
                for image in _images(description, query.variants, now):
                    current = best.get(image.requirements)
                    if current is None or _rank(image) > _rank(current):
                        best[image.requirements] = image
        found = sorted(best.values(), key=lambda i: (i.id, i.requirements))
        if node_class.alias and any(image.deprecated for image in found):
            self._drop_cached_alias(node_class.alias)
        return tuple(sorted(found, key=lambda image: image.created, reverse=True))

    def _queries(self, node_class: NodeClassView) -> list[_Query]:
        if node_class.alias is not None:
            return self._alias_queries(node_class.alias)
        queries: list[_Query] = []
        ids: list[str] = []
        for term in node_class.spec.ami_selector_terms:
            if term.id:
                ids.append(term.id)
            elif term.ssm_parameter:
                ids += self._custom_parameter(term.ssm_parameter)
            else:
                queries.append(_term_query(term))
        return [*queries, *([_Query(filters=(("image-id", tuple(sorted(set(ids)))),))] if ids else [])]

    def _alias_queries(self, alias: AmiAlias) -> list[_Query]:
        check_supported(alias.family, self._settings.kubernetes_version)
        paths = alias_parameters(alias.family, self._settings.kubernetes_version, alias.version)
        values = self._alias_parameters(tuple(paths))
        by_image: dict[str, tuple[_Variant, ...]] = {}
        for path, variants in paths.items():
            if path in values:
                by_image[values[path]] = (*by_image.get(values[path], ()), *variants)
        return [_Query(filters=(("image-id", tuple(sorted(by_image))),), variants=by_image)] if by_image else []

    def _drop_cached_alias(self, alias: AmiAlias) -> None:
        """Drop the alias from the cache, since AWS may have published a newer AMI than the deprecated one."""
        paths = tuple(alias_parameters(alias.family, self._settings.kubernetes_version, alias.version))
        with self._lock:
            self._alias_cache.pop(hashkey(paths), None)

    @cachedmethod(attrgetter("_alias_cache"), key=lambda _, names: hashkey(names), lock=attrgetter("_lock"))
    def _alias_parameters(self, names: tuple[str, ...]) -> Mapping[str, str]:
        return self._get_parameters(names)

    @cachedmethod(attrgetter("_parameter_cache"), lock=attrgetter("_lock"))
    def _user_parameters(self, names: tuple[str, ...]) -> Mapping[str, str]:
        return self._get_parameters(names)

    def _custom_parameter(self, name: str) -> list[str]:
        """Return the AMI id in a user's SSM parameter; an empty list if it does not exist or holds no AMI id."""
        values = self._user_parameters((name,))
        return [value for value in values.values() if value.startswith("ami-")]

    def _get_parameters(self, names: tuple[str, ...]) -> dict[str, str]:
        """Return the parameters' values by name; a parameter that does not exist is left out."""
        values: dict[str, str] = {}
        for start in range(0, len(names), _NAMES_PER_CALL):
            with translated("ssm:GetParameters"):
                reply = self._clients.ssm.get_parameters(Names=list(names[start : start + _NAMES_PER_CALL]))
            values.update((parameter["Name"], parameter["Value"]) for parameter in reply["Parameters"])
        return values

    @cachedmethod(
        attrgetter("_image_cache"), key=lambda _, query: hashkey(query.filters, query.owners), lock=attrgetter("_lock")
    )
    def _describe(self, query: _Query) -> tuple[JSON, ...]:
        filters: list[dict[str, Any]] = [{"Name": name, "Values": list(values)} for name, values in query.filters]
        filters.append({"Name": "state", "Values": ["available"]})
        owners = {"Owners": list(query.owners)} if query.owners else {}
        pages = self._clients.ec2.get_paginator("describe_images")
        with translated("ec2:DescribeImages"):
            return tuple(
                image
                for page in pages.paginate(Filters=filters, IncludeDeprecated=True, **owners)
                for image in page["Images"]
            )


def _term_query(term: AMISelectorTerm) -> _Query:
    """Return the query for a term. A name without an owner matches images of this account and of Amazon."""
    filters = tag_filters(term.tags)
    owners: tuple[str, ...] = (term.owner,) if term.owner else ()
    if term.name:
        filters = (("name", (term.name,)), *filters)
        owners = owners or ("self", "amazon")
    return _Query(filters=filters, owners=owners)


def _images(description: JSON, variants: Mapping[str, tuple[_Variant, ...]], now: datetime) -> Iterable[Ami]:
    arch = _ARCHITECTURES.get(description.get("Architecture", ""))
    if arch is None:
        return
    for variant in variants.get(description["ImageId"], ((),)):
        yield Ami(
            id=description["ImageId"],
            name=description.get("Name", ""),
            created=_time(description.get("CreationDate")) or _EPOCH,
            deprecated=(_time(description.get("DeprecationTime")) or now + timedelta(days=1)) <= now,
            requirements=tuple(sorted((*variant, (labels.ARCH, "In", (arch,))))),
        )


def _rank(image: Ami) -> tuple[bool, datetime, str]:
    return (not image.deprecated, image.created, image.name)


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text.replace("Z", "+00:00")) if text else None


def check_supported(family: AmiFamily, kubernetes_version: str) -> None:
    """Raise UnsupportedAliasError if EKS builds no images of that family for that version."""
    minor = int(kubernetes_version.split(".")[1])
    if family is AL2 and minor >= 33:
        raise UnsupportedAliasError("AL2 aliases are no longer supported on EKS 1.33+")
    if family.windows_year == "2025" and minor < 35:
        raise UnsupportedAliasError(f"Windows Server 2025 requires EKS 1.35 or higher, not {kubernetes_version}")


def alias_parameters(family: AmiFamily, kubernetes_version: str, version: str) -> dict[str, tuple[_Variant, ...]]:
    """Return the paths of an alias's SSM parameters, each with the requirements of its image."""
    if family is AL2023:
        return _al2023_parameters(kubernetes_version, version)
    if family is BOTTLEROCKET:
        return _bottlerocket_parameters(kubernetes_version, version.removeprefix("v"))
    if family is AL2:
        return _al2_parameters(kubernetes_version, version)
    name = f"Windows_Server-{family.windows_year}-English-Core-EKS_Optimized-{kubernetes_version}"
    windows = ((labels.OS, "In", ("windows",)), (labels.WINDOWS_BUILD, "In", (family.windows_build,)))
    return {f"/aws/service/ami-windows-latest/{name}/image_id": (windows,)}


def _al2023_parameters(kubernetes: str, version: str) -> dict[str, tuple[_Variant, ...]]:
    variants = {"standard": _STANDARD, "nvidia": _NVIDIA, "neuron": _NEURON}
    parameters: dict[str, tuple[_Variant, ...]] = {}
    for arch, names in (("x86_64", ("standard", "nvidia", "neuron")), ("arm64", ("standard", "nvidia"))):
        for name in names:
            build = f"amazon-eks-node-al2023-{arch}-{name}-{kubernetes}-{version}"
            leaf = "recommended" if version == "latest" else build
            path = f"/aws/service/eks/optimized-ami/{kubernetes}/amazon-linux-2023/{arch}/{name}/{leaf}/image_id"
            parameters[path] = (variants[name],)
    return parameters


def _al2_parameters(kubernetes: str, version: str) -> dict[str, tuple[_Variant, ...]]:
    parameters: dict[str, tuple[_Variant, ...]] = {}
    for suffix, variants in (("", (_STANDARD,)), ("-arm64", (_STANDARD,)), ("-gpu", (_NEURON, _NVIDIA))):
        build = f"amazon-eks{suffix}-node-{kubernetes}-{version}"
        leaf = "recommended" if version == "latest" else build
        parameters[f"/aws/service/eks/optimized-ami/{kubernetes}/amazon-linux-2{suffix}/{leaf}/image_id"] = variants
    return parameters


def _bottlerocket_parameters(kubernetes: str, version: str) -> dict[str, tuple[_Variant, ...]]:
    root = f"/aws/service/bottlerocket/aws-k8s-{kubernetes}"
    return {
        f"{root}/x86_64/{version}/image_id": (_STANDARD, _NEURON),
        f"{root}/arm64/{version}/image_id": (_STANDARD,),
        f"{root}-nvidia/x86_64/{version}/image_id": (_NVIDIA,),
        f"{root}-nvidia/arm64/{version}/image_id": (_NVIDIA,),
    }
