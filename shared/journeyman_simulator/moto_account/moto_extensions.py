"""Replaces parts of moto while a simulation runs, and restores them afterwards."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from msgspec import Struct

from journeyman.errors import ConfigurationError


class MotoExtension(Struct, frozen=True, kw_only=True):
    """A replacement of one attribute of moto.

    `replace` receives the original and returns the replacement. `adds` is whether moto lacks the attribute. A
    replacement must have the parameters of the original, so that an incompatible version of moto is detected at the
    start of a simulation.
    """

    owner: Any
    name: str
    replace: Callable[[Any], Any]
    reason: str
    adds: bool = False

    @property
    def target(self) -> str:
        """Return the dotted name of the replaced attribute."""
        module = getattr(self.owner, "__module__", "")
        return ".".join(part for part in (module, self.owner.__name__, self.name) if part)


def applied(extensions: Sequence[MotoExtension]) -> AbstractContextManager[Any]:
    """Apply all extensions, and return a context that reverts them in reverse order on exit.

    Raises:
        ConfigurationError: moto changed a replaced attribute. All extensions are reverted.
    """
    with ExitStack() as stack:
        for extension in extensions:
            stack.callback(_apply(extension))
        return stack.pop_all()


def _apply(extension: MotoExtension) -> Callable[[], None]:
    present = extension.name in vars(extension.owner)
    if present is extension.adds:
        raise _incompatible(extension, "exists already" if present else "does not exist")
    if extension.adds:
        setattr(extension.owner, extension.name, extension.replace(None))
        return lambda: delattr(extension.owner, extension.name)
    original = vars(extension.owner)[extension.name]
    replacement = extension.replace(original)
    if inspect.isfunction(original):
        parameters, expected = (_parameters(extension, function) for function in (original, replacement))
        if parameters != expected:
            raise _incompatible(extension, f"takes {parameters}, expected {expected}")
    setattr(extension.owner, extension.name, replacement)
    return lambda: setattr(extension.owner, extension.name, original)


def _parameters(extension: MotoExtension, function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the parameter names, without the first one of a method, whose name may differ."""
    names = tuple(inspect.signature(function).parameters)
    return names[1:] if inspect.isclass(extension.owner) else names


def _incompatible(extension: MotoExtension, what: str) -> ConfigurationError:
    import moto  # noqa: PLC0415 - only for the version in the error message

    return ConfigurationError(
        f"the simulated AWS cannot start: {extension.target} {what}",
        moto=moto.__version__,
        wanted_because=extension.reason,
    )
