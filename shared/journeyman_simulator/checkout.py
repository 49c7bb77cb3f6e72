"""What the local compositions take from a checkout beside the package: template, handlers, forwarder, examples.

They are no part of the layer; whoever runs the demo or replay has the repository.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

from journeyman.errors import ConfigurationError
from journeyman_simulator.aws.event_source import Handler

ROOT: Final = Path(__file__).resolve().parents[2]


def found(*parts: str) -> Path:
    """The file at that path of the checkout.

    Raises:
        ConfigurationError: It is not there: this is no checkout.
    """
    path = ROOT.joinpath(*parts)
    if not path.exists():
        raise ConfigurationError(f"{path} is missing", to_do="run this from a checkout of the repository")
    return path


def imported(name: str) -> ModuleType:
    """A module of the checkout, such as `functions.aws.provision`. Raises ConfigurationError if it is not there."""
    found(*name.split(".")[:-1], f"{name.rsplit('.', 1)[-1]}.py")
    if str(ROOT) not in sys.path:
        sys.path.append(str(ROOT))
    return importlib.import_module(name)


def load_handler(handler: str) -> Handler:
    """The callable behind a template's Handler, such as `provision.lambda_handler`."""
    module, _, function = handler.partition(".")
    loaded: Handler = getattr(imported(f"functions.aws.{module}"), function)
    return loaded
