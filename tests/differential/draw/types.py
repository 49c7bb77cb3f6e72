"""Instance types: few families and sizes, on-demand and Spot, in up to three zones, some offerings unavailable."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from tests.differential.draw.words import (
    ARCH,
    CAPACITY_TYPE,
    CPU,
    FAMILY,
    GENERATION,
    GPU,
    INSTANCE_TYPE,
    OS,
    RESERVATION,
    ZONE,
    Draw,
    Features,
    JSONDict,
    chance,
    pick,
    pick_some,
    require,
)


@dataclass(frozen=True, kw_only=True)
class Family:
    """An instance family. `price` is per vCPU and hour."""

    name: str
    gib_per_cpu: int
    price: float
    arch: str = "amd64"
    gpus_per_cpu: float = 0


CPU_FAMILIES = (
    Family(name="m5", gib_per_cpu=4, price=0.048),
    Family(name="c6", gib_per_cpu=2, price=0.0425),
    Family(name="r7", gib_per_cpu=8, price=0.063),
    Family(name="t4", gib_per_cpu=4, price=0.034, arch="arm64"),
)
GPU_FAMILY = Family(name="g5", gib_per_cpu=4, price=0.13, gpus_per_cpu=0.25)
SIZES = (2, 4, 8, 16, 1, 32, 64)


@st.composite
def catalogues(draw: Draw, features: Features, max_types: int = 40) -> list[JSONDict]:
    """Draw instance types that differ in family or size, sorted by name."""
    families = [*pick_some(draw, CPU_FAMILIES), *([GPU_FAMILY] if features.gpus else [])]
    zones = ("a", "b", "c")[: pick(draw, (3, 2, 1))]
    family_sizes = [(family, cpus) for family in families for cpus in SIZES]
    min_types = min(len(family_sizes), pick(draw, (10, 3, 1, 20)))
    indices = draw(st.sets(st.integers(0, len(family_sizes) - 1), min_size=min_types, max_size=max_types))
    chosen = [family_sizes[index] for index in sorted(indices)]
    found = [draw(_instance_types(family, cpus, zones, features)) for family, cpus in chosen]
    return sorted(found, key=lambda t: str(t["name"]))


@st.composite
def _instance_types(draw: Draw, family: Family, cpus: int, all_zones: tuple[str, ...], features: Features) -> JSONDict:
    name = f"{family.name}.{cpus}x"
    zones = [zone for zone in all_zones if not chance(draw, 15)] or list(all_zones[:1])
    offerings = [offer for zone in zones for offer in draw(_offerings(family.price * cpus, zone, name, features))]
    capacity = {
        "cpu": str(cpus),
        "memory": f"{cpus * family.gib_per_cpu}Gi",
        "pods": pick(draw, ("110", "58", "29", "8")),
        "ephemeral-storage": "20Gi",
    }
    if family.gpus_per_cpu:
        capacity[GPU] = str(max(1, int(cpus * family.gpus_per_cpu)))
    return {
        "name": name,
        "requirements": [
            require(INSTANCE_TYPE, "In", name),
            require(ARCH, "In", family.arch),
            require(OS, "In", "linux"),
            require(ZONE, "In", *zones),
            require(CAPACITY_TYPE, "In", *sorted({requirement_value(o, CAPACITY_TYPE) for o in offerings})),
            require(CPU, "In", str(cpus)),
            require(FAMILY, "In", family.name),
            require(GENERATION, "In", family.name[1]),
        ],
        "offerings": offerings,
        "capacity": capacity,
        "overhead": {"cpu": "80m", "memory": "300Mi"},
    }


@st.composite
def _offerings(draw: Draw, price: float, zone: str, name: str, features: Features) -> list[JSONDict]:
    """Draw the offerings of an instance type in one zone."""
    found = [_offering(draw, price * draw(st.integers(95, 105)) / 100, zone, "on-demand", features)]
    if not chance(draw, 20):
        found.append(_offering(draw, price * draw(st.integers(20, 70)) / 100, zone, "spot", features))
    if features.reservations and chance(draw, 30):
        reserved = _offering(draw, price / 1_000_000, zone, "reserved", features)
        reserved["requirements"].append(require(RESERVATION, "In", f"cr-{name}-{zone}"))
        found.append({**reserved, "reservationCapacity": draw(st.integers(1, 3))})
    return found


def _offering(draw: Draw, price: float, zone: str, capacity_type: str, features: Features) -> JSONDict:
    return {
        "requirements": [require(ZONE, "In", zone), require(CAPACITY_TYPE, "In", capacity_type)],
        "price": round(price, 7),
        "available": not (features.unavailable_offerings and chance(draw, 25)),
    }


def requirement_value(item: JSONDict, key: str) -> str:
    """Return the first value of an instance type's or offering's requirement for a label; empty if it has none."""
    return next((str(r["values"][0]) for r in item["requirements"] if r["key"] == key), "")
