"""What people and EC2 do to the simulated account: `cloud_hand.CloudHand`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Final

from journeyman.errors import ConfigurationError
from journeyman_simulator.account.account import Account
from journeyman_simulator.aws.refusal import RefusedError
from journeyman_simulator.faults.ledger import Ledger
from journeyman_simulator.faults.scene import SOMEONE

_RETIRED_WITHIN: Final = timedelta(days=14)
_FOR_THE_STORY: Final = timedelta(days=1)


class Hand:
    """Acts on instances by provider id; what cannot be done to one is not."""

    def __init__(self, account: Account, ledger: Ledger) -> None:
        """Args: `ledger` is told whose doing it is."""
        self._account = account
        self._ledger = ledger

    def interrupt(self, provider_id: str) -> None:
        """EC2 warns, and takes it two minutes later; Spot instances only."""
        with suppress(ConfigurationError):
            self._account.interrupt(_id(provider_id))

    def recommend_rebalance(self, provider_id: str) -> None:
        """EC2 says that it is at risk; Spot instances only."""
        with suppress(ConfigurationError):
            self._account.recommend_rebalance(_id(provider_id))

    def announce_retirement(self, provider_id: str) -> None:
        """AWS Health says that its host is going to be retired."""
        self._account.instances.announce_retirement(_id(provider_id), _RETIRED_WITHIN)

    def stop(self, provider_id: str) -> None:
        """Somebody stops it in the console; EC2 refuses that for Spot instances."""
        with suppress(RefusedError), self._ledger.hand_of(SOMEONE):
            self._account.instances.stop(_id(provider_id))

    def terminate(self, provider_id: str) -> None:
        """Somebody terminates it in the console."""
        with suppress(RefusedError), self._ledger.hand_of(SOMEONE):
            self._account.instances.end(_id(provider_id))

    def fail_check(self, provider_id: str, check: str) -> None:
        """It fails one of EC2's status checks from now on."""
        self._account.instances.checks.fail(_id(provider_id), check)

    def pass_checks(self, provider_id: str = "") -> None:
        """It passes them all again; without a provider id every instance does."""
        ids = [_id(provider_id)] if provider_id else list(self._account.instances.known)
        for instance_id in ids:
            self._account.instances.checks.recover(instance_id)

    def launched(self) -> Sequence[str]:
        """Provider ids of all instances that ever were, by launch."""
        return [instance.provider_id for instance in self._ledger.instances()]

    def let_next_never_join(self) -> None:
        """The next machine never becomes a node."""
        self._account.instances.let_next_never_join()

    def set_stock(self, pools: Sequence[tuple[str, str, str]], *, sold_out: bool) -> None:
        """(type, zone, capacity type) cannot be had, or can be had again."""
        now = self._account.time.now()
        for pool in pools:
            self._account.out_of_stock(*pool, now + _FOR_THE_STORY if sold_out else now)


def _id(provider_id: str) -> str:
    return provider_id.rpartition("/")[2]
