"""What a story's acts need of the account."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class CloudHand(Protocol):
    """What people and EC2 do in the account, by provider id; whatever cannot be done to an instance is not."""

    def interrupt(self, provider_id: str) -> None:
        """EC2 warns that it takes a Spot instance, and takes it two minutes later."""
        ...

    def recommend_rebalance(self, provider_id: str) -> None:
        """EC2 says that a Spot instance is at risk."""
        ...

    def announce_retirement(self, provider_id: str) -> None:
        """AWS Health says that an instance's host is going to be retired."""
        ...

    def stop(self, provider_id: str) -> None:
        """Somebody stops it."""
        ...

    def terminate(self, provider_id: str) -> None:
        """Somebody terminates it."""
        ...

    def fail_check(self, provider_id: str, check: str) -> None:
        """It fails one of EC2's status checks from now on."""
        ...

    def pass_checks(self, provider_id: str = "") -> None:
        """It passes them all again; without a provider id every instance does."""
        ...

    def launched(self) -> Sequence[str]:
        """Provider ids of all instances that ever were, by launch."""
        ...

    def let_next_never_join(self) -> None:
        """The next machine never becomes a node."""
        ...

    def set_stock(self, pools: Sequence[tuple[str, str, str]], *, sold_out: bool) -> None:
        """(type, zone, capacity type) cannot be had, or can be had again."""
        ...
