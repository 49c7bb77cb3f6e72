"""Every error Journeyman raises on purpose.

::

    JourneymanError(message, **context)     context becomes log fields; class attribute `retryable`
    ├── ConfigurationError                setting, CRD or credential   -> status condition + Event, no retry
    │   ├── InvalidObjectError            one object does not validate -> it is left out, the others go on
    │   ├── InvalidQuantityError          a quantity does not parse    -> same
    │   └── UnknownClusterError           an event names a cluster that is not registered -> dead letter
    ├── MalformedEventError               an event that cannot be read -> dead letter
    ├── CloudProviderError                names from Karpenter's cloudprovider/types.go
    │   ├── NodeClaimNotFoundError        instance gone                -> finish deletion
    │   ├── NoInstanceIdError             not a provider id of this cloud -> delete the claim; its instance is found by its tags
    │   ├── InsufficientCapacityError     carries the offerings        -> mark them unavailable, delete the NodeClaim, reschedule
    │   ├── NodeClassNotReadyError        waits on the NodeClass       -> next run
    │   ├── CreateError                   condition_reason             -> Launched=Unknown with that reason
    │   ├── RateLimitedError  retryable   retry_after_seconds          -> next run, no alarm
    │   └── CloudUnavailableError (retryable)  no answer, or a fault on its side -> next run
    ├── KubeAPIError                      carries the Kubernetes Status
    │   ├── NotFoundError  AlreadyExistsError  ConflictError (retryable)  ForbiddenError
    │   ├── InvalidError  TooManyRequestsError (retryable)  GoneError
    │   └── KubeUnavailableError (retryable)   no answer, or 502-504        -> next run
    ├── LeaseLostError        retryable   another run holds the step   -> stop applying, answer "busy"
    ├── DeadlineError         retryable   the step's time is up        -> stop, requeue the step
    └── InvariantError                    a bug: a plan that verify rejects, an action on an unknown object -> fail loudly

Expected outcomes are values, not errors: an unschedulable pod is an entry in `Results.pod_errors`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Final


class JourneymanError(Exception):
    """Root of the tree: a message for a person, and the context of the error as fields for a log."""

    retryable: ClassVar[bool] = False

    def __init__(self, message: str, **context: Any) -> None:
        super().__init__(message)
        self.message = message
        self.context = context

    def __str__(self) -> str:
        facts = ", ".join(f"{key}={value}" for key, value in self.context.items())
        return f"{self.message} ({facts})" if facts else self.message


class ConfigurationError(JourneymanError):
    """A setting, custom resource or credential is wrong; retrying cannot help, a person must change it."""


class InvalidObjectError(ConfigurationError):
    """One object does not validate; it is left out and the others go on."""


class InvalidQuantityError(ConfigurationError):
    """A Kubernetes quantity does not parse."""


class UnknownClusterError(ConfigurationError):
    """An event names a cluster that is not registered here."""


class MalformedEventError(JourneymanError):
    """An event that cannot be read; it goes to the dead-letter queue with this message."""


class CloudProviderError(JourneymanError):
    """The cloud refused or failed."""


class NodeClaimNotFoundError(CloudProviderError):
    """The instance behind a NodeClaim is gone."""


class NoInstanceIdError(CloudProviderError):
    """A provider id is not one of this cloud: it was edited."""


class InsufficientCapacityError(CloudProviderError):
    """None of the requested offerings is available; `offerings` names those to skip for a while.

    The NodeClaim is deleted, and its pods are scheduled again. Without offerings it means that they are marked unavailable
    already; a launch that named none and marks none is another error, or the next plan would launch the same.
    """

    def __init__(self, message: str, *, offerings: tuple[tuple[str, str, str], ...] = (), **context: Any) -> None:
        super().__init__(message, **context)
        self.offerings = offerings


class NodeClassNotReadyError(CloudProviderError):
    """The NodeClass is missing, terminating, or its status is not current."""


class CreateError(CloudProviderError):
    """A launch failed for a named reason, which becomes the Launched condition's reason."""

    def __init__(self, message: str, *, condition_reason: str, **context: Any) -> None:
        super().__init__(message, **context)
        self.condition_reason = condition_reason


class RateLimitedError(CloudProviderError):
    """The cloud throttles us; the next run tries again."""

    retryable = True

    def __init__(self, message: str, *, retry_after_seconds: float = 5.0, **context: Any) -> None:
        super().__init__(message, **context)
        self.retry_after_seconds = retry_after_seconds


class CloudUnavailableError(CloudProviderError):
    """The cloud cannot be reached, or failed inside; the next run tries again."""

    retryable = True


class KubeAPIError(JourneymanError):
    """The API server answered with a failure Status; `details` are the Status's own, as JSON, as far as they are known."""

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
"""The reason of a NotFoundError where not an object is missing but its whole kind: its CustomResourceDefinition."""


class NotFoundError(KubeAPIError):
    """404: the object does not exist, or its kind is not served (`NOT_SERVED`)."""


class AlreadyExistsError(KubeAPIError):
    """409 AlreadyExists: an object of that name exists."""


class ConflictError(KubeAPIError):
    """409 Conflict: the resourceVersion or UID precondition failed; reload and decide again."""

    retryable = True


class ForbiddenError(KubeAPIError):
    """401 or 403: the identity lacks a right."""


class InvalidError(KubeAPIError):
    """422: the object does not validate."""


class TooManyRequestsError(KubeAPIError):
    """429: throttled, or an eviction that a PodDisruptionBudget refuses."""

    retryable = True

    def __init__(self, message: str, *, retry_after_seconds: float = 1.0, **context: Any) -> None:
        super().__init__(message, **context)
        self.retry_after_seconds = retry_after_seconds


class GoneError(KubeAPIError):
    """410: the resourceVersion is too old; list again."""


class KubeUnavailableError(KubeAPIError):
    """The API server could not be reached, broke off, or answered that it cannot serve now (502, 503, 504)."""

    retryable = True


class LeaseLostError(JourneymanError):
    """Another run of this step holds the Lease; nothing more may be written."""

    retryable = True


class DeadlineError(JourneymanError):
    """The step's time is up; a requeue was sent for what is left."""

    retryable = True


class InvariantError(JourneymanError):
    """A bug in Journeyman: a plan that `verify` rejects, or an action on an object the snapshot lacks."""
