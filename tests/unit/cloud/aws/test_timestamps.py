"""Timestamps in AWS's responses."""

from datetime import datetime, timezone

import botocore.session
import pytest
from botocore.utils import parse_timestamp as guess

from journeyman.cloud.aws.timestamps import parse_timestamp, with_fast_timestamps

HISTORY = b"""<?xml version="1.0" encoding="UTF-8"?>
<DescribeSpotPriceHistoryResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><spotPriceHistorySet>
  <item><timestamp>2026-03-02T21:00:00.000Z</timestamp></item>
</spotPriceHistorySet></DescribeSpotPriceHistoryResponse>"""


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
    assert parse_timestamp(written) == guess(written)
    assert parse_timestamp(written).utcoffset() is not None


def test_invalid_timestamp_is_rejected():
    with pytest.raises(ValueError, match="Invalid timestamp"):
        parse_timestamp("soonZ")


def test_clients_read_times_in_the_standard_librarys_utc():
    """botocore's own parser would return dateutil's, so the fast parser is in use."""
    session = with_fast_timestamps(botocore.session.get_session())
    shape = session.get_service_model("ec2").operation_model("DescribeSpotPriceHistory").output_shape
    parser = session.get_component("response_parser_factory").create_parser("ec2")
    (price,) = parser.parse({"status_code": 200, "headers": {}, "body": HISTORY}, shape)["SpotPriceHistory"]
    assert price["Timestamp"] == datetime(2026, 3, 2, 21, tzinfo=timezone.utc)
    assert price["Timestamp"].tzinfo is timezone.utc
