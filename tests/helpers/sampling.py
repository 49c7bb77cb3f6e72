"""Which cases of a long test `make test` runs; `make nightly` runs all of them."""

from collections.abc import Iterable
from typing import Any

import pytest


def aws_and_nightly(clouds: Iterable[str]) -> list[Any]:
    """Return the names of clouds as parameters: AWS in `make test`, the others in `make nightly`."""
    return [pytest.param(cloud, marks=() if cloud == "aws" else pytest.mark.nightly) for cloud in clouds]
