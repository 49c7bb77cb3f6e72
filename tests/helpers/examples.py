"""How many examples `make check`, `make test` and `make nightly` run."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest
from hypothesis import settings


def marked(cases: Iterable[Any], *, slow: Collection[Any] = (), nightly: Collection[Any] = ()) -> list[Any]:
    """Return the cases as a test's parameters; those in `nightly` and `slow` have that mark."""

    def marks(case: Any) -> tuple[pytest.MarkDecorator, ...]:
        if case in nightly:
            return (pytest.mark.nightly,)
        return (pytest.mark.slow,) if case in slow else ()

    return [pytest.param(case, marks=marks(case)) for case in cases]


def examples(count: int) -> int:
    """Return half of the count in `make test`; all of it in `make nightly` and in mutation tests."""
    return count // 2 if settings.get_current_profile_name() == "gate" else count
