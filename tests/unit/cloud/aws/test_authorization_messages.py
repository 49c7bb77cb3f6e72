"""Encoded messages of refused EC2 requests."""

import json

from botocore.exceptions import ClientError

from journeyman.cloud.aws.authorization_messages import AuthorizationMessages
from journeyman.cloud.aws.aws_settings import Clients

REFUSED = "You are not authorized to perform this operation. Encoded authorization failure message: aBc-1_2 (x)"
DECODED = {
    "allowed": False,
    "explicitDeny": True,
    "context": {
        "principal": {"id": "AROA:fn", "arn": "arn:aws:sts::1:assumed-role/provision/fn"},
        "action": "ec2:RunInstances",
        "resource": "arn:aws:ec2:eu-west-1:1:instance/*",
    },
}


class Sts:
    """STS, which decodes one message, unless the caller may not."""

    def __init__(self, *, allowed):
        self.allowed = allowed
        self.calls = 0

    def decode_authorization_message(self, EncodedMessage):  # noqa: N803 - boto3's name
        self.calls += 1
        if not self.allowed:
            raise ClientError({"Error": {"Code": "AccessDenied"}}, "DecodeAuthorizationMessage")
        return {"DecodedMessage": json.dumps(DECODED)} if EncodedMessage == "aBc-1_2" else {}


def test_encoded_message_is_decoded_where_the_right_exists():
    """It says who may not do what; the same message is decoded once."""
    sts = Sts(allowed=True)
    messages = AuthorizationMessages(Clients(lambda service, region: sts, "eu-west-1"))

    texts = {messages.readable(REFUSED) for _ in range(3)}

    assert texts == {
        (
            "You are not authorized to perform this operation. a statement denies arn:aws:sts::1:assumed-role/provision/fn "
            "ec2:RunInstances on arn:aws:ec2:eu-west-1:1:instance/* (x)"
        )
    }
    assert sts.calls == 1


def test_without_the_right_the_message_has_the_command():
    """The process asks once; a message without encoded text is unchanged."""
    sts = Sts(allowed=False)
    messages = AuthorizationMessages(Clients(lambda service, region: sts, "eu-west-1"))

    for _ in range(2):
        text = messages.readable(REFUSED)
        assert "aws sts decode-authorization-message --encoded-message aBc-1_2" in text
    assert messages.readable("no permission") == "no permission"
    assert sts.calls == 1
