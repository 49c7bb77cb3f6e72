"""The AWS sinks: SQS FIFO queues, or an EventBridge bus whose rules have the queues as targets.

botocore alone, without boto3, keeps the process small, and its credentials renew themselves: Pod Identity's and IRSA's
tokens are read from their files again whenever credentials expire. The forwarder itself retries, with longer pauses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from infra.forwarder.forwarder import SendError
from infra.forwarder.notifications import NotifiedStep

EVENT_SOURCE: Final = "journeyman.forwarder"
DETAIL_TYPE: Final = "Journeyman Notification"


def client(service: str, region: str, **more: Any) -> Any:
    """Return a botocore client with short timeouts; `more` are arguments for botocore, such as `endpoint_url`."""
    config = Config(connect_timeout=3, read_timeout=10, retries={"mode": "standard", "total_max_attempts": 2})
    return botocore.session.get_session().create_client(service, region_name=region or None, config=config, **more)


class SqsSink:
    """Sends messages to FIFO queues, one for each step; the cluster is the message group.

    Args:
        queues: Queue URLs by step.
        cluster: The cluster's name.
        sqs: A botocore client.
    """

    name: Final = "sqs"

    def __init__(self, queues: Mapping[NotifiedStep, str], cluster: str, sqs: Any) -> None:
        self._queues = queues
        self._cluster = cluster
        self._sqs = sqs

    def send(self, step: NotifiedStep, body: str, message_id: str) -> None:
        """Send one message. Raises SendError."""
        url = self._queues[step]
        try:
            self._sqs.send_message(
                QueueUrl=url, MessageBody=body, MessageGroupId=self._cluster, MessageDeduplicationId=message_id
            )
        except (BotoCoreError, ClientError) as error:
            raise SendError(f"SQS did not accept the message for {url}: {error}") from error


class EventBridgeSink:
    """Puts messages on an event bus as `detail`, where rules match `detail.cluster` and `detail.step`.

    Args:
        bus: The bus's name or ARN.
        events: A botocore client.
    """

    name: Final = "eventbridge"

    def __init__(self, bus: str, events: Any) -> None:
        self._bus = bus
        self._events = events

    def send(self, step: NotifiedStep, body: str, message_id: str) -> None:
        """Send one message. Raises SendError."""
        entry = {"EventBusName": self._bus, "Source": EVENT_SOURCE, "DetailType": DETAIL_TYPE, "Detail": body}
        try:
            response = self._events.put_events(Entries=[entry])
        except (BotoCoreError, ClientError) as error:
            raise SendError(f"EventBridge did not accept the message for bus {self._bus}: {error}") from error
        if response["FailedEntryCount"]:
            refused = response["Entries"][0]
            why = f"{refused.get('ErrorCode')} {refused.get('ErrorMessage', '')}".strip()
            raise SendError(f"EventBridge refused the message for bus {self._bus}: {why}")
