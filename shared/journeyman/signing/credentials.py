"""An access key, as both clouds have it."""

from __future__ import annotations

from msgspec import Struct


class Credentials(Struct, frozen=True, kw_only=True):
    """An access key; `security_token` belongs to one that was issued for a time, and is empty otherwise."""

    access_key_id: str
    access_key_secret: str
    security_token: str = ""

    def __repr__(self) -> str:
        return f"Credentials(access_key_id={self.access_key_id!r})"  # the rest is secret
