"""NodeClaim (`karpenter.sh/v1`): the intent to have one node, and how far it came.

This model checks what we create and makes the CRD. Claims are *read* in bulk as `objects.NodeClaim`.

Restates: karpenter pkg/apis/v1/nodeclaim.go, nodeclaim_status.go, nodeclaim_validation.go.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator
from typing_extensions import Self

from journeyman.core.api import objects
from journeyman.core.api.conditions import Conditions
from journeyman.core.api.model import Checked, Duration, Metadata, Model, NillableDuration, ResourceTexts, Time, rules
from journeyman.core.api.requirement_rules import TAINTS_RULE, NodeClassRef, Requirements, Taints, check_taints


class ResourcesModel(Model):
    """What the node must hold."""

    requests: ResourceTexts = Field(default={}, description="Requests of the planned pods and the daemons, summed.")


class NodeClaimSpec(Model):
    """`spec` of a NodeClaim. Immutable."""

    model_config = ConfigDict(json_schema_extra=rules(("spec is immutable", "self == oldSelf"), TAINTS_RULE))

    taints: Taints = Field(default=(), description="Taints of the node.")
    startup_taints: Taints = Field(
        default=(), description="Taints that something else removes once the node is set up; scheduling ignores them."
    )
    requirements: Requirements = Field(description="What the node must be like.")
    resources: Annotated[objects.ResourceRequirements, Checked(ResourcesModel)] = Field(
        default_factory=objects.ResourceRequirements, description="What the node must hold."
    )
    node_class_ref: NodeClassRef = Field(description="Which NodeClass gives the cloud's part.")
    termination_grace_period: Duration | None = Field(
        default=None, description="How long a drain may take before pods are deleted by force; without it, for ever."
    )
    expire_after: NillableDuration = Field(
        default="720h", description="How old the node may grow before it is replaced; Never turns it off."
    )

    @model_validator(mode="after")
    def _taints_are_unique(self) -> Self:
        check_taints(self.taints, self.startup_taints)
        return self


class NodeClaimStatus(Model):
    """`status` of a NodeClaim."""

    node_name: str = Field(default="", description="Name of the Node, once it has registered.")
    provider_id: str = Field(default="", alias="providerID", description="The cloud's id of the instance.")
    image_id: str = Field(default="", alias="imageID", description="The machine image it was launched with.")
    capacity: ResourceTexts = Field(default={}, description="What the node has.")
    allocatable: ResourceTexts = Field(default={}, description="What pods may use of it.")
    conditions: Conditions = Field(default=(), description="Launched, Registered, Initialized, Ready and others.")
    last_pod_event_time: Time | None = Field(
        default=None, description="When a pod last came or went; consolidation waits from then."
    )


class NodeClaim(Model):
    """The intent to have one node, and how far it came."""

    api_version: Literal["karpenter.sh/v1"] = "karpenter.sh/v1"
    kind: Literal["NodeClaim"] = "NodeClaim"
    metadata: Metadata = Field(default_factory=objects.ObjectMeta)
    spec: NodeClaimSpec
    status: NodeClaimStatus = Field(default_factory=NodeClaimStatus)
