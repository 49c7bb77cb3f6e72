"""The network of a CCE cluster: its mode and VPC, and the subnets that a CCENodeClass selects. Caches answers for a minute.

Subnets of Huawei Cloud belong to a region, not to a zone.

Restates: huaweicloud-samples/karpenter-provider-huawei pkg/providers/subnet/subnet.go.
Differs: subnets of another VPC than the cluster's, which CCE refuses, do not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from operator import attrgetter
from threading import Lock
from typing import Any, Final

from cachetools import TTLCache, cachedmethod
from msgspec import Struct

from journeyman.cloud.caching import ttl_cache
from journeyman.cloud.huawei.huawei_errors import translated, translated_of_cluster
from journeyman.cloud.huawei.huawei_settings import HuaweiSettings
from journeyman.cloud.huawei.rest_api import CCE, VPC, Query, RestApi, RestCall, last_id, pages
from journeyman.core.api.ccenodeclass import SubnetSelectorTerm
from journeyman.ports import Clock

_SUBNETS_TTL: Final = timedelta(minutes=1)
_CLUSTER_TTL: Final = timedelta(hours=1)  # a cluster's network cannot be changed
_PAGE: Final = 500


class FoundSubnet(Struct, frozen=True, kw_only=True):
    """A subnet."""

    id: str
    name: str
    vpc_id: str
    free_addresses: int


class ClusterNetwork:
    """The network of one CCE cluster. Thread-safe."""

    def __init__(self, api: RestApi, settings: HuaweiSettings, clock: Clock) -> None:
        self._api = api
        self._settings = settings
        self._clusters: TTLCache[Any, Mapping[str, Any]] = ttl_cache(clock, _CLUSTER_TTL)
        self._subnets: TTLCache[Any, tuple[FoundSubnet, ...]] = ttl_cache(clock, _SUBNETS_TTL)
        self._lock = Lock()

    def mode(self) -> str:
        """Return the mode of the container network: `eni` (CCE Turbo), `vpc-router` or `overlay_l2`. Raises CloudProviderError."""
        return str((self._cluster().get("containerNetwork") or {}).get("mode") or "")

    def vpc(self) -> str:
        """Return the id of the cluster's VPC; empty if CCE does not say. Raises CloudProviderError."""
        return str((self._cluster().get("hostNetwork") or {}).get("vpc") or "")

    def select(self, terms: Iterable[SubnetSelectorTerm]) -> tuple[FoundSubnet, ...]:
        """Return the subnets that match a term, those with most free addresses first, of any VPC. Raises CloudProviderError."""
        wanted = tuple(terms)
        found = [subnet for subnet in self._all_subnets() if any(_matches(subnet, term) for term in wanted)]
        return tuple(sorted(found, key=lambda subnet: (-subnet.free_addresses, subnet.id)))

    def free_addresses(self, ids: tuple[str, ...]) -> Mapping[str, int]:
        """Return the free addresses of subnets by id. Raises CloudProviderError."""
        return {subnet.id: subnet.free_addresses for subnet in self._all_subnets() if subnet.id in ids}

    @cachedmethod(attrgetter("_clusters"), lock=attrgetter("_lock"))
    def _cluster(self) -> Mapping[str, Any]:
        settings = self._settings
        path = f"/api/v3/projects/{settings.project_id}/clusters/{settings.cluster_id}"
        with translated_of_cluster("cce:cluster:get", settings.cluster_id):
            answer = self._api(RestCall(service=CCE, operation="ShowCluster", method="GET", path=path))
        found: Mapping[str, Any] = answer.get("spec") or {}
        return found

    @cachedmethod(attrgetter("_subnets"), lock=attrgetter("_lock"))
    def _all_subnets(self) -> tuple[FoundSubnet, ...]:
        return tuple(
            FoundSubnet(
                id=entry["id"],
                name=entry.get("name") or "",
                vpc_id=entry.get("vpc_id") or "",
                free_addresses=int(entry.get("available_ip_address_count") or 0),
            )
            for entry in self._pages()
        )

    def _pages(self) -> Iterator[Mapping[str, Any]]:
        path = f"/v1/{self._settings.project_id}/subnets"

        def read(marker: Query) -> Any:
            call = RestCall(
                service=VPC, operation="ListSubnets", method="GET", path=path, query={"limit": _PAGE, **marker}
            )
            with translated("vpc:subnets:get"):
                return self._api(call).get("subnets") or ()

        for entries in pages(read, lambda entries: last_id(entries, of=_PAGE)):
            yield from entries


def _matches(subnet: FoundSubnet, term: SubnetSelectorTerm) -> bool:
    return (term.id is None or term.id == subnet.id) and (term.name is None or term.name == subnet.name)
