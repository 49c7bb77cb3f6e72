"""Computes when EventBridge's `rate(…)`, `cron(…)` and `at(…)` expressions fire."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError
from msgspec import Struct

from journeyman.errors import ConfigurationError
from journeyman_simulator.cloud_rules.service_errors import ServiceError

_CALL = re.compile(r"(rate|cron|at)\((.*)\)")
_RATE = re.compile(r"([1-9]\d*) (minute|hour|day)(s?)")
_YEARS = range(1970, 2200)  # EventBridge's range
_LAST_WEEKDAY_OF_MONTH = re.compile(r"([1-7]|SUN|MON|TUE|WED|THU|FRI|SAT)L")
_NO_DAY = "9"  # not a day of the week, so that cronsim rejects it
_ANY_TIME = datetime(2000, 1, 1, tzinfo=timezone.utc)
_NAMES = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")


class Recurrence(Protocol):
    """The times at which a schedule fires."""

    def after(self, moment: datetime) -> datetime | None:
        """Return the first time after `moment`; None if there is none."""
        ...


class Rate(Struct, frozen=True, kw_only=True):
    """A fixed interval, starting at a first time."""

    every: timedelta
    first: datetime

    def after(self, moment: datetime) -> datetime | None:
        """See `Recurrence`."""
        if moment < self.first:
            return self.first
        return self.first + ((moment - self.first) // self.every + 1) * self.every


class Once(Struct, frozen=True, kw_only=True):
    """A single time."""

    at: datetime

    def after(self, moment: datetime) -> datetime | None:
        """See `Recurrence`."""
        return self.at if self.at > moment else None


class Cron(Struct, frozen=True, kw_only=True):
    """A cron expression with AWS's six fields, in a time zone.

    A local time that daylight saving skips does not fire; one that it repeats fires once.
    """

    fields: str  # cronsim's: second, minute, hour, day of month, month, day of week
    years: frozenset[int]
    zone: ZoneInfo

    def after(self, moment: datetime) -> datetime | None:
        """See `Recurrence`."""
        if not any(year >= moment.year for year in self.years):
            return None
        for candidate in self._candidates(moment):
            if candidate.fold == 0 and candidate.year in self.years:
                return candidate.astimezone(timezone.utc)
            if candidate.year > max(self.years):
                return None
        return None

    def _candidates(self, moment: datetime) -> Iterator[datetime]:
        local = moment.astimezone(self.zone)
        first_year = min(year for year in self.years if year >= local.year - 1)
        start = max(local, datetime(first_year, 1, 1, tzinfo=self.zone) - timedelta(seconds=1))
        yield from CronSim(self.fields, start)


def parse(expression: str, *, first: datetime, zone: str = "UTC", strict_units: bool = False) -> Recurrence:
    """Return the recurrence of a schedule expression.

    Args:
        expression: An expression in EventBridge's syntax.
        first: The first time of a rate.
        zone: The time zone of `cron` and `at`.
        strict_units: Whether to reject `rate(1 minutes)` and `rate(5 minute)`, as rules do and EventBridge Scheduler does
            not.

    Raises:
        ConfigurationError: EventBridge would reject the expression, or it uses `W`, which is not simulated.
    """
    match = _CALL.fullmatch(expression)
    if match is None:
        raise _invalid(expression, "it is none of rate(…), cron(…), at(…)")
    kind, body = match.groups()
    if kind == "rate":
        return _rate(expression, body, first, strict_units)
    try:
        time_zone = ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise _invalid(expression, f"unknown time zone {zone}") from error
    return _cron(expression, body, time_zone) if kind == "cron" else _once(expression, body, time_zone)


def check_rule_expression(expression: str) -> None:
    """Raise ServiceError if EventBridge rejects a rule with this ScheduleExpression; an empty one is valid."""
    try:
        if expression:
            parse(expression, first=_ANY_TIME, strict_units=True)
    except ConfigurationError as error:
        raise ServiceError("ValidationException", "Parameter ScheduleExpression is not valid.") from error


def check_schedule_expression(expression: str, zone: str | None) -> None:
    """Raise ServiceError if EventBridge Scheduler rejects a schedule with this expression, in this time zone or UTC."""
    try:
        parse(expression, first=_ANY_TIME, zone=zone or "UTC")
    except ConfigurationError as error:
        raise ServiceError("ValidationException", f"Invalid Schedule Expression {expression}.") from error


def _rate(expression: str, body: str, first: datetime, strict_units: bool) -> Rate:
    match = _RATE.fullmatch(body)
    if match is None:
        raise _invalid(expression, "a rate is a positive number and minutes, hours or days")
    value, unit, plural = int(match[1]), match[2], bool(match[3])
    if strict_units and plural is (value == 1):
        raise _invalid(expression, f"write {unit if value == 1 else unit + 's'}")
    return Rate(every=value * timedelta(**{f"{unit}s": 1}), first=first)


def _once(expression: str, body: str, zone: ZoneInfo) -> Once:
    try:
        moment = datetime.strptime(body, "%Y-%m-%dT%H:%M:%S")  # noqa: DTZ007 - the zone is added below
    except ValueError as error:
        raise _invalid(expression, "a time is written yyyy-mm-ddThh:mm:ss") from error
    return Once(at=moment.replace(tzinfo=zone).astimezone(timezone.utc))


def _cron(expression: str, body: str, zone: ZoneInfo) -> Cron:
    parts = body.upper().split()
    if len(parts) != 6:
        raise _invalid(expression, "it needs six fields: minutes hours day-of-month month day-of-week year")
    minute, hour, day, month, weekday, year = parts
    if (day == "?") is (weekday == "?"):
        raise _invalid(expression, "exactly one of day-of-month and day-of-week must be ?")
    if day.endswith("W") and day != "LW":
        raise _invalid(expression, "the nearest weekday (W) is not simulated")
    fields = " ".join(("0", minute, hour, day.replace("?", "*"), month, _weekday(weekday)))
    try:
        CronSim(fields, datetime(2024, 1, 1, tzinfo=timezone.utc))
    except CronSimError as error:
        raise _invalid(expression, str(error)) from error
    return Cron(fields=fields, years=_years(expression, year), zone=zone)


def _weekday(field: str) -> str:
    """Return the day-of-week field for cronsim, which counts SUN as 0, not 1; numbers of steps and ordinals stay."""
    if field == "?":
        return "*"
    return ",".join(_weekday_term(term) for term in field.split(","))


def _weekday_term(term: str) -> str:
    if term == "L":
        return "6"  # a single L is the last day of the week
    if match := _LAST_WEEKDAY_OF_MONTH.fullmatch(term):
        day = match[1]
        return f"{_NAMES.index(day) if day in _NAMES else int(day) - 1}L"
    days, mark, rest = re.fullmatch(r"([^#/]*)([#/]?)(.*)", term).groups()  # type: ignore[union-attr] # matches anything
    shifted = re.sub(r"\d+", lambda match: str(int(match[0]) - 1) if match[0] in "1234567" else _NO_DAY, days)
    return f"{shifted}{mark}{rest}"


def _years(expression: str, field: str) -> frozenset[int]:
    if field == "*":
        return frozenset(_YEARS)
    years: set[int] = set()
    for term in field.split(","):
        match = re.fullmatch(r"(\d{4})(?:-(\d{4}))?(?:/([1-9]\d*))?|\*/([1-9]\d*)", term)
        if match is None:
            raise _invalid(expression, f"{term} is not a year")
        first = int(match[1] or _YEARS[0])
        last = int(match[2] or (first if match[1] and not match[3] else _YEARS[-1]))
        years.update(range(first, last + 1, int(match[3] or match[4] or 1)))
    if not years or not years <= set(_YEARS):
        raise _invalid(expression, "a year must be in 1970 to 2199")
    return frozenset(years)


def _invalid(expression: str, why: str) -> ConfigurationError:
    return ConfigurationError(f"schedule expression {expression!r} is not valid: {why}", expression=expression)
