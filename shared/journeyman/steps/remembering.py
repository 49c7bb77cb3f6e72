"""Write down which offerings could not be had, so that every step avoids them for a while."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from journeyman.core.api.model import parse
from journeyman.core.api.objects import OFFERING_STATE
from journeyman.core.api.offering_state import OfferingState, UnavailableOffering, remember
from journeyman.core.plan import RememberUnavailable
from journeyman.errors import ConflictError, InvalidObjectError
from journeyman.steps.invocation import Invocation

ATTEMPTS: Final = 3
MANAGER: Final = "journeyman"


def remember_unavailable(run: Invocation, action: RememberUnavailable) -> None:
    """Add the offerings to the NodeClass's OfferingState, which is created if there is none.

    Two steps may learn of offerings at the same moment: on a conflict it is read and merged again.

    Raises:
        ConflictError: Others kept writing it.
    """
    for _ in range(ATTEMPTS - 1):
        with suppress(ConflictError):
            _remember(run, action)
            return
    _remember(run, action)


def _remember(run: Invocation, action: RememberUnavailable) -> None:
    raw = _ensured(run, action.node_class)
    known = _known(raw)
    merged = remember(
        known,
        action.offerings,
        at=action.at,
        first=action.first,
        longest=action.longest,
        reason=action.reason,
        now=run.clock.now(),
    )
    if {o.key: (o.until, o.failures) for o in merged} == {o.key: (o.until, o.failures) for o in known}:
        return  # a repeated or late message: nothing new
    patch = {
        "metadata": {"resourceVersion": raw["metadata"]["resourceVersion"]},
        "status": {"unavailable": [offering.to_wire() for offering in merged]},
    }
    run.store.patch(OFFERING_STATE, action.node_class, patch, subresource="status")


def _ensured(run: Invocation, name: str) -> Mapping[str, Any]:
    """The object as it is stored, made if there is none; where it is there already nothing is written."""
    kind = run.cloud.node_class
    ref = {"group": kind.group, "kind": kind.kind, "name": name}
    body = {"spec": {"nodeClassRef": ref}}
    return run.store.apply(OFFERING_STATE, name, body, manager=MANAGER, force=True)  # nobody else has a say in it


def _known(raw: Mapping[str, Any]) -> tuple[UnavailableOffering, ...]:
    """What is remembered already; an object that does not validate is overwritten, since all of it may be lost."""
    try:
        return parse(OfferingState, raw).status.unavailable
    except InvalidObjectError:
        return ()
