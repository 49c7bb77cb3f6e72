"""Limits that no EC2 API states, from the table that ships with the package."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources

import msgspec


class NetworkLimits(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """By instance type. A type missing from `branch_interfaces` cannot trunk."""

    source: str
    as_of: str
    branch_interfaces: dict[str, int]
    ipv4_per_interface: dict[str, int]
    network_bandwidth_megabits: dict[str, int]


@lru_cache(maxsize=1)
def network_limits() -> NetworkLimits:
    """The table; read once in a process."""
    text = resources.files(__package__).joinpath("data/network_limits.json").read_bytes()
    return msgspec.json.decode(text, type=NetworkLimits)
