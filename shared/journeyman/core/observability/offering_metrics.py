"""Gauges of the catalogue: size of instance types, price and availability of offerings.

Restates: karpenter-provider-aws pkg/providers/instancetype/metrics.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from journeyman.core.api.resources import CPU, MEMORY
from journeyman.core.catalogue import InstanceType
from journeyman.core.observability.amounts import gauge, gauges_of_each, in_units
from journeyman.core.plan import Observation
from journeyman.core.state.skipped_objects import ref_of


def offering_gauges(types: Iterable[InstanceType]) -> Iterator[Observation]:
    """Yield gauges of each instance type and offering; of the first, if `types` has several with the same name."""
    seen: set[tuple[str, ...]] = set()

    def gauges(instance_type: InstanceType) -> Iterator[Observation]:
        name, capacity = instance_type.name, instance_type.capacity
        if (name,) not in seen:
            values = {"instance_type": name}
            cores, memory = in_units(CPU, capacity.get(CPU, 0)), in_units(MEMORY, capacity.get(MEMORY, 0))
            yield gauge("karpenter_cloudprovider_instance_type_cpu_cores", cores, values)
            yield gauge("karpenter_cloudprovider_instance_type_memory_bytes", memory, values)
            seen.add((name,))
        for offering in instance_type.offerings:
            key = (name, offering.capacity_type, offering.zone)
            if key not in seen and not offering.reservation_id:
                values = dict(zip(("instance_type", "capacity_type", "zone"), key, strict=True))
                yield gauge("karpenter_cloudprovider_instance_type_offering_available", offering.available, values)
                yield gauge("karpenter_cloudprovider_instance_type_offering_price_estimate", offering.price, values)
                seen.add(key)

    yield from gauges_of_each(types, gauges, about=lambda each: ref_of("InstanceType", each.name))
