"""EC2's answers: what is read in them is what botocore reads."""

from datetime import datetime, timezone

import botocore.session
import pytest

from journeyman.cloud.aws.response_parser import with_fast_parser
from journeyman_simulator.in_process_account.ec2_catalogue import KNOWN_TYPES, SimulatedInstanceTypes
from journeyman_simulator.moto_account.moto_requests import ec2_answer

TYPES = [*SimulatedInstanceTypes(KNOWN_TYPES, ["us-east-1a"], (), "us-east-1").described.values()]
HEAD = '<?xml version="1.0" encoding="UTF-8"?><{0}Response xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">'
PLACED = """<reservationSet><item><reservationId>r-1</reservationId><instancesSet>
  <item><instanceId>i-1</instanceId><ebsOptimized>true</ebsOptimized><tagSet/><launchTime>2026-03-02T21:00:00.000Z</launchTime>
    <placement><availabilityZone>us-east-1a</availabilityZone></placement><unheardOf><x>1</x></unheardOf><keyName/></item>
  <item><instanceId>i-2</instanceId><instanceState><code>16</code><name>running</name></instanceState></item>
</instancesSet></item></reservationSet><requestId>q</requestId>"""
TWICE = (
    "<instanceTypeSet><item><supportedUsageClasses><item>spot</item></supportedUsageClasses></item></instanceTypeSet>"
    * 2
)


def response(operation, text):
    return operation, f"{HEAD.format(operation)}{text}</{operation}Response>".encode()


def read(session, operation, body, status=200):
    """What a client of that session makes of it."""
    shape = session.get_service_model("ec2").operation_model(operation).output_shape
    parser = session.get_component("response_parser_factory").create_parser("ec2")
    return parser.parse({"status_code": status, "headers": {}, "body": body}, shape)


@pytest.fixture(scope="module")
def sessions():
    """With fast answers, and botocore's own."""
    return with_fast_parser(botocore.session.get_session()), botocore.session.get_session()


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        response("DescribeInstances", PLACED),
        response("DescribeInstances", "<reservationSet/>"),
        response("DescribeInstances", ""),
        response("DescribeInstanceTypes", TWICE),
        response("CreateFleet", "<fleetId>f</fleetId><errorSet><item><errorCode>Full</errorCode></item></errorSet>"),
        response("DeleteVolume", "<return>true</return>"),
        (
            "DescribeInstanceTypes",
            ec2_answer("DescribeInstanceTypes", {"InstanceTypes": TYPES, "NextToken": "1 & 2"}).encode(),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else str(len(value)),
)
def test_answers_are_what_botocore_reads_in_them(sessions, operation, body):
    """Lists, structures, what is empty, what is unknown, what is there twice."""
    fast, own = (read(session, operation, body) for session in sessions)
    assert fast == own


def test_errors_are_what_botocore_reads_in_them(sessions):
    """Code, message and the request's id."""
    error = "<Error><Code>RequestLimitExceeded</Code><Message>slow down</Message></Error>"
    body = f"<Response><Errors>{error}</Errors><RequestID>q</RequestID></Response>".encode()
    fast, own = (read(session, "DescribeInstances", body, 503) for session in sessions)
    assert fast == own
    assert fast["Error"] == {"Code": "RequestLimitExceeded", "Message": "slow down"}


def test_times_are_in_the_standard_librarys_utc(sessions):
    """Not in dateutil's, which is how the fast way is known."""
    entry = "<item><timestamp>2026-03-02T21:00:00.000Z</timestamp></item>"
    answer = read(
        sessions[0], *response("DescribeSpotPriceHistory", f"<spotPriceHistorySet>{entry}</spotPriceHistorySet>")
    )
    (price,) = answer["SpotPriceHistory"]
    assert price["Timestamp"] == datetime(2026, 3, 2, 21, tzinfo=timezone.utc)
    assert price["Timestamp"].tzinfo is timezone.utc
