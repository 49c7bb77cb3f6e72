"""The errors that Journeyman raises, as one tree.

::

    JourneymanError(message, **context)     context becomes log fields; class attribute `retryable`
    ├── ConfigurationError                setting, CRD or credential   -> status condition + Event, no retry
    │   ├── InvalidObjectError            one object does not validate -> skip it, use the others
    │   ├── InvalidQuantityError          a quantity does not parse    -> same
    │   └── UnknownClusterError           an event names a cluster that is not registered -> dead letter
    ├── MalformedEventError               an event does not parse      -> dead letter
    ├── CloudProviderError                names from Karpenter's cloudprovider/types.go
    │   ├── NodeClaimNotFoundError        the instance does not exist  -> finish deletion; of a launch: delete the NodeClaim, reschedule
    │   ├── NoInstanceIdError             not a provider id of this cloud -> delete the claim, find its instance by tags
    │   ├── InsufficientCapacityError     names the offerings          -> mark them unavailable, delete the NodeClaim, reschedule
    │   ├── NodeClassNotReadyError        the NodeClass cannot be used -> delete the NodeClaim, reschedule
    │   ├── CreateError                   condition_reason             -> Launched=Unknown with that reason
    │   ├── RateLimitedError  retryable   retry_after_seconds          -> next run, no alarm
    │   └── CloudUnavailableError (retryable)  no response, or an internal error -> next run
    ├── KubeAPIError                      has the Kubernetes Status
    │   ├── NotFoundError  AlreadyExistsError  ConflictError (retryable)  ForbiddenError
    │   ├── InvalidError  TooManyRequestsError (retryable)  GoneError
    │   ├── ResponseTooLargeError         too many bytes to hold       -> a page of fewer objects; else as KubeAPIError
    │   └── KubeUnavailableError (retryable)   no response, or 502-504      -> next run
    ├── LeaseLostError        retryable   another run holds the Lease  -> stop writing, end as "busy"
    ├── DeadlineError         retryable   the run's time is up         -> stop, requeue the step
    └── InvariantError                    a bug: a plan that verify rejects, an action on an unknown object -> alarm

Expected outcomes are values, not errors: an unschedulable pod is an entry in `Results.pod_errors`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Final


class JourneymanError(Exception):
    """The root of the tree: a message, and the error's context as fields of the log line."""

    retryable: ClassVar[bool] = False

    def __init__(self, message: str, **context: Any) -> None:
        super().__init__(message)
        self.message = message
        self.context = context

    def __str__(self) -> str:
        facts = ", ".join(f"{key}={value}" for key, value in self.context.items())
        return f"{self.message} ({facts})" if facts else self.message


class ConfigurationError(JourneymanError):
    """A setting, custom resource or credential is wrong; a user must change it, a retry does not help."""


class InvalidObjectError(ConfigurationError):
    """One object does not validate; it is skipped and the others are used."""


class InvalidQuantityError(ConfigurationError):
    """A Kubernetes quantity does not parse."""


class UnknownClusterError(ConfigurationError):
    """An event names a cluster that is not registered here."""


class MalformedEventError(JourneymanError):
    """An event does not parse; it goes to the dead-letter queue."""


class CloudProviderError(JourneymanError):
    """The cloud refused or failed."""


class NodeClaimNotFoundError(CloudProviderError):
    """The instance of a NodeClaim does not exist."""


class NoInstanceIdError(CloudProviderError):
    """A NodeClaim's provider id was edited and is not one of this cloud."""


class InsufficientCapacityError(CloudProviderError):
    """None of the requested offerings is available; `offerings` names those to mark unavailable.

    The NodeClaim is deleted, and its pods are scheduled again. Empty `offerings` means that they are marked already. Raise
    another error where no offering is marked at all, or the next plan would choose the same offerings again.
    """

    def __init__(self, message: str, *, offerings: tuple[tuple[str, ...], ...] = (), **context: Any) -> None:
        super().__init__(message, **context)
        self.offerings = offerings


class NodeClassNotReadyError(CloudProviderError):
    """The NodeClass does not exist, is being deleted, or is not Ready."""


class CreateError(CloudProviderError):
    """A launch failed; `condition_reason` becomes the reason of the Launched condition."""

    def __init__(self, message: str, *, condition_reason: str, **context: Any) -> None:
        super().__init__(message, **context)
        self.condition_reason = condition_reason


class RateLimitedError(CloudProviderError):
    """The cloud throttles requests; the next run tries again."""

    retryable = True

    def __init__(self, message: str, *, retry_after_seconds: float = 5.0, **context: Any) -> None:
        super().__init__(message, **context)
        self.retry_after_seconds = retry_after_seconds


class CloudUnavailableError(CloudProviderError):
    """The cloud did not respond, or had an internal error; the next run tries again."""

    retryable = True


class KubeAPIError(JourneymanError):
    """The API server returned a failure Status; `details` are the Status's details as JSON, empty if it has none."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        reason: str = "",
        details: Mapping[str, Any] = MappingProxyType({}),
        **context: Any,
    ) -> None:
        super().__init__(message, **context)
        self.status = status
        self.reason = reason
        self.details = details


NOT_SERVED: Final = "NotServed"
"""The reason of a NotFoundError for a kind that the API server does not serve: its CustomResourceDefinition is missing."""


class NotFoundError(KubeAPIError):
    """404: the object does not exist, or its kind is not served (`NOT_SERVED`)."""


class AlreadyExistsError(KubeAPIError):
    """409 AlreadyExists: an object with this name exists."""


class ConflictError(KubeAPIError):
    """409 Conflict: the resourceVersion or UID precondition failed; reload and decide again."""

    retryable = True


class ForbiddenError(KubeAPIError):
    """401 or 403: the function's identity lacks a permission."""


class ResponseTooLargeError(KubeAPIError):
    """A response has more bytes, decompressed, than are held; the rest of it was not read."""


class InvalidError(KubeAPIError):
    """422: the object does not validate."""


class TooManyRequestsError(KubeAPIError):
    """429: the API server throttles requests, or a PodDisruptionBudget refuses an eviction."""

    retryable = True

    def __init__(self, message: str, *, retry_after_seconds: float = 1.0, **context: Any) -> None:
        super().__init__(message, **context)
        self.retry_after_seconds = retry_after_seconds


class GoneError(KubeAPIError):
    """410: the resourceVersion is too old; list again."""


class KubeUnavailableError(KubeAPIError):
    """The API server could not be reached, closed the connection, or returned 502, 503 or 504."""

    retryable = True


class LeaseLostError(JourneymanError):
    """Another run of this step holds the Lease; this run must not write any more."""

    retryable = True


class DeadlineError(JourneymanError):
    """The run's time is up; the step is requeued for the remaining work."""

    retryable = True


class InvariantError(JourneymanError):
    """A bug in Journeyman: a plan that `verify` rejects, or an action on an object the snapshot lacks."""
