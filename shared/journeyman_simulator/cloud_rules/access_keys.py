"""Access keys of the callers of a simulated account."""

from msgspec import Struct


class SimulatedAccessKey(Struct, frozen=True, kw_only=True):
    """The credentials of a caller; with a security token they are temporary."""

    id: str
    secret: str
    caller: str
    security_token: str = ""
