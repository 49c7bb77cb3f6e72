"""Parses durations of Karpenter's resources: `30s`, `1h30m`, `720h`, or `Never`.

Fields keep the text, so that an object is written back as its author wrote it; these functions give the time it means.

Annotations of pods have durations that Go parses itself: `.5h`, `-1m30s`, `7200000000us`.

Restates: karpenter pkg/apis/v1/duration.go `NillableDuration` and the patterns of the v1 CRDs; Go's time.ParseDuration.
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
_GO_WHOLE: Final = re.compile(r"([-+]?)((?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:ns|us|µs|μs|ms|s|m|h))+|0)", re.ASCII)
_GO_PARTS: Final = re.compile(r"([0-9]*)\.?([0-9]*)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_NANOSECONDS: Final = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6} | {
    unit: seconds * 10**9 for unit, seconds in _SECONDS.items()
}
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


@lru_cache(maxsize=1024)
def parse_go_duration(text: str) -> timedelta | None:
    """Return the timedelta of text that Go's time.ParseDuration reads, rounded up to microseconds; None of any other text."""
    whole = _GO_WHOLE.fullmatch(text) if len(text) <= MAX_LENGTH else None
    if whole is None:
        return None
    nanoseconds = 0
    for digits, fraction, unit in _GO_PARTS.findall(whole[2]):
        scale = _NANOSECONDS[unit]
        nanoseconds += int(digits or 0) * scale + int(fraction or 0) * scale // 10 ** len(fraction)
    if nanoseconds >= 2**63:
        return None
    return timedelta(microseconds=-(-nanoseconds // 1000)) * (-1 if whole[1] == "-" else 1)
