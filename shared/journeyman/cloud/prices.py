"""Prices of offerings: from the cloud, from another process that read them, or from a table that ships with the package.

Reading on-demand prices takes seconds and megabytes. So one process reads them every 12 hours, in a step that no pod waits
for, and OfferingState keeps them for all others. Until then a region has the prices of the shipped table. Prices of
different currencies are never compared.

Restates: karpenter-provider-aws pkg/providers/pricing/pricing.go.
Differs: a sandbox reads Spot prices on first use and every 12 h after that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.errors import CloudProviderError, DeadlineError
from journeyman.ports import Clock, Prices

_log = logging.getLogger(__name__)

_RETRY_AFTER: Final = timedelta(hours=1)
_ON_DEMAND: Final = "on-demand"
_SPOT: Final = "spot"


class PriceSource(Struct, frozen=True, kw_only=True):
    """Where a region's prices come from.

    `shipped` are on-demand prices by instance type, of the package's table, and `state` says of which date, region and
    currency. `read_spot` yields instance type, zone and price, `read_on_demand` instance type and price; both may raise
    CloudProviderError. A period of None means that these prices are never read.
    """

    region: str
    shipped: Mapping[str, float]
    state: Prices
    read_spot: Callable[[], Iterable[tuple[tuple[str, str], float]]]
    read_on_demand: Callable[[], Iterable[tuple[str, float]]]
    on_demand_api: str  # the operation that `read_on_demand` calls
    spot_period: timedelta | None
    on_demand_period: timedelta | None
    keeps_shipped: bool = True  # whether the shipped prices are this region's, so that types without another keep them


class PriceProvider:
    """Current prices per hour, in the region's currency.

    `version` increases with each change. Before the first read of Spot prices, the on-demand price stands in for them;
    after it, a type without a Spot price in a zone has no spot offering there.
    """

    def __init__(self, source: PriceSource, clock: Clock) -> None:
        self._source = source
        self._clock = clock
        self._on_demand = source.shipped
        self._spot: Mapping[tuple[str, str], float] | None = None
        self._dearest_spot: Mapping[str, float] = {}  # by type
        self._spot_read_at: datetime | None = None
        self._state = source.state
        self._failures: dict[str, str] = {}  # by the kind of the prices, of the last reads
        self.version = 0

    def on_demand(self, instance_type: str) -> float | None:
        """Return the price; None if it is unknown."""
        price = self._on_demand.get(instance_type)
        if price is None or not self._state.estimated:
            return price
        return max(price, self._dearest_spot.get(instance_type, price))  # clouds cap Spot prices at on-demand prices

    def spot(self, instance_type: str, zone: str) -> float | None:
        """Return the price; None if the type has no spot price in that zone."""
        if self._spot is None:
            return self.on_demand(instance_type)
        return self._spot.get((instance_type, zone))

    def offering(self, instance_type: str, zone: str, capacity_type: str) -> float | None:
        """Return the price of an offering; None if it is unknown."""
        return self.spot(instance_type, zone) if capacity_type == labels.SPOT else self.on_demand(instance_type)

    def state(self) -> Prices:
        """Return the prices' source, age and currency, and the on-demand prices that the cloud returned. Makes no call."""
        failures = "; ".join(text for _, text in sorted(self._failures.items()))
        return replace(self._state, on_demand_due_at=self._on_demand_due_at(), message=failures)

    def adopt(self, recorded: Prices) -> None:
        """Use the on-demand prices that another process read, if they are newer than this one's and of this currency."""
        if recorded.currency != self._state.currency:
            return
        if _is_newer(recorded.on_demand_tried_at, self._state.on_demand_tried_at):
            self._state = replace(self._state, on_demand_tried_at=recorded.on_demand_tried_at)
            self._failures.pop(_ON_DEMAND, None)
            if recorded.message and _is_newer(recorded.on_demand_tried_at, recorded.on_demand_refreshed_at):
                self._failures[_ON_DEMAND] = recorded.message
        read_at = recorded.on_demand_refreshed_at
        if read_at is not None and recorded.on_demand and _is_newer(read_at, self._state.on_demand_refreshed_at):
            self._use(recorded.on_demand, read_at, recorded.source)

    def refresh_spot_if_due(self) -> None:
        """Read Spot prices if they were never read, or are older than the refresh period; on failure, keep the last ones."""
        now, period = self._clock.now(), self._source.spot_period
        if period is not None and (self._spot_read_at is None or now - self._spot_read_at >= period):
            self._refresh_spot(now)

    def refresh_on_demand_if_due(self) -> None:
        """Read on-demand prices if they are due; on failure, keep the last ones and try again after an hour."""
        now, due_at = self._clock.now(), self._on_demand_due_at()
        if due_at is not None and due_at <= now:
            self._refresh_on_demand(now)

    def _on_demand_due_at(self) -> datetime | None:
        """Return when on-demand prices are read again; None if they cannot be read from here."""
        period, state = self._source.on_demand_period, self._state
        if period is None:
            return None
        if state.on_demand_tried_at is None:
            return self._clock.now()
        has_failed = _is_newer(state.on_demand_tried_at, state.on_demand_refreshed_at)
        return state.on_demand_tried_at + (_RETRY_AFTER if has_failed else period)

    def _refresh_spot(self, now: datetime) -> None:
        self._spot_read_at = now
        try:
            spot = dict(self._source.read_spot()) or self._spot
        except (CloudProviderError, DeadlineError) as error:
            self._report_failure(_SPOT, error)
            return
        self._failures.pop(_SPOT, None)
        self._state = replace(self._state, spot_refreshed_at=now)
        if spot != self._spot:
            self._spot = spot
            dearest: dict[str, float] = {}
            for (name, _), price in (spot or {}).items():
                dearest[name] = max(price, dearest.get(name, price))
            self._dearest_spot = dearest
            self.version += 1

    def _refresh_on_demand(self, now: datetime) -> None:
        self._state = replace(self._state, on_demand_tried_at=now)
        try:
            read = dict(self._source.read_on_demand())
        except (CloudProviderError, DeadlineError) as error:
            self._report_failure(_ON_DEMAND, error)
            return
        if not read:
            api, region, currency = self._source.on_demand_api, self._source.region, self._state.currency
            self._report_failure(_ON_DEMAND, f"{api} returned no price of {region} in {currency}")
            return
        self._failures.pop(_ON_DEMAND, None)
        self._use(read, now, self._source.on_demand_api)

    def _use(self, read: Mapping[str, float], read_at: datetime, source: str) -> None:
        """Use prices of the region's own; types without one keep the shipped price, if that is the region's own as well."""
        on_demand = {**(self._source.shipped if self._source.keeps_shipped else {}), **read}
        before, was_estimated = self._on_demand, self._state.estimated
        self._state = replace(
            self._state, on_demand_refreshed_at=read_at, source=source, estimated=False, on_demand=read
        )
        if on_demand != before or was_estimated:
            self._on_demand = on_demand
            self.version += 1

    def _report_failure(self, kind: str, error: Exception | str) -> None:
        text = f"keeping the last {kind} prices: {error}"
        self._failures[kind] = text
        _log.warning(text)


def _is_newer(at: datetime | None, than: datetime | None) -> bool:
    return at is not None and (than is None or at > than)
