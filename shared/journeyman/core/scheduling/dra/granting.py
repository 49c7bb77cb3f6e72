"""Which pod's claim gets which device, once it is known which pods are where."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from journeyman.core.scheduling.dra.allocations import Grant, Option
from journeyman.core.scheduling.results import DeviceGrant

Drawn = Mapping[int, Sequence[str]]
"""By row the keys of the pods at a place, in the order in which they got there."""


def granted(
    options: Iterable[Option], drawn: Drawn, names: Mapping[str, Sequence[str]]
) -> dict[str, tuple[DeviceGrant, ...]]:
    """The devices at a place, by instance type (one without a name if it stands).

    Args:
        options: What it holds.
        drawn: The pods there.
        names: The claims of every pod, in the order of what they ask for.
    """
    return {
        name: tuple(_grant(grant, drawn, names) for grant in option.grants if grant.row >= 0)
        for option in options
        for name in sorted(option.types)
    }


def drivers_of(options: Sequence[Option]) -> tuple[str, ...]:
    """The drivers, by name, whose devices a node must publish before its pods can run; equal for all options."""
    return options[0].drivers if options else ()


def _grant(grant: Grant, drawn: Drawn, names: Mapping[str, Sequence[str]]) -> DeviceGrant:
    return DeviceGrant(
        claim=grant.key or names[drawn[grant.row][grant.pod]][grant.position],
        request=grant.request,
        driver=grant.device.driver,
        pool=grant.device.pool,
        device=grant.device.name,
        published=grant.device.published,
    )
