"""A simulated account's no."""

from __future__ import annotations


class RefusedError(Exception):
    """AWS would refuse, in its words. Leaves the account as the error that its callers know."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message
