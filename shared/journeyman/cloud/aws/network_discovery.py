"""Find the subnets and security groups that match all fields of any one selector term, and the placement group.

Restates: karpenter-provider-aws pkg/providers/subnet/subnet.go `getFilterSets`, pkg/providers/securitygroup.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from operator import attrgetter
from threading import Lock
from typing import Any, Final

from cachetools import TTLCache, cachedmethod
from msgspec import Struct

from journeyman.cloud.aws.aws_errors import error_code, translated
from journeyman.cloud.aws.aws_settings import Clients
from journeyman.cloud.aws.nodeclass_view import NodeClassView
from journeyman.cloud.caching import ttl_cache
from journeyman.core.api.ec2nodeclass_selectors import SecurityGroupSelectorTerm, SubnetSelectorTerm
from journeyman.errors import CloudProviderError
from journeyman.ports import JSON, Clock

Filters = tuple[tuple[str, tuple[str, ...]], ...]
"""EC2 filters, all of which must match: (name, values of which one must match)."""

_NO_SUCH_GROUP: Final = ("InvalidPlacementGroup.Unknown", "InvalidPlacementGroupId.Malformed")
_TTL: Final = timedelta(minutes=1)  # cache.go `DefaultTTL`


def tag_filters(tags: Mapping[str, str] | None) -> Filters:
    """Return tag filters by key; the value `*` matches any value."""
    return tuple(
        ("tag-key", (key,)) if value == "*" else (f"tag:{key}", (value,)) for key, value in sorted((tags or {}).items())
    )


def filter_sets(
    terms: Iterable[SubnetSelectorTerm | SecurityGroupSelectorTerm], *, id_filter: str
) -> tuple[Filters, ...]:
    """Return one set of filters per term; the ids of all terms share one set."""
    sets: list[Filters] = []
    ids: set[str] = set()
    for term in terms:
        if term.id:
            ids.add(term.id)
        else:
            name = term.name if isinstance(term, SecurityGroupSelectorTerm) else None
            sets.append((*([("group-name", (name,))] if name else []), *tag_filters(term.tags)))
    # a set without filters would match every object in the account
    return (*filter(None, sets), *([((id_filter, tuple(sorted(ids))),)] if ids else []))


class PlacementGroup(Struct, frozen=True, kw_only=True):
    """A placement group; `partitions` is the number of its partitions, 0 unless the strategy is `partition`."""

    id: str
    strategy: str
    partitions: int = 0

    @property
    def partition_numbers(self) -> tuple[str, ...]:
        """Return the values of the label with a node's partition."""
        return tuple(str(number) for number in range(1, self.partitions + 1))


class PlacementGroupProvider:
    """Finds the placement groups that NodeClasses select. Caches responses for a minute. Thread-safe.

    Restates: karpenter-provider-aws pkg/providers/placementgroup/provider.go.
    """

    def __init__(self, clients: Clients, clock: Clock) -> None:
        self._clients = clients
        self._cache: TTLCache[Any, PlacementGroup | None] = ttl_cache(clock, _TTL)
        self._lock = Lock()

    def find(self, node_class: NodeClassView) -> PlacementGroup | None:
        """Return the available placement group that the NodeClass selects; None if it selects none, or there is none.

        Raises:
            CloudProviderError: EC2 did not respond, or rejected the call.
        """
        selector = node_class.spec.placement_group_selector
        return self._read(selector.name or "", selector.id or "") if selector is not None else None

    @cachedmethod(attrgetter("_cache"), lock=attrgetter("_lock"))
    def _read(self, name: str, id_: str) -> PlacementGroup | None:
        try:
            with translated("ec2:DescribePlacementGroups"):
                parameters = {"GroupNames": [name]} if name else {"GroupIds": [id_]}
                found = self._clients.ec2.describe_placement_groups(**parameters)["PlacementGroups"]
        except CloudProviderError as error:
            if error_code(error) in _NO_SUCH_GROUP:
                return None
            raise
        groups = (
            PlacementGroup(id=g["GroupId"], strategy=g["Strategy"], partitions=g.get("PartitionCount") or 0)
            for g in found
            if g["State"] == "available"
        )
        return next(groups, None)


class NetworkDiscovery:
    """Finds the subnets and security groups that a NodeClass selects. Caches responses for a minute."""

    def __init__(self, clients: Clients, clock: Clock) -> None:
        self._clients = clients
        self._cache: TTLCache[Any, tuple[JSON, ...]] = ttl_cache(clock, _TTL)
        self._lock = Lock()

    def subnets(self, node_class: NodeClassView) -> list[dict[str, str]]:
        """Return the entries of `status.subnets`, most free IP addresses first, then by id."""
        sets = filter_sets(node_class.spec.subnet_selector_terms, id_filter="subnet-id")
        found = {s["SubnetId"]: s for s in self._select("describe_subnets", "Subnets", sets)}
        ordered = sorted(found.values(), key=lambda s: (-s["AvailableIpAddressCount"], s["SubnetId"]))
        return [
            {"id": s["SubnetId"], "zone": s["AvailabilityZone"], "zoneID": s.get("AvailabilityZoneId", "")}
            for s in ordered
        ]

    def security_groups(self, node_class: NodeClassView) -> list[dict[str, str]]:
        """Return the entries of `status.securityGroups`, by id."""
        sets = filter_sets(node_class.spec.security_group_selector_terms, id_filter="group-id")
        found = {g["GroupId"]: g for g in self._select("describe_security_groups", "SecurityGroups", sets)}
        return [{"id": id_, "name": found[id_]["GroupName"]} for id_ in sorted(found)]

    @cachedmethod(attrgetter("_cache"), lock=attrgetter("_lock"))
    def _select(self, operation: str, result: str, sets: tuple[Filters, ...]) -> tuple[JSON, ...]:
        pages = self._clients.ec2.get_paginator(operation)
        found: list[JSON] = []
        for filters in sets:
            parameters = [{"Name": name, "Values": list(values)} for name, values in filters]
            with translated(f"ec2:Describe{result}"):
                for page in pages.paginate(Filters=parameters):
                    found += page[result]
        return tuple(found)


def free_addresses(clients: Clients, subnet_ids: tuple[str, ...]) -> dict[str, int]:
    """Return the number of free addresses of these subnets by id. Raises CloudProviderError."""
    filters: list[dict[str, Any]] = [{"Name": "subnet-id", "Values": list(subnet_ids)}]
    with translated("ec2:DescribeSubnets"):
        pages = clients.ec2.get_paginator("describe_subnets").paginate(Filters=filters)
        return {s["SubnetId"]: s["AvailableIpAddressCount"] for page in pages for s in page["Subnets"]}
