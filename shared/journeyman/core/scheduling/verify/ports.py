"""Host ports: two pods of one node cannot have the same port of it.

Restates: karpenter pkg/scheduling/hostportusage.go.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from journeyman.core.api.objects import Pod

Port = tuple[int, str, str]
"""Number, protocol and address; an empty address is every address of the node."""

_EVERY_ADDRESS: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared with, never bound to


def ports_of(pod: Pod) -> tuple[Port, ...]:
    """The ports of its node that the pod's containers (not those that only start it up) ask for."""
    return tuple(
        (port.host_port, port.protocol or "TCP", "" if port.host_ip in _EVERY_ADDRESS else port.host_ip)
        for container in pod.spec.containers
        for port in container.ports
        if port.host_port
    )


def clash(wanted: Iterable[Port], taken: Iterable[Port]) -> Port | None:
    """The first port wanted that is taken; None if all of them are free."""
    by_number: dict[tuple[int, str], list[str]] = {}
    for number, protocol, address in taken:
        by_number.setdefault((number, protocol), []).append(address)
    for number, protocol, address in wanted:
        others = by_number.get((number, protocol), ())
        if any(not address or not other or address == other for other in others):
            return number, protocol, address
    return None
