"""The part of `ports.CloudProvider` that is the same in every cloud: it passes calls on to launcher, instances and prices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from journeyman.cloud.launching import ClusterInstances, Launcher
from journeyman.cloud.prices import PriceProvider
from journeyman.core.state import InstanceStatus
from journeyman.ports import Instance, LaunchOutcome, LaunchRequest, Prices


class ProviderInstances(ClusterInstances, Protocol):
    """The instances of one cluster, as `ports.CloudProvider` lists, gets and deletes them."""

    def list(self) -> tuple[Instance, ...]:
        """Return `CloudProvider.list`."""
        ...

    def get(self, provider_id: str) -> Instance:
        """Return `CloudProvider.get`."""
        ...

    def delete(self, provider_id: str) -> None:
        """Do as `CloudProvider.delete`."""
        ...

    def statuses(self) -> tuple[InstanceStatus, ...]:
        """Return `CloudProvider.statuses`."""
        ...


class BaseCloudProvider:
    """One account and region, for one cluster. Its only state is caches, which a cold start loses."""

    def __init__(self, launcher: Launcher, instances: ProviderInstances, prices: PriceProvider) -> None:
        self._launcher = launcher
        self._instances = instances
        self._prices = prices

    def launch(self, requests: Sequence[LaunchRequest]) -> Iterator[LaunchOutcome]:
        """Launch instances in parallel; yield one outcome per request. Raises nothing."""
        return self._launcher.launch(requests)

    def list(self) -> tuple[Instance, ...]:
        """Return all instances of this cluster that did not end, by provider id. Raises CloudProviderError."""
        return self._instances.list()

    def get(self, provider_id: str) -> Instance:
        """Return one instance. Raises NodeClaimNotFoundError if it ended or does not exist."""
        return self._instances.get(provider_id)

    def delete(self, provider_id: str) -> None:
        """Terminate an instance; safe to repeat. Raises NodeClaimNotFoundError if it does not exist any more."""
        self._instances.delete(provider_id)

    def statuses(self) -> tuple[InstanceStatus, ...]:
        """Return failed checks and maintenance in the region, other clusters' instances included, by provider id.

        Raises:
            CloudProviderError: The cloud did not respond, or the role lacks a permission.
        """
        return self._instances.statuses()

    def prices(self) -> Prices:
        """Return the source, age and currency of the prices, and the on-demand prices that the cloud returned."""
        return self._prices.state()

    def adopt_prices(self, recorded: Prices) -> None:
        """Use the on-demand prices that another process read, if they are newer than this one's."""
        self._prices.adopt(recorded)

    def refresh_prices(self) -> None:
        """Read on-demand prices if they are due; on failure, keep the last ones. Raises nothing."""
        self._prices.refresh_on_demand_if_due()
