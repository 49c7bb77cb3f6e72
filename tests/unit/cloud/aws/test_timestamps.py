"""Times in AWS's answers."""

import pytest
from botocore.utils import parse_timestamp as guess

from journeyman.cloud.aws.response_parser import parse_timestamp


@pytest.mark.parametrize(
    "written",
    [
        "2026-03-02T21:00:00.000Z",
        "2026-03-02T21:00:00Z",
        "2026-03-02T21:00:00.1234567Z",
        "2026-03-02T22:00:00+01:00",
        "Mon, 02 Mar 2026 21:00:00 GMT",
        1772485200,
        "1772485200.5",
    ],
)
def test_times_are_what_botocore_reads_in_them(written):
    """However they are written."""
    assert parse_timestamp(written) == guess(written)
    assert parse_timestamp(written).utcoffset() is not None


def test_what_is_no_time_is_refused():
    """As botocore does."""
    with pytest.raises(ValueError, match="Invalid timestamp"):
        parse_timestamp("soonZ")
