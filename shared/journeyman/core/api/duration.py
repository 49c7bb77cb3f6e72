"""Parses durations of Karpenter's resources: `30s`, `1h30m`, `720h`, or `Never`.

Fields keep the text, so that an object is written back as its author wrote it; these functions give the time it means.

Restates: karpenter pkg/apis/v1/duration.go `NillableDuration` and the patterns of the v1 CRDs.
"""

from __future__ import annotations

import re
from datetime import timedelta
from functools import lru_cache
from typing import Final

from journeyman.errors import ConfigurationError

NEVER: Final = "Never"
MAX_LENGTH: Final = 64

PATTERN: Final = r"^([0-9]+(s|m|h))+$"
NILLABLE_PATTERN: Final = r"^(([0-9]+(s|m|h))+|Never)$"
BUDGET_PATTERN: Final = r"^((([0-9]+(h|m))|([0-9]+h[0-9]+m))(0s)?)$"
"""Durations of budgets, in hours and minutes. Go prints a duration with a trailing `0s`."""

_WHOLE: Final = re.compile(r"([0-9]+[smh])+", re.ASCII)
_PARTS: Final = re.compile(r"([0-9]+)([smh])", re.ASCII)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600}
_LONGEST: Final = timedelta(seconds=(2**63 - 1) // 10**9)  # the maximum of Go's time.Duration, about 292 years


@lru_cache(maxsize=1024)
def parse_duration(text: str) -> timedelta:
    """Return the timedelta of text such as `1h30m`.

    Raises:
        ConfigurationError: The text is not a duration, or longer than Go's 292 years. The message says what is allowed.
    """
    if not (len(text) <= MAX_LENGTH and _WHOLE.fullmatch(text)):
        raise ConfigurationError(
            f"{text[:MAX_LENGTH]!r} is not a duration: write hours, minutes and seconds as in 1h30m",
            duration=text[:MAX_LENGTH],
        )
    seconds = sum(int(amount) * _SECONDS[unit] for amount, unit in _PARTS.findall(text))
    if seconds > _LONGEST.total_seconds():
        raise ConfigurationError(f"{text!r} is too long a duration: the maximum is 2562047h47m16s", duration=text)
    return timedelta(seconds=seconds)


def parse_nillable_duration(text: str) -> timedelta | None:
    """Return the timedelta of text such as `1h30m`; None for `Never`. Raises ConfigurationError."""
    return None if text == NEVER else parse_duration(text)
