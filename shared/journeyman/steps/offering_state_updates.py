"""Updates a NodeClass's OfferingState: offerings that all steps skip for a while, learned sizes, and the prices with their age."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from math import isfinite
from typing import Any, Final

from journeyman.core.api.conditions import set_condition, to_wire
from journeyman.core.api.launch_failures import LaunchFailure, with_launch_failure, without_launch_failures
from journeyman.core.api.model import parse
from journeyman.core.api.objects import OFFERING_STATE, Condition, LearnedSize
from journeyman.core.api.offering_state import (
    MAX_MESSAGE,
    MAX_PRICES,
    MAX_SOURCE,
    PRICES_REFRESHED,
    LearnedAllocatable,
    OfferingState,
    OfferingStateStatus,
    PriceRefresh,
    UnavailableOffering,
    with_failures,
    without_offering,
)
from journeyman.core.api.resources import format_resources, to_resources
from journeyman.core.lifecycle.learned_sizes import with_seen_sizes
from journeyman.core.plan import (
    ClearLaunchFaults,
    ClearOfferingFailures,
    MarkOfferingUnavailable,
    RecordLaunchFault,
    RecordLearnedSizes,
    RecordPriceAge,
)
from journeyman.errors import ConflictError, InvalidObjectError, KubeAPIError
from journeyman.ports import Prices
from journeyman.steps.context import RunContext

ATTEMPTS: Final = 3
MANAGER: Final = "journeyman"
OUTDATED_AFTER: Final = timedelta(hours=36)
"""The age from which on-demand prices count as not refreshed: three refresh periods of Karpenter."""

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
            node_class_only=action.node_class_only,
        )

    _update_with_retries(run, action.node_class, _of_offerings(add_failures))


def clear_offering_failures(run: RunContext, action: ClearOfferingFailures) -> None:
    """Remove an offering that was launched from the NodeClass's OfferingState.

    Raises:
        ConflictError: Another step changed it during every attempt.
    """
    _update_with_retries(
        run,
        action.node_class,
        _of_offerings(lambda current: without_offering(current, action.offering, action.at)),
    )


def record_launch_fault(run: RunContext, action: RecordLaunchFault) -> None:
    """Add the fault of a failed launch to the NodeClass's OfferingState.

    Raises:
        ConflictError: Another step changed it during every attempt.
    """

    def add_failure(status: OfferingStateStatus) -> OfferingStateStatus:
        entries = with_launch_failure(
            status.launch_failures,
            action.fault,
            at=action.at,
            first=action.first,
            longest=action.longest,
            generations=action.generations,
            now=run.clock.now(),
        )
        return status.model_copy(update={"launch_failures": entries})

    _update_with_retries(run, action.node_class, add_failure)


def clear_launch_faults(run: RunContext, action: ClearLaunchFaults) -> None:
    """Remove the faults of objects that launched a node from the NodeClass's OfferingState.

    Raises:
        ConflictError: Another step changed it during every attempt.
    """

    def clear(status: OfferingStateStatus) -> OfferingStateStatus:
        entries = without_launch_failures(status.launch_failures, action.keys, action.at)
        return status.model_copy(update={"launch_failures": entries})

    _update_with_retries(run, action.node_class, clear)


def _of_offerings(change: Callable[[Offerings], Offerings]) -> Callable[[OfferingStateStatus], OfferingStateStatus]:
    return lambda status: status.model_copy(update={"unavailable": change(status.unavailable)})


def record_learned_sizes(run: RunContext, action: RecordLearnedSizes) -> None:
    """Write what nodes offer into the NodeClass's OfferingState; create the OfferingState if it does not exist.

    Raises:
        ConflictError: Another step changed it during every attempt.
    """
    settings = {action.node_class: action.settings}

    def update() -> None:
        raw = _apply(run, action.node_class)
        stored = learned_sizes(_parse_or_default(raw), action.node_class)
        sizes = with_seen_sizes(stored, action.sizes, settings, action.at)
        patch = {
            "metadata": {"resourceVersion": raw["metadata"]["resourceVersion"]},
            "status": {"learnedAllocatable": [_learned_allocatable(size).to_wire() for size in sizes]},
        }
        run.store.patch(OFFERING_STATE, action.node_class, patch, subresource="status")

    _with_retries(update)


def learned_sizes(state: OfferingState, node_class: str) -> tuple[LearnedSize, ...]:
    """Return the sizes in the OfferingState of a NodeClass."""
    return tuple(_learned_size(entry, node_class) for entry in state.status.learned_allocatable)


def _learned_size(entry: LearnedAllocatable, node_class: str) -> LearnedSize:
    return LearnedSize(
        node_class=node_class,
        instance_type=entry.instance_type,
        image=entry.image_id,
        settings=entry.node_class_hash,
        allocatable=to_resources(entry.allocatable, round_up=False),
        node=entry.node,
        last_seen=entry.last_seen,
    )


def _learned_allocatable(size: LearnedSize) -> LearnedAllocatable:
    return LearnedAllocatable(
        instance_type=size.instance_type,
        image_id=size.image,
        node_class_hash=size.settings,
        allocatable=format_resources(size.allocatable),
        node=size.node,
        last_seen=size.last_seen.replace(microsecond=0),
    )


def record_price_age(run: RunContext, action: RecordPriceAge) -> None:
    """Write the prices and their age into the NodeClass's OfferingState; log a failure, since no decision reads them."""
    try:
        _write_prices(run, action)
    except KubeAPIError as error:
        text = f"cannot record the age of prices in OfferingState {action.node_class}: {error.message}"
        run.telemetry.log("debug" if isinstance(error, ConflictError) else "warning", text)


def _write_prices(run: RunContext, action: RecordPriceAge) -> None:
    """Write prices into an OfferingState, and make the NodeClass its owner.

    Processes read prices at different times; the most recent ones are kept.
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
    status = _parse_or_default(raw).status
    changes = _price_changes(status, run.cloud.prices(), run.clock.now(), int(metadata.get("generation", 0)))
    if changes:
        patch = {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "status": changes}
        run.store.patch(OFFERING_STATE, action.node_class, patch, subresource="status")


def recorded_prices(state: OfferingState) -> Prices:
    """Return the prices that a process recorded in an OfferingState, without any that are not positive numbers."""
    recorded = state.status.prices
    on_demand = {name: price for name, text in recorded.on_demand.items() if (price := _price(text)) > 0}
    return Prices(
        on_demand_refreshed_at=recorded.on_demand_refreshed_at,
        on_demand_tried_at=recorded.on_demand_tried_at,
        spot_refreshed_at=recorded.spot_refreshed_at,
        source=recorded.source,
        message=recorded.message,
        currency=recorded.currency,
        estimated=recorded.estimated,
        on_demand=on_demand,
    )


def _price(text: str) -> float:
    try:
        price = float(text)
    except ValueError:
        return 0.0
    return price if isfinite(price) else 0.0


def _update_with_retries(
    run: RunContext, node_class: str, change: Callable[[OfferingStateStatus], OfferingStateStatus]
) -> None:
    """Change the OfferingState of a NodeClass; repeat after a conflict with another step that changes it."""
    _with_retries(lambda: _update(run, node_class, change))


def _with_retries(update: Callable[[], None]) -> None:
    for _ in range(ATTEMPTS - 1):
        with suppress(ConflictError):
            update()
            return
    update()


def _update(run: RunContext, node_class: str, change: Callable[[OfferingStateStatus], OfferingStateStatus]) -> None:
    raw = _apply(run, node_class)
    before = _parse_or_default(raw).status
    changed = _changed_lists(before, change(before))
    if not changed:
        return  # the same failure was recorded before
    patch = {"metadata": {"resourceVersion": raw["metadata"]["resourceVersion"]}, "status": changed}
    run.store.patch(OFFERING_STATE, node_class, patch, subresource="status")


def _changed_lists(before: OfferingStateStatus, after: OfferingStateStatus) -> dict[str, Any]:
    """Return the lists of failures that changed, for a merge patch."""
    changed: dict[str, Any] = {}
    if _ends(before.unavailable) != _ends(after.unavailable):
        changed["unavailable"] = [each.to_wire() for each in after.unavailable]
    if _ends(before.launch_failures) != _ends(after.launch_failures):
        changed["launchFailures"] = [each.to_wire() for each in after.launch_failures]
    return changed


def _ends(entries: Iterable[UnavailableOffering | LaunchFailure]) -> dict[Any, tuple[datetime, int]]:
    return {each.key: (each.until, each.failures) for each in entries}


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


def _price_changes(status: OfferingStateStatus, prices: Prices, now: datetime, generation: int) -> dict[str, Any]:
    """Return the changed fields of the status for a merge patch; empty if this process has nothing newer to record."""
    recorded, current = status.prices, _price_refresh(prices)
    if _last_refresh(current) < _last_refresh(recorded):
        return {}
    changes: dict[str, Any] = {}
    if current != recorded:
        times = ("onDemandRefreshedAt", "onDemandTriedAt", "spotRefreshedAt")
        removed: dict[str, str | None] = dict.fromkeys(sorted(recorded.on_demand.keys() - current.on_demand.keys()))
        changes["prices"] = {**dict.fromkeys(times), **current.to_wire(), "onDemand": {**removed, **current.on_demand}}
        if current.on_demand == recorded.on_demand:
            del changes["prices"]["onDemand"]
    conditions = _with_prices_refreshed(status, prices, now, generation)
    if conditions != status.conditions:
        changes["conditions"] = to_wire(conditions)
    return changes


def _with_prices_refreshed(
    status: OfferingStateStatus, prices: Prices, now: datetime, generation: int
) -> tuple[Condition, ...]:
    """Return the conditions with PricesRefreshed; unchanged for a cloud whose prices have no currency, so no pricing API."""
    if not prices.currency:
        return status.conditions
    read_at = prices.on_demand_refreshed_at
    reason, message = "", ""
    if prices.estimated:
        reason, message = "Estimated", f"on-demand prices are an estimate: {prices.source}"
    elif read_at is None:
        reason, message = "NotRefreshed", f"on-demand prices are those of the package: {prices.source}"
    elif now - read_at >= OUTDATED_AFTER:
        reason, message = "Outdated", f"on-demand prices were last read at {read_at:%Y-%m-%d %H:%M} UTC"
    if reason and prices.message:
        message += f"; {prices.message}"
    return set_condition(
        status.conditions,
        PRICES_REFRESHED,
        "False" if reason else "True",
        now=now.replace(microsecond=0),
        generation=generation,
        reason=reason,
        message=message[:MAX_MESSAGE],
    )


def _price_refresh(prices: Prices) -> PriceRefresh:
    """Return prices as OfferingState stores them: whole seconds, texts truncated to their maximum lengths."""
    return PriceRefresh(
        on_demand_refreshed_at=_whole_seconds(prices.on_demand_refreshed_at),
        on_demand_tried_at=_whole_seconds(prices.on_demand_tried_at),
        spot_refreshed_at=_whole_seconds(prices.spot_refreshed_at),
        source=prices.source[:MAX_SOURCE],
        message=prices.message[:MAX_MESSAGE],
        currency=prices.currency,
        estimated=prices.estimated,
        on_demand={name: repr(price) for name, price in sorted(prices.on_demand.items())[:MAX_PRICES]},
    )


def _whole_seconds(at: datetime | None) -> datetime | None:
    return at.replace(microsecond=0) if at is not None else None


def _last_refresh(prices: PriceRefresh) -> datetime:
    times = (prices.on_demand_refreshed_at, prices.on_demand_tried_at, prices.spot_refreshed_at)
    return max((at for at in times if at is not None), default=datetime.min.replace(tzinfo=timezone.utc))
