"""Gauges of the catalogue: size of instance types, price and availability of offerings.

Restates: karpenter-provider-aws pkg/providers/instancetype/metrics.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from journeyman.core.api.resources import CPU, MEMORY
from journeyman.core.catalogue import InstanceType
from journeyman.core.observability.amounts import gauge, in_units
from journeyman.core.plan import Observation


def offering_gauges(types: Iterable[InstanceType]) -> Iterator[Observation]:
    """Yield gauges of each instance type and offering, by name; if several NodeClasses have one, of the first."""
    seen: set[tuple[str, ...]] = set()
    for found in types:
        if (found.name,) not in seen:
            seen.add((found.name,))
            own = {"instance_type": found.name}
            yield gauge(
                "karpenter_cloudprovider_instance_type_cpu_cores", in_units(CPU, found.capacity.get(CPU, 0)), own
            )
            yield gauge("karpenter_cloudprovider_instance_type_memory_bytes", found.capacity.get(MEMORY, 0), own)
        for offering in found.offerings:
            key = (found.name, offering.capacity_type, offering.zone)
            if key not in seen and not offering.reservation_id:
                seen.add(key)
                bought = dict(zip(("instance_type", "capacity_type", "zone"), key, strict=True))
                yield gauge("karpenter_cloudprovider_instance_type_offering_available", offering.available, bought)
                yield gauge("karpenter_cloudprovider_instance_type_offering_price_estimate", offering.price, bought)
