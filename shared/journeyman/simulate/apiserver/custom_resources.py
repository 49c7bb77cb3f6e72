"""Custom resources as their definitions make the API server treat them: defaults, validation, immutable fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from journeyman.simulate.apiserver.refusals import Cause

JSON = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """What a CustomResourceDefinition says about one kind."""

    default: Callable[[JSON], JSON]
    validate: Callable[[JSON, JSON | None], Iterable[Cause]]


def definition(kind: str) -> Definition:
    """The definition of one of our kinds."""

    def validate(new: JSON, old: JSON | None) -> Iterable[Cause]:
        if kind == "NodeClaim" and old is not None and new.get("spec") != old.get("spec"):
            yield Cause("spec", "Invalid value: spec is immutable")

    return Definition(default=lambda obj: obj, validate=validate)
