"""Replaces parts of moto while a simulation runs, and restores them afterwards."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from msgspec import Struct

from journeyman.errors import ConfigurationError


class MotoExtension(Struct, frozen=True, kw_only=True):
    """One attribute of moto that is replaced.

    `replace` gets the original and returns what stands in its place. `adds` says that moto has no such attribute
    yet. A replaced function must take the same parameters as the original: that is how a moto whose shape has
    changed is detected at start-up and not in the middle of a simulation.
    """

    owner: Any
    name: str
    replace: Callable[[Any], Any]
    reason: str
    adds: bool = False

    @property
    def target(self) -> str:
        """The dotted name of what is replaced."""
        module = getattr(self.owner, "__module__", "")
        return ".".join(part for part in (module, self.owner.__name__, self.name) if part)


def applied(extensions: Sequence[MotoExtension]) -> AbstractContextManager[Any]:
    """Apply all patches now; the returned context reverts them, last first, when it is left.

    Raises:
        ConfigurationError: moto has changed shape under one of them; none stays applied.
    """
    with ExitStack() as stack:
        for patch in extensions:
            stack.callback(_apply(patch))
        return stack.pop_all()


def _apply(patch: MotoExtension) -> Callable[[], None]:
    present = patch.name in vars(patch.owner)
    if present is patch.adds:
        raise _shape_changed(patch, "exists already" if present else "is gone")
    if patch.adds:
        setattr(patch.owner, patch.name, patch.replace(None))
        return lambda: delattr(patch.owner, patch.name)
    original = vars(patch.owner)[patch.name]
    replacement = patch.replace(original)
    if inspect.isfunction(original):
        takes, expected = (_parameters(patch, function) for function in (original, replacement))
        if takes != expected:
            raise _shape_changed(patch, f"takes {takes}, expected {expected}")
    setattr(patch.owner, patch.name, replacement)
    return lambda: setattr(patch.owner, patch.name, original)


def _parameters(patch: MotoExtension, function: Callable[..., Any]) -> tuple[str, ...]:
    """Parameter names; of a method without the first, which a replacement names as it reads best."""
    names = tuple(inspect.signature(function).parameters)
    return names[1:] if inspect.isclass(patch.owner) else names


def _shape_changed(patch: MotoExtension, what: str) -> ConfigurationError:
    import moto  # noqa: PLC0415 - only its version, and only to explain a failure

    return ConfigurationError(
        f"the simulated AWS cannot start: {patch.target} {what}", moto=moto.__version__, wanted_because=patch.reason
    )
