"""What a cloud's error code says about a failed launch: whose fault it is, and what to do.

Each cloud's error module has one table of these rules, which is the only place that classifies its codes.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from journeyman.core.api import labels
from journeyman.core.api.launch_faults import FaultScope, LaunchFault
from journeyman.core.api.objects import NodeClaim
from journeyman.core.state import BuildFailure


class FaultRule(Struct, frozen=True, kw_only=True):
    """The meaning of an error code.

    Attributes:
        scope: Whose fault the failed launch is; None if it is no object's, and the same launch is repeated.
        reason: The reason of the Launched condition and of Events.
        meaning: What the code means, in a few words.
        remedy: The command to run, or the field to change.
        node_class_only: Of an offering: only the NodeClass's settings make it unavailable.
    """

    scope: FaultScope | None
    reason: str
    meaning: str
    remedy: str
    node_class_only: bool = False

    @property
    def is_capacity(self) -> bool:
        """Whether another offering may be launched with the same settings."""
        return self.scope in (FaultScope.OFFERING, FaultScope.SUBNET) and not self.node_class_only

    def fault(self, claim: NodeClaim, words: str, subnet: str = "") -> LaunchFault | None:
        """Return the fault of a launch; None if it is an offering's, or no object's.

        Args:
            claim: The NodeClaim of the launch.
            words: What the cloud answered.
            subnet: The id of the subnet, if that is known.
        """
        scope = FaultScope.NODE_CLASS if self.node_class_only else self.scope
        names = {
            FaultScope.NODE_CLASS: claim.spec.node_class_ref.name,
            FaultScope.NODE_POOL: claim.metadata.labels.get(labels.NODEPOOL, ""),
            FaultScope.SUBNET: subnet,
            FaultScope.ACCOUNT: "",
        }
        if scope not in names or (scope is not FaultScope.ACCOUNT and not names[scope]):
            return None
        text = f"{self.meaning}: {words}"
        return LaunchFault(scope=scope, name=names[scope], reason=self.reason, message=text, remedy=self.remedy)

    def build_failure(self, words: str) -> BuildFailure:
        """Return why an instance ended that the cloud had accepted to launch, in the cloud's words."""
        return BuildFailure(
            reason=self.reason,
            message=f"{self.meaning}: {words}",
            is_capacity=self.is_capacity,
            scope=self.scope or FaultScope.NODE_POOL,
            remedy=self.remedy,
        )


def one_per_object(faults: Iterable[LaunchFault | None]) -> tuple[LaunchFault, ...]:
    """Return the first fault of each object, sorted by object."""
    found: dict[tuple[str, str], LaunchFault] = {}
    for fault in faults:
        if fault is not None:
            found.setdefault(fault.key, fault)
    return tuple(fault for _, fault in sorted(found.items()))
