"""What a pass is about, and what it has decided so far: the values that the engines of the scheduler share.

A class of pods has a *ladder*: one row per rung, the first with every preference as a rule, each next one with one
preference fewer. Engines work on rows; the pods of a class are drawn in queue order whatever the rung.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, field

from journeyman.core.scheduling.arrays import Ints
from journeyman.core.scheduling.demand.classes import PodClass
from journeyman.core.scheduling.demand.topology import Pins, Repelled
from journeyman.core.scheduling.limits import Headroom
from journeyman.core.scheduling.offering.reserved import Reservations
from journeyman.core.scheduling.offering.stalls import Stall
from journeyman.core.scheduling.options import Options
from journeyman.core.scheduling.requirements import Requirements
from journeyman.core.scheduling.standing.caps import HostCaps
from journeyman.core.scheduling.standing.existing import Existing

if TYPE_CHECKING:  # who has no ResourceClaims does not pay for them
    from journeyman.core.scheduling.dra import Allocations, Devices


class Unit(Struct, frozen=True, kw_only=True):
    """`count` pods of one row that go to nodes with these labels. `is_quota`: others were placed counting on it."""

    row: int
    count: int
    pins: Pins = ()
    is_quota: bool = False


class OpenNode(Struct, frozen=True, kw_only=True, eq=False):
    """A node to open. `pods` are (row, how many); `total` is what they ask for along the axes.

    `requirements` are all that its claim will ask for: the pool's, the pins', and for each row one of its alternatives.
    `share` is what the pool's limits set aside for it (by limited resource, as `limits.type_costs` has them), so that
    its claim lists no type that would take more; None if the pool has no limits.
    """

    stall: int
    requirements: Requirements
    pods: tuple[tuple[int, int], ...]
    total: Ints
    share: Ints | None = None


class Question(Struct, frozen=True, kw_only=True, eq=False):
    """What a pass is about. Nothing in it changes while it is answered.

    `rows[r]` is a class at one rung, `family[r]` the class it belongs to, `ladders[c]` the rows of class c from the
    first rung to the last, `counts[c]` how many pods of it are to be placed. `requests` has a row per row and a column
    per axis. `leaving` are the keys of the pods to be placed, wherever they are now. `repelled` are the domains from
    which running pods keep others away. `caps` are the rows' rules about one node alone. `devices` are there if any row
    has ResourceClaims.
    """

    rows: tuple[PodClass, ...]
    family: tuple[int, ...]
    ladders: tuple[tuple[int, ...], ...]
    counts: tuple[int, ...]
    axes: tuple[str, ...]
    requests: Ints
    stalls: tuple[Stall, ...]
    existing: Existing
    leaving: frozenset[str]
    repelled: tuple[Repelled, ...]
    options: Options
    caps: HostCaps
    devices: Devices | None = None


class Draft(Struct, kw_only=True, eq=False):
    """A plan in the making. `left[c]` pods of class c have no place yet; `on_existing[n]` are (row, how many) on node n.

    `headroom[s]` is what is left of the limits of stall s, `reservations` of reserved capacity. `stuck` tells by class
    why pods of it cannot be placed. `ceilings` limit by row and pins how many pods may be sent there. `devices` tell
    who has which, existing nodes being numbered first and then those opened. `is_thrifty`: pods are spread no more evenly
    than they must be, where one domain is cheaper than another.
    """

    left: list[int]
    headroom: Sequence[Headroom]
    reservations: Reservations
    on_existing: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    opened: list[OpenNode] = field(default_factory=list)
    stuck: dict[int, str] = field(default_factory=dict)
    ceilings: Mapping[tuple[int, Pins], int] = field(default_factory=dict)
    devices: Allocations | None = None
    is_thrifty: bool = False
