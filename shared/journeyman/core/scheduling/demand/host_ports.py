"""Host ports: two pods that want the same port of their node cannot share it.

Restates: karpenter pkg/scheduling/hostportusage.go.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from journeyman.core.api.objects import Pod

_ANY_ADDRESS: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - compared with, never bound to


class HostPort(Struct, frozen=True, kw_only=True, order=True):
    """One port of the node that a container asks for."""

    port: int
    protocol: str
    address: str

    def conflicts(self, other: HostPort) -> bool:
        """Whether both cannot be had on one node: same port and protocol, and addresses that overlap."""
        if (self.port, self.protocol) != (other.port, other.protocol):
            return False
        return self.address == other.address or bool({self.address, other.address} & _ANY_ADDRESS)


def host_ports(pod: Pod) -> tuple[HostPort, ...]:
    """The ports of its node that a pod's containers ask for, each once, sorted. Init containers are not looked at."""
    asked = {
        HostPort(port=p.host_port, protocol=p.protocol or "TCP", address=p.host_ip)
        for container in pod.spec.containers
        for p in container.ports
        if p.host_port
    }
    return tuple(sorted(asked))
