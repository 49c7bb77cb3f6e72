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
    """Yield gauges of each instance type and offering; of the first, if `types` has several with the same name."""
    seen: set[tuple[str, ...]] = set()
    for instance_type in types:
        if (instance_type.name,) not in seen:
            seen.add((instance_type.name,))
            values = {"instance_type": instance_type.name}
            yield gauge(
                "karpenter_cloudprovider_instance_type_cpu_cores",
                in_units(CPU, instance_type.capacity.get(CPU, 0)),
                values,
            )
            yield gauge(
                "karpenter_cloudprovider_instance_type_memory_bytes", instance_type.capacity.get(MEMORY, 0), values
            )
        for offering in instance_type.offerings:
            key = (instance_type.name, offering.capacity_type, offering.zone)
            if key not in seen and not offering.reservation_id:
                seen.add(key)
                values = dict(zip(("instance_type", "capacity_type", "zone"), key, strict=True))
                yield gauge("karpenter_cloudprovider_instance_type_offering_available", offering.available, values)
                yield gauge("karpenter_cloudprovider_instance_type_offering_price_estimate", offering.price, values)
