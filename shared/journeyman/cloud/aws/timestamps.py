"""Times in AWS's answers, read a hundred times as fast: of a history of Spot prices they were a third of the time.

botocore lets dateutil guess the format of each. EC2 writes one, which the standard library knows; all others are left to
botocore.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from botocore.utils import parse_timestamp as guess


def parse_timestamp(value: Any) -> datetime:
    """The time, aware.

    Args:
        value: As a response has it: RFC 3339 in UTC, or whatever else a protocol writes (seconds, RFC 822).

    Raises:
        ValueError: It is no time.
    """
    if isinstance(value, str) and value.endswith("Z"):
        try:
            return datetime.fromisoformat(f"{value[:-1]}+00:00")  # Python 3.10 does not know the Z
        except ValueError:
            pass  # more or fewer digits than it takes
    guessed: datetime = guess(value)
    return guessed
