"""CapacityBuffer (`autoscaling.x-k8s.io/v1beta1`): capacity reserved for pods that do not exist yet.

Its CustomResourceDefinition belongs to the Kubernetes autoscalers and is not part of the chart; without it a cluster has
no buffers.

Restates: k8s.io/autoscaler cluster-autoscaler/apis/capacitybuffer/autoscaling.x-k8s.io/v1beta1.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from journeyman.core.api import labels, resources
from journeyman.core.api.conditions import Conditions
from journeyman.core.api.model import Int, Metadata, Model, ResourceTexts, problem
from journeyman.core.api.objects import ObjectMeta
from journeyman.core.api.windows import any_open, windows_in
from journeyman.errors import ConfigurationError

ACTIVE_CAPACITY: Final = "buffer.x-k8s.io/active-capacity"
"""The strategy that provisions nodes for the buffer; other strategies belong to other controllers."""

READY_FOR_PROVISIONING: Final = "ReadyForProvisioning"
PROVISIONING: Final = "Provisioning"


class LocalObjectRef(Model):
    """An object of the same namespace."""

    name: str = Field(min_length=1)


class ScalableRef(Model):
    """A workload of the same namespace."""

    api_group: str = ""
    kind: str = Field(min_length=1)
    name: str = Field(min_length=1)


class CapacityBufferSpec(Model):
    """`spec` of a CapacityBuffer."""

    provisioning_strategy: str = ACTIVE_CAPACITY
    pod_template_ref: LocalObjectRef | None = None
    scalable_ref: ScalableRef | None = None
    replicas: Int | None = Field(default=None, ge=0)
    percentage: Int | None = Field(default=None, ge=0)
    limits: ResourceTexts | None = None

    @property
    def limit_amounts(self) -> dict[str, int]:
        """`limits` as exact amounts, rounded down."""
        return resources.to_resources(self.limits or {}, round_up=False)

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        if self.pod_template_ref is not None and self.scalable_ref is not None:
            raise problem("'podTemplateRef' and 'scalableRef' are mutually exclusive; keep one")
        if self.pod_template_ref is not None and self.replicas is None and self.limits is None:
            raise problem("'podTemplateRef' requires 'replicas' or 'limits'")
        return self


class CapacityBufferStatus(Model):
    """`status` of a CapacityBuffer."""

    pod_template_ref: LocalObjectRef | None = None
    replicas: Int | None = None
    pod_template_generation: Int | None = None
    provisioning_strategy: str | None = None
    conditions: Conditions = ()


class CapacityBuffer(Model):
    """Capacity for a number of pods of one shape."""

    api_version: Literal["autoscaling.x-k8s.io/v1beta1"] = "autoscaling.x-k8s.io/v1beta1"
    kind: Literal["CapacityBuffer"] = "CapacityBuffer"
    metadata: Metadata = Field(default_factory=ObjectMeta)
    spec: CapacityBufferSpec = Field(default_factory=CapacityBufferSpec)
    status: CapacityBufferStatus = Field(default_factory=CapacityBufferStatus)

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def active(self) -> bool:
        """Whether its strategy is ours and it is not being deleted."""
        return self.spec.provisioning_strategy == ACTIVE_CAPACITY and self.metadata.deletion_timestamp is None

    def reserves_capacity(self, now: datetime) -> bool:
        """Whether it is active, and now is in a window of its annotation `journeyman.dev/active`, if it has one that is valid."""
        if not self.active:
            return False
        try:
            windows = windows_in(self.metadata.annotations, labels.ACTIVE)
        except ConfigurationError:
            return True
        return not windows or any_open(windows, now)
