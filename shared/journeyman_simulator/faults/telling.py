"""A story in words: a line for its setting, and one for each act and fault."""

from __future__ import annotations

from typing import Any, Final

from msgspec import NODEFAULT, Struct
from msgspec.structs import fields

from journeyman_simulator.faults.story import CallFault, Fault, Story

_SPACE: Final = "  "


def lines(story: Story) -> list[str]:
    """For people; what is as always is left out."""
    told = [f"a story of seed {story.seed}:", f"{_SPACE}{_what_differs(story.setting, 'pools') or 'the usual setting'}"]
    told += [f"{_SPACE}pool {pool.name}: {_what_differs(pool, 'name') or 'as usual'}" for pool in story.setting.pools]
    told += [f"{act.at_seconds:>6g} s  {type(act).__name__} {_what_differs(act, 'at_seconds')}" for act in story.acts]
    return told + [_fault(fault) for fault in story.faults]


def _fault(fault: Fault) -> str:
    what = (
        f"call {fault.nth} of {fault.site}" if isinstance(fault, CallFault) else f"message {fault.nth} to {fault.queue}"
    )
    return f"{_SPACE}{what}: {fault.kind.value}{f' {fault.seconds:g} s' if fault.seconds else ''}"


def _what_differs(thing: Struct, *but: str) -> str:
    """`replicas=3 min_available=2`: fields that are not as by default."""
    values = ((known, getattr(thing, known.name)) for known in fields(thing) if known.name not in but)
    return " ".join(f"{known.name}={_text(value)}" for known, value in values if _differs(value, known.default))


def _differs(value: Any, default: Any) -> bool:
    return default is NODEFAULT or value != default


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_text, value)) or "none"
    return f"({_what_differs(value)})" if isinstance(value, Struct) else str(value)
