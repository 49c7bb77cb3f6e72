"""A cloud whose calls are timed and counted, by the step that makes them.

Restates: karpenter pkg/cloudprovider/metrics/cloudprovider.go `Decorate`; karpenter-provider-aws
pkg/providers/instance/metrics.go, pkg/providers/launchtemplate/metrics.go.
Differs: resolving NodeClasses, taking back what was made for them and asking for status checks are calls, too (`Resolve`,
`Release`, `Statuses`). Launches are asked for together: each one's `Create` lasts from then until its own outcome, a wait
for its turn included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

from journeyman.core.api.objects import Resource
from journeyman.core.catalogue import InstanceType
from journeyman.core.plan import Observation
from journeyman.core.state import InstanceStatus, RepairPolicy
from journeyman.errors import (
    InsufficientCapacityError,
    JourneymanError,
    NodeClaimNotFoundError,
    NodeClassNotReadyError,
)
from journeyman.ports import JSON, Clock, CloudProvider, Instance, LaunchFailed, LaunchOutcome, LaunchRequest, Prices

_TOLD_BY_NAME: Final = (InsufficientCapacityError, NodeClaimNotFoundError, NodeClassNotReadyError)
"""Errors that have a label value of their own, which is their name; all others are unnamed."""


class MeteredCloud:
    """`ports.CloudProvider` for one run: passes every call on, and says how long it took and how it failed."""

    def __init__(
        self, cloud: CloudProvider, clock: Clock, observe: Callable[[Observation], None], *, controller: str
    ) -> None:
        """Args: `observe` takes the samples; `controller` is the step that makes the calls."""
        self.node_class: Resource[dict[str, Any]] = cloud.node_class
        self.repair_policies: tuple[RepairPolicy, ...] = cloud.repair_policies
        self.name = cloud.name
        self._cloud = cloud
        self._clock = clock
        self._observe = observe
        self._controller = controller

    def resolve(self, node_class: JSON, now: datetime) -> JSON:
        """Metered as `Resolve`."""
        with self._call("Resolve"):
            return self._cloud.resolve(node_class, now)

    def annotations(self, node_class: JSON) -> JSON:
        """Not metered: nobody is asked."""
        return self._cloud.annotations(node_class)

    def release(self, node_class: JSON) -> None:
        """Metered as `Release`."""
        with self._call("Release"):
            self._cloud.release(node_class)

    def get_instance_types(self, node_class: JSON) -> tuple[InstanceType, ...]:
        """Metered as `GetInstanceTypes`."""
        with self._call("GetInstanceTypes"):
            return self._cloud.get_instance_types(node_class)

    def launch(self, requests: Sequence[LaunchRequest]) -> Iterator[LaunchOutcome]:
        """Metered as one `Create` for each outcome; offerings asked for in vain are counted."""
        began = self._clock.now()
        node_classes = {request.claim.metadata.name: request.node_class.name for request in requests}
        for outcome in self._cloud.launch(requests):
            self._took("Create", began)
            if isinstance(outcome, LaunchFailed):
                self._failed("Create", outcome.error)
            self._refused(outcome)
            self._boots_with(outcome.user_data_bytes, node_classes.get(outcome.claim, ""))
            yield outcome

    def list(self) -> tuple[Instance, ...]:
        """Metered as `List`."""
        with self._call("List"):
            return self._cloud.list()

    def get(self, provider_id: str) -> Instance:
        """Metered as `Get`."""
        with self._call("Get"):
            return self._cloud.get(provider_id)

    def delete(self, provider_id: str) -> None:
        """Metered as `Delete`; refusals are counted by zone, as far as the error tells it."""
        try:
            with self._call("Delete"):
                self._cloud.delete(provider_id)
        except NodeClaimNotFoundError:
            raise
        except JourneymanError as error:
            zones = {"zone": str(error.context.get("zone", "")), "zone_id": ""}
            self._count("karpenter_cloudprovider_instance_termination_failures_total", **zones)
            raise

    def statuses(self) -> tuple[InstanceStatus, ...]:
        """Metered as `Statuses`."""
        with self._call("Statuses"):
            return self._cloud.statuses()

    def prices(self) -> Prices:
        """Not metered: nobody is asked."""
        return self._cloud.prices()

    @contextmanager
    def _call(self, method: str) -> Iterator[None]:
        began = self._clock.now()
        try:
            yield
        except JourneymanError as error:
            self._failed(method, error)
            raise
        finally:
            self._took(method, began)

    def _took(self, method: str, began: datetime) -> None:
        took = max((self._clock.now() - began).total_seconds(), 0.0)
        name = "karpenter_cloudprovider_duration_seconds"
        self._observe(Observation(name=name, value=took, labels=self._labels(method), kind="histogram"))

    def _failed(self, method: str, error: Exception) -> None:
        known = next((kind.__name__ for kind in _TOLD_BY_NAME if isinstance(error, kind)), "")
        self._count("karpenter_cloudprovider_errors_total", **self._labels(method), error=known)

    def _boots_with(self, size: int, node_class: str) -> None:
        if size:
            name = "karpenter_ec2nodeclasses_userdata_bytes"
            self._observe(Observation(name=name, value=float(size), labels={"nodeclass": node_class}, kind="gauge"))

    def _refused(self, outcome: LaunchOutcome) -> None:
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
