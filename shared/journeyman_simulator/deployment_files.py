"""Find the deployed application's files: template, handlers, forwarder, example manifests and recorded events.

A wheel contains them beside this module, in the folder `deployment` (pyproject.toml, `force-include`); in a checkout of
the repository they are at their own paths. The Lambda layer does not contain them.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from journeyman.errors import ConfigurationError

_WHEEL_FOLDER: Final = Path(__file__).parent / "deployment"
ROOT: Final = _WHEEL_FOLDER if _WHEEL_FOLDER.is_dir() else Path(__file__).resolve().parents[2]


def deployment_file(*parts: str) -> Path:
    """Return the file or folder at that path in the repository.

    Raises:
        ConfigurationError: It does not exist, since this is neither a checkout nor a complete wheel.
    """
    path = ROOT.joinpath(*parts)
    if not path.exists():
        raise ConfigurationError(
            f"{path} does not exist", to_do="install the journeyman wheel, or work in a checkout of the repository"
        )
    return path


@cache
def import_deployed(name: str) -> ModuleType:
    """Import and return a module of the deployed application, such as `functions.aws.provision`.

    Raises:
        ConfigurationError: The module does not exist.
    """
    deployment_file(*name.split(".")[:-1], f"{name.rsplit('.', 1)[-1]}.py")
    if str(ROOT) not in sys.path:
        sys.path.append(str(ROOT))
    return importlib.import_module(name)


def load_handler(handler: str, cloud: str = "aws") -> Callable[..., Any]:
    """Return the function that a template's handler names, such as `provision.lambda_handler`, of a cloud's functions."""
    module, _, function = handler.partition(".")
    loaded: Callable[..., Any] = getattr(import_deployed(f"functions.{cloud}.{module}"), function)
    return loaded
