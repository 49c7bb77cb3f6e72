"""Errors that only a person can mend, said where people look; and all errors, counted.

A missing right or a missing kind stops work for as long as nobody puts it right: the sweep tries again each minute. The log
says what to do; so does a Kubernetes Event, as the right to write Events is another one. It is on the namespace
`default`, beside those of nodes, since what it is about cannot be read or is not there.
"""

from __future__ import annotations

from typing import Final

from journeyman.core.api.objects import NAMESPACE
from journeyman.core.plan import Event, ObjectRef, Observation, Step
from journeyman.errors import NOT_SERVED, ForbiddenError, JourneymanError, KubeAPIError
from journeyman.steps.context import RunContext

_SEEN: Final = ObjectRef(resource=NAMESPACE, name="default")


def tell_error(run: RunContext, step: Step, error: JourneymanError) -> None:
    """Count an error that stopped a run or a part of it; who must mend something is told."""
    labels = {"controller": step.value, "error": type(error).__name__}
    run.telemetry.observe(Observation(name="journeyman_errors_total", labels=labels))
    if event := to_be_mended(step, error):
        run.telemetry.event(event)


def to_be_mended(step: Step, error: JourneymanError) -> Event | None:
    """What people have to put right, once for each right and kind; None if it passes or is told elsewhere."""
    if isinstance(error, ForbiddenError):
        reason, about = (
            "PermissionDenied",
            [str(error.context.get(part, "")) for part in ("verb", "api_group", "resource")],
        )
    elif isinstance(error, KubeAPIError) and error.reason == NOT_SERVED:
        reason, about = "CRDNotInstalled", [error.message]
    else:
        return None
    advice = error.context.get("to_do", "")
    text = f"{step.value}: {error.message}{f'; {advice}' if advice else ''}"
    return Event(ref=_SEEN, reason=reason, message=text, type="Warning", key="/".join((step.value, *about)))
