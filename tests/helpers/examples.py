"""How many examples a property draws."""

from hypothesis import settings


def examples(count: int) -> int:
    """Return half of the count in `make test`; all of it in `make nightly` and in mutation tests."""
    return count // 2 if settings.get_current_profile_name() == "gate" else count
