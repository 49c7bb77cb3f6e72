"""The part of `ports.CloudProvider` that is the same in every cloud.

It passes calls on to launcher, instances and prices, and asks each cloud only how one instance differs from its NodeClass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, Protocol

from journeyman.cloud.launching import ClusterInstances, Launcher
from journeyman.cloud.prices import PriceProvider
from journeyman.core.api.hashes import node_class_keys
from journeyman.core.api.objects import NodeClaim
from journeyman.core.state import BuildFailure, InstanceStatus, NodeClassState
from journeyman.errors import CloudProviderError, InvalidObjectError, NodeClassNotReadyError
from journeyman.ports import JSON, Clock, Instance, LaunchOutcome, LaunchRequest, Prices

NODE_CLASS_DRIFT: Final = "NodeClassDrift"
SUBNET_DRIFT: Final = "SubnetDrift"
SECURITY_GROUP_DRIFT: Final = "SecurityGroupDrift"
DRIFT_PERIOD: Final = timedelta(minutes=5)
"""How long a list of instances serves `is_drifted`; Karpenter examines each NodeClaim again after so long."""

InstanceDrift = Callable[[Instance], str | None]
"""Returns the reason for which an instance has drifted from a NodeClass; empty if it has not, None if that is unknown."""


class ProviderInstances(ClusterInstances, Protocol):
    """The instances of one cluster, as `ports.CloudProvider` lists, gets and deletes them."""

    def list(self) -> tuple[Instance, ...]:
        """Return `CloudProvider.list`."""
        ...

    def get_each(self, provider_ids: Iterable[str]) -> Mapping[str, Instance]:
        """Return `CloudProvider.get_each`."""
        ...

    def delete_each(self, provider_ids: Iterable[str]) -> Mapping[str, CloudProviderError]:
        """Do as `CloudProvider.delete_each`."""
        ...

    def statuses(self) -> tuple[InstanceStatus, ...]:
        """Return `CloudProvider.statuses`."""
        ...

    def end_reasons(self, provider_ids: Collection[str]) -> Mapping[str, BuildFailure]:
        """Return `CloudProvider.end_reasons`."""
        ...


class BaseCloudProvider(ABC):
    """One account and region, for one cluster. Its only state is caches, which a cold start loses."""

    def __init__(self, launcher: Launcher, instances: ProviderInstances, prices: PriceProvider, clock: Clock) -> None:
        self._launcher = launcher
        self._instances = instances
        self._prices = prices
        self._time = clock
        self._listed: Mapping[str, Instance] = {}  # by provider id, for `is_drifted`
        self._listed_at: datetime | None = None

    def launch(self, requests: Sequence[LaunchRequest]) -> Iterator[LaunchOutcome]:
        """Launch instances in parallel; yield one outcome per request. Raises nothing."""
        return self._launcher.launch(requests)

    def list(self) -> tuple[Instance, ...]:
        """Return all instances of this cluster that did not end, by provider id. Raises CloudProviderError."""
        return self._instances.list()

    def get_each(self, provider_ids: Iterable[str]) -> Mapping[str, Instance]:
        """Return the instances that exist, by provider id. Raises CloudProviderError."""
        return self._instances.get_each(provider_ids)

    def delete_each(self, provider_ids: Iterable[str]) -> Mapping[str, CloudProviderError]:
        """Terminate instances; return the error of each that the cloud did not accept, by provider id. Safe to repeat."""
        return self._instances.delete_each(provider_ids)

    def name_instance(self, provider_id: str, name: str) -> None:  # noqa: B027 - most clouds name instances themselves
        """Give an instance the name that the console shows; nothing here."""

    def statuses(self) -> tuple[InstanceStatus, ...]:
        """Return failed checks and maintenance in the region, other clusters' instances included, by provider id.

        Raises:
            CloudProviderError: The cloud did not respond, or the role lacks a permission.
        """
        return self._instances.statuses()

    def end_reasons(self, provider_ids: Collection[str]) -> Mapping[str, BuildFailure]:
        """Return why these instances ended, by provider id, as far as the cloud still says. Raises CloudProviderError."""
        return self._instances.end_reasons(provider_ids)

    def is_drifted(self, claims: Sequence[NodeClaim], node_classes: Sequence[NodeClassState]) -> Mapping[str, str]:
        """Return the reason for which each NodeClaim has drifted, as `ports.CloudProvider` has it. Raises CloudProviderError.

        Restates: karpenter-provider-aws pkg/cloudprovider/drift.go `isNodeClassDrifted`, which the providers of Alibaba
        Cloud and Huawei Cloud follow.
        Differs: one list serves all NodeClaims, for five minutes; it reads no instance by its id. The NodeClass is that of
        the NodeClaim, not of its NodePool: if they differ, the NodePool's hash says so.
        """
        by_ref = {(each.group, each.kind, each.name): each for each in node_classes if not each.deleting}
        found: dict[str, str] = {}
        remaining: dict[str, list[NodeClaim]] = {}
        for claim in claims:
            ref = claim.spec.node_class_ref
            node_class = by_ref.get((ref.group, ref.kind, ref.name))
            if node_class is None:
                continue
            if _is_hash_drifted(claim, node_class):
                found[claim.metadata.name] = NODE_CLASS_DRIFT
            else:
                remaining.setdefault(node_class.name, []).append(claim)
        instances = self._instances_by_id() if remaining else {}
        for node_class in by_ref.values():
            found |= self._instance_drifts(node_class, remaining.get(node_class.name, ()), instances)
        return found

    def prices(self) -> Prices:
        """Return the source, age and currency of the prices, and the on-demand prices that the cloud returned."""
        return self._prices.state()

    def adopt_prices(self, recorded: Prices) -> None:
        """Use the on-demand prices that another process read, if they are newer than this one's."""
        self._prices.adopt(recorded)

    def refresh_prices(self) -> None:
        """Read on-demand prices if they are due; on failure, keep the last ones. Raises nothing."""
        self._prices.refresh_on_demand_if_due()

    @abstractmethod
    def _drift_from(self, node_class: JSON) -> InstanceDrift | None:
        """Return the function that compares instances with a NodeClass; None if its status lacks what is compared.

        Raises:
            NodeClassNotReadyError, InvalidObjectError: Nothing can be said about its instances.
            CloudProviderError: The cloud did not respond.
        """

    def _instance_drifts(
        self, node_class: NodeClassState, claims: Sequence[NodeClaim], instances: Mapping[str, Instance]
    ) -> dict[str, str]:
        """Return the reason or empty text for each of the NodeClass's NodeClaims about which something is known."""
        listed = [(c.metadata.name, instances[id_]) for c in claims if (id_ := c.status.provider_id) in instances]
        try:
            drift_of = self._drift_from(node_class.raw) if listed else None
        except (NodeClassNotReadyError, InvalidObjectError):
            drift_of = None  # a condition of the NodeClass says why
        if drift_of is None:
            return {}
        return {name: reason for name, instance in listed if (reason := drift_of(instance)) is not None}

    def _instances_by_id(self) -> Mapping[str, Instance]:
        now = self._time.now()
        if self._listed_at is None or abs(now - self._listed_at) >= DRIFT_PERIOD:
            self._listed = {instance.provider_id: instance for instance in self.list()}
            self._listed_at = now
        return self._listed


def _is_hash_drifted(claim: NodeClaim, node_class: NodeClassState) -> bool:
    """Whether the static settings of the NodeClass changed since the launch.

    Restates: karpenter-provider-aws pkg/cloudprovider/drift.go `areStaticFieldsDrifted`.
    """
    keys = node_class_keys(node_class.group, node_class.kind)
    return keys.differ({keys.hash: node_class.hash, keys.version: node_class.hash_version}, claim.metadata.annotations)
