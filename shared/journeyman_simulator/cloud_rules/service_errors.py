"""The errors that simulated AWS services answer with, and the gate that counts requests and makes them fail on purpose.

Codes and messages that both accounts answer with are written here once.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable
from threading import RLock
from typing import Final

HTTP_STATUS: Final = {
    "InternalError": 500,
    "InternalFailure": 500,
    "RequestLimitExceeded": 503,
    "ServiceUnavailable": 503,
}
"""By error code; every other error is the client's."""
BAD_REQUEST: Final = 400
_INSTANCE_ID: Final = re.compile(r"i-([0-9a-f]{8}|[0-9a-f]{17})")


class ServiceError(Exception):
    """An AWS service refuses a request. Each account raises it as the error that its callers know."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message


class NotSimulatedError(NotImplementedError):
    """AWS may know this; the simulated account does not. No JourneymanError, so that the product never handles it."""


class RequestGate:
    """Runs requests one at a time (an account's state is not thread-safe), counts them and injects failures.

    Args:
        before: Called before each request, under the lock: brings state up to the present.
    """

    def __init__(self, before: Callable[[], object]) -> None:
        self.lock = RLock()
        self.calls: Counter[str] = Counter()
        self.before = before
        self._failures: dict[str, deque[str]] = {}

    def fail_next(self, operation: str, code: str, times: int) -> None:
        """Make the next `times` requests for `operation` ("CreateFleet") fail with the error `code`, without effect."""
        self._failures.setdefault(operation, deque()).extend([code] * times)

    def injected_error(self, operation: str) -> ServiceError | None:
        """Count a request for `operation` and return the error that it must fail with, if there is one."""
        self.calls[operation] += 1
        waiting = self._failures.get(operation)
        return ServiceError(waiting.popleft(), f"simulated failure of {operation}") if waiting else None


def instance_not_found(instance_id: str) -> ServiceError:
    """A request names an instance that EC2 does not know."""
    if not _INSTANCE_ID.fullmatch(instance_id):
        return ServiceError("InvalidInstanceID.Malformed", f'Invalid id: "{instance_id}"')
    return ServiceError("InvalidInstanceID.NotFound", f"The instance ID '{instance_id}' does not exist")


def launch_template_not_found(*, template_id: str | None = None, name: str | None = None) -> ServiceError:
    """A request names a launch template, by id or by name, that EC2 does not know."""
    if template_id:
        message = f"The specified launch template, with template ID {template_id}, does not exist."
        return ServiceError("InvalidLaunchTemplateId.NotFound", message)
    message = f"The specified launch template, with template name {name}, does not exist."
    return ServiceError("InvalidLaunchTemplateName.NotFoundException", message)


def no_such_instance_profile(key: str, value: str | None) -> ServiceError:
    """An instance is launched with a profile that IAM does not have; `key` is "name" or "arn"."""
    return ServiceError(
        "InvalidParameterValue",
        f"Value ({value}) for parameter iamInstanceProfile.{key} is invalid. Invalid IAM Instance Profile {key}",
    )


def insufficient_addresses(subnet_id: str) -> ServiceError:
    """A subnet has fewer free addresses than a launch needs."""
    return ServiceError(
        "InsufficientFreeAddressesInSubnet",
        f"There are not enough free addresses in subnet '{subnet_id}' to satisfy the requested number of instances.",
    )


def spot_instance_cannot_stop(instance_id: str) -> ServiceError:
    """StopInstances names a Spot instance of a one-time request, as fleets launch them."""
    return ServiceError(
        "UnsupportedOperation",
        f"You can't stop the Spot Instance '{instance_id}' because it is associated with a one-time Spot Instance request.",
    )


def incorrect_instance_state(instance_id: str, action: str) -> ServiceError:
    """An instance cannot be `action` ("stopped", "started") in its present state."""
    return ServiceError(
        "IncorrectInstanceState", f"The instance '{instance_id}' is not in a state from which it can be {action}."
    )


def message_not_in_flight(handle: str) -> ServiceError:
    """The visibility timeout of a message is changed after it has ended, or with an earlier handle."""
    return ServiceError(
        "AWS.SimpleQueueService.MessageNotInflight", f"Value {handle} for parameter ReceiptHandle is invalid."
    )


def expired_receipt_handle(handle: str) -> ServiceError:
    """A FIFO queue's message is deleted after its visibility timeout, or with an earlier handle."""
    return ServiceError(
        "InvalidParameterValue",
        f"Value {handle} for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired.",
    )
