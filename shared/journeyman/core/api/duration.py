"""Parses durations, and adds them to times: `30s`, `1h30m`, `720h`, or `Never` in Karpenter's resources.

Fields keep the text, so that an object is written back as its author wrote it; these functions give the time it means.

No text and no number of an object overflows here. Durations are exact up to Go's 292 years, `LONGEST`; a longer one of an
annotation or of a pod means that. Times are exact from `EARLIEST` to `LATEST`, which are a day inside the range of `datetime`;
`time_after` returns one of the two for a sum beyond. Every sum of an object's time and a duration goes through it.

`parse_go_duration` reads what Go's `time.ParseDuration` reads.

Restates: karpenter pkg/apis/v1/duration.go `NillableDuration` and the patterns of the v1 CRDs.
Differs: Go refuses durations of over 292 years, and Karpenter then ignores a pod's do-not-disrupt annotation; here the pod
stays protected, as its author wanted.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import Final

from journeyman.errors import ConfigurationError

NEVER: Final = "Never"

PATTERN: Final = r"^([0-9]+(s|m|h))+$"
NILLABLE_PATTERN: Final = r"^(([0-9]+(s|m|h))+|Never)$"
BUDGET_PATTERN: Final = r"^((([0-9]+(h|m))|([0-9]+h[0-9]+m))(0s)?)$"
"""Durations of budgets, in hours and minutes. Go prints a duration with a trailing `0s`."""

_WHOLE: Final = re.compile(r"([0-9]+[smh])+", re.ASCII)
_PARTS: Final = re.compile(r"([0-9]+)([smh])", re.ASCII)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600}

LONGEST: Final = timedelta(seconds=(2**63 - 1) // 10**9)
"""The maximum of Go's time.Duration, about 292 years."""
EARLIEST: Final = datetime(1, 1, 2, tzinfo=timezone.utc)
LATEST: Final = datetime(9999, 12, 30, tzinfo=timezone.utc)

_GO_DURATION: Final = re.compile(r"([+-]?)((?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:ns|us|µs|μs|ms|s|m|h))+)", re.ASCII)
_GO_PARTS: Final = re.compile(r"([0-9]*)(?:\.([0-9]*))?(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_NANOSECONDS: Final = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6} | {
    unit: number * 10**9 for unit, number in _SECONDS.items()
}
_MAX_SHOWN: Final = 64  # characters of a text in messages
_MAX_DIGITS: Final = 20  # of a number; more mean over 292 years, whatever the unit


@lru_cache(maxsize=1024)
def parse_duration(text: str) -> timedelta:
    """Return the timedelta of text such as `1h30m`.

    Raises:
        ConfigurationError: The text is not a duration, or longer than Go's 292 years. The message says what is allowed.
    """
    shown = text[:_MAX_SHOWN]
    if not _WHOLE.fullmatch(text):
        raise ConfigurationError(
            f"{shown!r} is not a duration: write hours, minutes and seconds as in 1h30m", duration=shown
        )
    parts = [(amount.lstrip("0") or "0", unit) for amount, unit in _PARTS.findall(text)]
    seconds = sum(int(amount) * _SECONDS[unit] for amount, unit in parts if len(amount) <= _MAX_DIGITS)
    if seconds > LONGEST.total_seconds() or any(len(amount) > _MAX_DIGITS for amount, _ in parts):
        raise ConfigurationError(f"{shown!r} is too long a duration: the maximum is 2562047h47m16s", duration=shown)
    return timedelta(seconds=seconds)


def parse_nillable_duration(text: str) -> timedelta | None:
    """Return the timedelta of text such as `1h30m`; None for `Never`. Raises ConfigurationError."""
    return None if text == NEVER else parse_duration(text)


def parse_go_duration(text: str) -> timedelta | None:
    """Return a Go duration such as `1h30m`, `.5h` or `-2m`, exact to the microsecond, at most `LONGEST`; None if the text is not one."""
    match = _GO_DURATION.fullmatch(text)
    if match is None:
        return timedelta(0) if text in {"0", "+0", "-0"} else None
    nanoseconds = sum(_nanoseconds(whole, fraction, unit) for whole, fraction, unit in _GO_PARTS.findall(match[2]))
    duration = min(timedelta(microseconds=min(nanoseconds // 1000, _LONGEST_MICROSECONDS)), LONGEST)
    return -duration if match[1] == "-" else duration


_LONGEST_MICROSECONDS: Final = LONGEST // timedelta(microseconds=1)


def _nanoseconds(whole: str, fraction: str, unit: str) -> int:
    digits = whole.lstrip("0")
    if len(digits) > _MAX_DIGITS:
        return _LONGEST_MICROSECONDS * 1000
    kept = fraction[:_MAX_DIGITS]
    scale: int = 10 ** len(kept)
    return int(digits + kept or "0") * _NANOSECONDS[unit] // scale


def seconds(number: int) -> timedelta:
    """Return the duration of so many seconds, at most `LONGEST` in either direction."""
    most = int(LONGEST.total_seconds())
    return timedelta(seconds=max(min(number, most), -most))


def time_after(time: datetime, duration: timedelta) -> datetime:
    """Return the time a duration after another time, or before it if the duration is negative; between `EARLIEST` and `LATEST`."""
    try:
        return max(min(time + duration, LATEST), EARLIEST)
    except OverflowError:
        return LATEST if duration > timedelta(0) else EARLIEST


def doubled(first: timedelta, times: int, longest: timedelta) -> timedelta:
    """Return the back-off after the `times`-th failure: `first` after one, twice as long after each further one, at most `longest`."""
    factor: int = 2 ** min(max(times - 1, 0), _MAX_DOUBLINGS)
    return min(first * factor, longest)


def backed_off(
    before: tuple[int, datetime] | None, at: datetime, *, first: timedelta, longest: timedelta
) -> tuple[int, datetime]:
    """Return how many failures are counted after a further one at `at`, and until when the back-off lasts.

    Args:
        before: The same before it; None if it is the first failure. A failure before the end of the back-off comes from a try that
            began earlier, and is not counted again.
        at: The time of the failure.
        first: The back-off after the first failure.
        longest: The longest back-off.
    """
    if before is None:
        return 1, at + doubled(first, 1, longest)
    failures, until = before
    if at < until:
        return failures, max(at + doubled(first, 1, longest), until)
    return failures + 1, at + doubled(first, failures + 1, longest)


_MAX_DOUBLINGS: Final = 20  # keeps the arithmetic finite: a count that is read from the cluster may be any number
