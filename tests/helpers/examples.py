"""How many examples a property draws."""

import os

_IS_GATE = os.environ.get("HYPOTHESIS_PROFILE", "gate") == "gate"


def examples(count: int) -> int:
    """Return half of the count in `make test`; all of it in `make nightly` and in mutation tests."""
    return count // 2 if _IS_GATE else count
