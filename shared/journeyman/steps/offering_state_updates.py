"""Updates a NodeClass's OfferingState: unavailable offerings, which every step avoids for a while, and the prices' age."""

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
    """Add the offerings to the NodeClass's OfferingState, which is created if there is none.

    Raises:
        ConflictError: It changed again at each attempt.
    """

    def failed(known: Offerings) -> Offerings:
        return with_failures(
            known,
            action.offerings,
            at=action.at,
            first=action.first,
            longest=action.longest,
            reason=action.reason,
            now=run.clock.now(),
        )

    _update(run, action.node_class, failed)


def clear_offering_failures(run: RunContext, action: ClearOfferingFailures) -> None:
    """Remove an offering that was launched from the NodeClass's OfferingState.

    Raises:
        ConflictError: It changed again at each attempt.
    """
    _update(run, action.node_class, lambda known: without_offering(known, action.offering, action.at))


def record_price_age(run: RunContext, action: RecordPriceAge) -> None:
    """Write into the NodeClass's OfferingState how old its prices are, and make the NodeClass its owner.

    No decision reads it. Several processes each have prices that they read at another time; the youngest are kept.

    Raises:
        KubeAPIError: It could not be written; ConflictError if it was written by others meanwhile.
    """
    raw = _ensured(run, action.node_class)
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
    prices, known = _price_refresh(run.cloud.prices()), _parsed(raw).status.prices
    if prices == known or _youngest(prices) < _youngest(known):
        return
    wire = {"onDemandRefreshedAt": None, "spotRefreshedAt": None, **prices.to_wire()}
    patch = {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "status": {"prices": wire}}
    run.store.patch(OFFERING_STATE, action.node_class, patch, subresource="status")


def _update(run: RunContext, node_class: str, change: Callable[[Offerings], Offerings]) -> None:
    """Change the unavailable offerings of a NodeClass.

    Two steps may mark offerings at the same moment: on a conflict the object is read and changed again.
    """
    for _ in range(ATTEMPTS - 1):
        with suppress(ConflictError):
            _change(run, node_class, change)
            return
    _change(run, node_class, change)


def _change(run: RunContext, node_class: str, change: Callable[[Offerings], Offerings]) -> None:
    raw = _ensured(run, node_class)
    known = _parsed(raw).status.unavailable
    changed = change(known)
    if {o.key: (o.until, o.failures) for o in changed} == {o.key: (o.until, o.failures) for o in known}:
        return  # a repeated or late message: nothing new
    patch = {
        "metadata": {"resourceVersion": raw["metadata"]["resourceVersion"]},
        "status": {"unavailable": [offering.to_wire() for offering in changed]},
    }
    run.store.patch(OFFERING_STATE, node_class, patch, subresource="status")


def _ensured(run: RunContext, name: str) -> Mapping[str, Any]:
    """Return the object as it is stored; it is created if there is none, and not written otherwise."""
    kind = run.cloud.node_class
    ref = {"group": kind.group, "kind": kind.kind, "name": name}
    body = {"spec": {"nodeClassRef": ref}}
    return run.store.apply(OFFERING_STATE, name, body, manager=MANAGER, force=True)  # it is ours alone


def _parsed(raw: Mapping[str, Any]) -> OfferingState:
    """Return the object; one that does not validate is overwritten, since all of it may be lost."""
    try:
        return parse(OfferingState, raw)
    except InvalidObjectError:
        return OfferingState()


def _price_refresh(prices: Prices) -> PriceRefresh:
    """Return the same as it is stored: in whole seconds, its texts cut to their maximum lengths."""
    return PriceRefresh(
        on_demand_refreshed_at=_whole_seconds(prices.on_demand_refreshed_at),
        spot_refreshed_at=_whole_seconds(prices.spot_refreshed_at),
        source=prices.source[:MAX_SOURCE],
        message=prices.message[:MAX_MESSAGE],
    )


def _whole_seconds(at: datetime | None) -> datetime | None:
    return at.replace(microsecond=0) if at is not None else None


def _youngest(prices: PriceRefresh) -> datetime:
    read = (prices.on_demand_refreshed_at, prices.spot_refreshed_at)
    return max((at for at in read if at is not None), default=datetime.min.replace(tzinfo=timezone.utc))
