"""Updates a NodeClass's OfferingState: the offerings that all steps skip for a while, and the age of prices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any, Final

from journeyman.core.api.model import parse
from journeyman.core.api.objects import OFFERING_STATE
from journeyman.core.api.offering_state import (
    MAX_MESSAGE,
    MAX_SOURCE,
    OfferingState,
    PriceRefresh,
    UnavailableOffering,
    with_failures,
    without_offering,
)
from journeyman.core.plan import ClearOfferingFailures, MarkOfferingUnavailable, RecordPriceAge
from journeyman.errors import ConflictError, InvalidObjectError
from journeyman.ports import Prices
from journeyman.steps.context import RunContext

ATTEMPTS: Final = 3
MANAGER: Final = "journeyman"

Offerings = tuple[UnavailableOffering, ...]


def mark_offering_unavailable(run: RunContext, action: MarkOfferingUnavailable) -> None:
    """Add the offerings to the NodeClass's OfferingState; create the OfferingState if it does not exist.

    Raises:
        ConflictError: Another step changed it during every attempt.
    """

    def add_failures(current: Offerings) -> Offerings:
        return with_failures(
            current,
            action.offerings,
            at=action.at,
            first=action.first,
            longest=action.longest,
            reason=action.reason,
            now=run.clock.now(),
        )

    _update_with_retries(run, action.node_class, add_failures)


def clear_offering_failures(run: RunContext, action: ClearOfferingFailures) -> None:
    """Remove an offering that was launched from the NodeClass's OfferingState.

    Raises:
        ConflictError: Another step changed it during every attempt.
    """
    _update_with_retries(run, action.node_class, lambda current: without_offering(current, action.offering, action.at))


def record_price_age(run: RunContext, action: RecordPriceAge) -> None:
    """Write the age of prices into the NodeClass's OfferingState, and make the NodeClass its owner.

    No decision reads it. Processes read prices at different times; the most recent time is kept.

    Raises:
        KubeAPIError: The API server refused; ConflictError if another step changed the object meanwhile.
    """
    raw = _apply(run, action.node_class)
    metadata = raw["metadata"]
    owner = {
        "apiVersion": run.cloud.node_class.api_version,
        "kind": action.kind,
        "name": action.node_class,
        "uid": action.uid,
    }
    if metadata.get("ownerReferences") != [owner]:
        patch = {"metadata": {"resourceVersion": metadata["resourceVersion"], "ownerReferences": [owner]}}
        metadata = run.store.patch(OFFERING_STATE, action.node_class, patch)["metadata"]
    prices, recorded = _price_refresh(run.cloud.prices()), _parse_or_default(raw).status.prices
    if prices == recorded or _last_refresh(prices) < _last_refresh(recorded):
        return
    wire = {"onDemandRefreshedAt": None, "spotRefreshedAt": None, **prices.to_wire()}
    patch = {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "status": {"prices": wire}}
    run.store.patch(OFFERING_STATE, action.node_class, patch, subresource="status")


def _update_with_retries(run: RunContext, node_class: str, change: Callable[[Offerings], Offerings]) -> None:
    """Change the unavailable offerings of a NodeClass; repeat after a conflict with another step that changes them."""
    for _ in range(ATTEMPTS - 1):
        with suppress(ConflictError):
            _update(run, node_class, change)
            return
    _update(run, node_class, change)


def _update(run: RunContext, node_class: str, change: Callable[[Offerings], Offerings]) -> None:
    raw = _apply(run, node_class)
    before = _parse_or_default(raw).status.unavailable
    after = change(before)
    if {o.key: (o.until, o.failures) for o in after} == {o.key: (o.until, o.failures) for o in before}:
        return  # the same failure was recorded before
    patch = {
        "metadata": {"resourceVersion": raw["metadata"]["resourceVersion"]},
        "status": {"unavailable": [offering.to_wire() for offering in after]},
    }
    run.store.patch(OFFERING_STATE, node_class, patch, subresource="status")


def _apply(run: RunContext, name: str) -> Mapping[str, Any]:
    """Create the OfferingState if it does not exist, and return it as stored."""
    kind = run.cloud.node_class
    ref = {"group": kind.group, "kind": kind.kind, "name": name}
    body = {"spec": {"nodeClassRef": ref}}
    return run.store.apply(OFFERING_STATE, name, body, manager=MANAGER, force=True)  # no other manager writes it


def _parse_or_default(raw: Mapping[str, Any]) -> OfferingState:
    """Return the parsed object; an empty one in place of an invalid one, whose content may be lost."""
    try:
        return parse(OfferingState, raw)
    except InvalidObjectError:
        return OfferingState()


def _price_refresh(prices: Prices) -> PriceRefresh:
    """Return the prices' age as OfferingState stores it: whole seconds, texts truncated to their maximum lengths."""
    return PriceRefresh(
        on_demand_refreshed_at=_whole_seconds(prices.on_demand_refreshed_at),
        spot_refreshed_at=_whole_seconds(prices.spot_refreshed_at),
        source=prices.source[:MAX_SOURCE],
        message=prices.message[:MAX_MESSAGE],
    )


def _whole_seconds(at: datetime | None) -> datetime | None:
    return at.replace(microsecond=0) if at is not None else None


def _last_refresh(prices: PriceRefresh) -> datetime:
    times = (prices.on_demand_refreshed_at, prices.spot_refreshed_at)
    return max((at for at in times if at is not None), default=datetime.min.replace(tzinfo=timezone.utc))
