"""Defines the errors of simulated AWS services, and the gate that counts requests and injects failures.

It has the error codes and messages that both accounts return.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from threading import RLock
from typing import Final

HTTP_STATUS: Final = {
    "InternalError": 500,
    "InternalFailure": 500,
    "InternalServerException": 500,
    "RequestLimitExceeded": 503,
    "ServiceUnavailable": 503,
}
"""HTTP status by error code; the other errors are client errors."""
BAD_REQUEST: Final = 400
_INSTANCE_ID: Final = re.compile(r"i-([0-9a-f]{8}|[0-9a-f]{17})")


class ServiceError(Exception):
    """An AWS service rejects a request. Each account converts it to the error that its callers expect."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message


class NotSimulatedError(NotImplementedError):
    """A feature that AWS may have and the simulation lacks. It is no JourneymanError, so that the product never handles it."""


class LostResponseError(Exception):
    """The request took effect, and the caller gets no answer."""


class RequestGate:
    """Runs requests one at a time (an account's state is not thread-safe), counts them and injects failures.

    Args:
        before: Called before each request, under the lock, to make the transitions that are due.
    """

    def __init__(self, before: Callable[[], object]) -> None:
        self.lock = RLock()
        self.calls: Counter[str] = Counter()
        self.before = before
        self._failures: dict[str, deque[str]] = {}
        self._lost_answers: Counter[str] = Counter()
        self._rates: dict[str, int] = {}
        self._recent: dict[str, deque[datetime]] = {}

    def fail_next(self, operation: str, code: str, times: int) -> None:
        """Make the next `times` requests for `operation` ("CreateFleet") fail with the error `code`, without effect."""
        self._failures.setdefault(operation, deque()).extend([code] * times)

    def stop_failing(self, operation: str) -> None:
        """Let requests for `operation` succeed that were to fail."""
        self._failures.pop(operation, None)

    def injected_error(self, operation: str) -> ServiceError | None:
        """Count a request for `operation`, and return the injected error; None if the request must not fail."""
        self.calls[operation] += 1
        failures = self._failures.get(operation)
        return ServiceError(failures.popleft(), f"simulated failure of {operation}") if failures else None

    def lose_next_answer(self, operation: str, times: int) -> None:
        """Let the next `times` successful requests for `operation` take effect, without an answer for the caller."""
        self._lost_answers[operation] += times

    def check_answer(self, operation: str) -> None:
        """Raise LostResponseError if the caller must not get the answer of a request that took effect."""
        if self._lost_answers[operation]:
            self._lost_answers[operation] -= 1
            raise LostResponseError(f"{operation} took effect; its answer is lost")

    def limit_rate(self, operation: str, per_minute: int | None) -> None:
        """Limit the requests for `operation` to a number per minute; None for no limit."""
        self._rates.pop(operation, None)
        if per_minute is not None:
            self._rates[operation] = per_minute

    def exceeds_rate(self, operation: str, now: datetime) -> bool:
        """Whether a request at `now` is beyond the limit; if it is not, it counts."""
        most = self._rates.get(operation)
        if most is None:
            return False
        recent = self._recent.setdefault(operation, deque())
        while recent and now - recent[0] >= timedelta(minutes=1):
            recent.popleft()
        if len(recent) >= most:
            return True
        recent.append(now)
        return False


def instance_not_found(instance_id: str) -> ServiceError:
    """Return the error for an instance that does not exist, or for a malformed id."""
    if not _INSTANCE_ID.fullmatch(instance_id):
        return ServiceError("InvalidInstanceID.Malformed", f'Invalid id: "{instance_id}"')
    return ServiceError("InvalidInstanceID.NotFound", f"The instance ID '{instance_id}' does not exist")


MAX_TAGS: Final = 50


def require_few_tags(tags: Mapping[str, str]) -> None:
    """Raise EC2's error if a resource would have too many tags; those that AWS sets itself do not count."""
    if sum(not key.startswith("aws:") for key in tags) > MAX_TAGS:
        raise ServiceError("TagLimitExceeded", "The maximum number of Tags for a resource has been reached.")


def launch_template_not_found(*, template_id: str | None = None, name: str | None = None) -> ServiceError:
    """Return the error for a launch template, given by id or by name, that does not exist."""
    if template_id:
        message = f"The specified launch template, with template ID {template_id}, does not exist."
        return ServiceError("InvalidLaunchTemplateId.NotFound", message)
    message = f"The specified launch template, with template name {name}, does not exist."
    return ServiceError("InvalidLaunchTemplateName.NotFoundException", message)


def no_such_instance_profile(key: str, value: str | None) -> ServiceError:
    """Return the error for a launch with an instance profile that does not exist; `key` is "name" or "arn"."""
    return ServiceError(
        "InvalidParameterValue",
        f"Value ({value}) for parameter iamInstanceProfile.{key} is invalid. Invalid IAM Instance Profile {key}",
    )


def insufficient_addresses(subnet_id: str) -> ServiceError:
    """Return the error for a launch that needs more addresses than the subnet has free."""
    return ServiceError(
        "InsufficientFreeAddressesInSubnet",
        f"There are not enough free addresses in subnet '{subnet_id}' to satisfy the requested number of instances.",
    )


def spot_instance_cannot_stop(instance_id: str) -> ServiceError:
    """Return the error for stopping a Spot instance of a one-time request, which fleets launch."""
    return ServiceError(
        "UnsupportedOperation",
        f"You can't stop the Spot Instance '{instance_id}' because it is associated with a one-time Spot Instance request.",
    )


def incorrect_instance_state(instance_id: str, action: str) -> ServiceError:
    """Return the error for an instance that cannot be `action` ("stopped", "started") in its current state."""
    return ServiceError(
        "IncorrectInstanceState", f"The instance '{instance_id}' is not in a state from which it can be {action}."
    )


def message_not_in_flight(handle: str) -> ServiceError:
    """Return the error for changing a visibility timeout that has ended, or with an earlier receipt handle."""
    return ServiceError(
        "AWS.SimpleQueueService.MessageNotInflight", f"Value {handle} for parameter ReceiptHandle is invalid."
    )


def expired_receipt_handle(handle: str) -> ServiceError:
    """Return the error for deleting a FIFO message after its visibility timeout, or with an earlier receipt handle."""
    return ServiceError(
        "InvalidParameterValue",
        f"Value {handle} for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired.",
    )
