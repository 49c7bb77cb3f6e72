"""The sink: one FIFO queue, the cluster as message group. botocore alone, without boto3, keeps the process small."""

from __future__ import annotations

from typing import Any

import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from infra.forwarder.forwarder import SendError


class SqsSink:
    """Hands messages to a FIFO queue; credentials as the pod has them (Pod Identity, IRSA, environment)."""

    def __init__(self, queue_url: str, cluster: str, *, region: str = "", **client: Any) -> None:
        """Args: `client` goes to botocore (an `endpoint_url`, say)."""
        self._queue_url = queue_url
        self._cluster = cluster
        config = Config(connect_timeout=3, read_timeout=10, retries={"mode": "standard", "total_max_attempts": 3})
        session = botocore.session.get_session()
        self._sqs: Any = session.create_client("sqs", region_name=region or None, config=config, **client)

    def send(self, body: str, deduplication_id: str) -> None:
        """Hand over one message.

        Raises:
            SendError: SQS did not take it.
        """
        try:
            self._sqs.send_message(
                QueueUrl=self._queue_url,
                MessageBody=body,
                MessageGroupId=self._cluster,
                MessageDeduplicationId=deduplication_id,
            )
        except (BotoCoreError, ClientError) as error:
            raise SendError(f"SQS did not take the message: {error}") from error
