"""What an AWS account is to those who talk to it: the simulated one, or one behind an endpoint."""

from __future__ import annotations

from typing import Any, Protocol


class Account(Protocol):
    """Somewhere boto3 clients can point."""

    def client(self, service: str) -> Any:
        """A boto3 client."""
        ...


class NamedAccount(Account, Protocol):
    """An account that knows where it is and what it is called."""

    region: str
    account: str
