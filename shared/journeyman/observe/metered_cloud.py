"""Measures the calls of a cloud provider: durations and errors, by step and method.

Restates: karpenter pkg/cloudprovider/metrics/cloudprovider.go `Decorate`.
Restates: karpenter-provider-aws pkg/providers/instance/metrics.go, pkg/providers/launchtemplate/metrics.go.
Differs: also measures resolving NodeClasses, releasing their resources, deleting unused ones, naming instances, reading status checks and
why instances ended, and refreshing prices (`Resolve`, `Release`, `DeleteUnused`, `NameInstance`, `Statuses`, `EndReasons`,
`RefreshPrices`). Launches are requested together: the
duration of each `Create` is from the request to its outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

from journeyman.core.api.objects import NodeClaim, Resource
from journeyman.core.catalogue import InstanceType
from journeyman.core.plan import Observation
from journeyman.core.state import BuildFailure, InstanceStatus, NodeClassState, RepairPolicy
from journeyman.errors import (
    CloudProviderError,
    InsufficientCapacityError,
    JourneymanError,
    NodeClaimNotFoundError,
    NodeClassNotReadyError,
)
from journeyman.ports import JSON, Clock, CloudProvider, Instance, LaunchFailed, LaunchOutcome, LaunchRequest, Prices

_NAMED_ERRORS: Final = (InsufficientCapacityError, NodeClaimNotFoundError, NodeClassNotReadyError)
"""Errors whose class name is the label `error`; the label is empty for all others."""


class MeteredCloud:
    """`ports.CloudProvider` for one run: delegates every call and records its duration and error."""

    def __init__(
        self, cloud: CloudProvider, clock: Clock, observe: Callable[[Observation], None], *, controller: str
    ) -> None:
        """Measure `cloud`.

        Args:
            cloud: The cloud provider.
            clock: The time.
            observe: Takes the samples.
            controller: The step that makes the calls.
        """
        self.node_class: Resource[dict[str, Any]] = cloud.node_class
        self.repair_policies: tuple[RepairPolicy, ...] = cloud.repair_policies
        self.name = cloud.name
        self._cloud = cloud
        self._clock = clock
        self._observe = observe
        self._controller = controller

    def resolve(self, node_class: JSON, now: datetime) -> JSON:
        """Measured as `Resolve`."""
        with self._call("Resolve"):
            return self._cloud.resolve(node_class, now)

    def annotations(self, node_class: JSON) -> JSON:
        """Not measured: it makes no call."""
        return self._cloud.annotations(node_class)

    def release(self, node_class: JSON) -> None:
        """Measured as `Release`."""
        with self._call("Release"):
            self._cloud.release(node_class)

    def delete_unused(self, node_classes: Sequence[JSON], claims: Sequence[NodeClaim]) -> Mapping[str, Sequence[str]]:
        """Measured as `DeleteUnused`."""
        with self._call("DeleteUnused"):
            return self._cloud.delete_unused(node_classes, claims)

    def get_instance_types(self, node_class: JSON) -> tuple[InstanceType, ...]:
        """Measured as `GetInstanceTypes`."""
        with self._call("GetInstanceTypes"):
            return self._cloud.get_instance_types(node_class)

    def launch(self, requests: Sequence[LaunchRequest]) -> Iterator[LaunchOutcome]:
        """Measured as one `Create` for each outcome; unavailable offerings are counted."""
        started = self._clock.now()
        node_classes = {request.claim.metadata.name: request.node_class.name for request in requests}
        for outcome in self._cloud.launch(requests):
            self._record_duration("Create", started)
            if isinstance(outcome, LaunchFailed):
                self._record_error("Create", outcome.error)
            self._record_refusals(outcome)
            self._record_user_data(outcome.user_data_bytes, node_classes.get(outcome.claim, ""))
            yield outcome

    def list(self) -> tuple[Instance, ...]:
        """Measured as `List`."""
        with self._call("List"):
            return self._cloud.list()

    def get_each(self, provider_ids: Iterable[str]) -> Mapping[str, Instance]:
        """Measured as one `Get` for all instances."""
        with self._call("Get"):
            return self._cloud.get_each(provider_ids)

    def delete_each(self, provider_ids: Iterable[str]) -> Mapping[str, CloudProviderError]:
        """Measured as one `Delete` for all instances; each failure is counted, by zone if the error has it."""
        with self._call("Delete"):
            errors = self._cloud.delete_each(provider_ids)
        for error in errors.values():
            self._record_error("Delete", error)
            if not isinstance(error, NodeClaimNotFoundError):
                zones = {"zone": str(error.context.get("zone", "")), "zone_id": ""}
                self._count("karpenter_cloudprovider_instance_termination_failures_total", **zones)
        return errors

    def name_instance(self, provider_id: str, name: str) -> None:
        """Measured as `NameInstance`."""
        with self._call("NameInstance"):
            self._cloud.name_instance(provider_id, name)

    def statuses(self) -> tuple[InstanceStatus, ...]:
        """Measured as `Statuses`."""
        with self._call("Statuses"):
            return self._cloud.statuses()

    def end_reasons(self, provider_ids: Collection[str]) -> Mapping[str, BuildFailure]:
        """Measured as `EndReasons`."""
        with self._call("EndReasons"):
            return self._cloud.end_reasons(provider_ids)

    def is_drifted(self, claims: Sequence[NodeClaim], node_classes: Sequence[NodeClassState]) -> Mapping[str, str]:
        """Measured as `IsDrifted`, once for all NodeClaims."""
        with self._call("IsDrifted"):
            return self._cloud.is_drifted(claims, node_classes)

    def prices(self) -> Prices:
        """Not measured: it makes no call."""
        return self._cloud.prices()

    def adopt_prices(self, recorded: Prices) -> None:
        """Not measured: it makes no call."""
        self._cloud.adopt_prices(recorded)

    def refresh_prices(self) -> None:
        """Measured as `RefreshPrices`."""
        with self._call("RefreshPrices"):
            self._cloud.refresh_prices()

    @contextmanager
    def _call(self, method: str) -> Iterator[None]:
        started = self._clock.now()
        try:
            yield
        except JourneymanError as error:
            self._record_error(method, error)
            raise
        finally:
            self._record_duration(method, started)

    def _record_duration(self, method: str, started: datetime) -> None:
        seconds = max((self._clock.now() - started).total_seconds(), 0.0)
        name = "karpenter_cloudprovider_duration_seconds"
        self._observe(Observation(name=name, value=seconds, labels=self._labels(method), kind="histogram"))

    def _record_error(self, method: str, error: Exception) -> None:
        error_name = next((kind.__name__ for kind in _NAMED_ERRORS if isinstance(error, kind)), "")
        self._count("karpenter_cloudprovider_errors_total", **self._labels(method), error=error_name)

    def _record_user_data(self, size: int, node_class: str) -> None:
        if size:
            name = "karpenter_ec2nodeclasses_userdata_bytes"
            self._observe(Observation(name=name, value=float(size), labels={"nodeclass": node_class}, kind="gauge"))

    def _record_refusals(self, outcome: LaunchOutcome) -> None:
        for refusal in outcome.refusals:
            self._count(
                "karpenter_cloudprovider_instance_launch_failures_total",
                zone=refusal.zone,
                zone_id=refusal.zone_id,
                capacity_type=refusal.capacity_type,
                reason=refusal.reason,
            )

    def _labels(self, method: str) -> dict[str, str]:
        return {"controller": self._controller, "method": method, "provider": self.name}

    def _count(self, name: str, **labels: str) -> None:
        self._observe(Observation(name=name, labels=labels))
