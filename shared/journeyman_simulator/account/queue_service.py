"""SQS's operations on the simulated account's queues."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from journeyman_simulator.account.asking import Ask, NotSimulatedError, Operation, Operations
from journeyman_simulator.account.queues import Accepted, Message, Queue, Queues
from journeyman_simulator.aws.refusal import RefusedError
from journeyman_simulator.aws.timekeeper import Timekeeper

_MOST_ENTRIES: Final = 10
_LONGEST_DELAY_SECONDS: Final = 900
_SENDING: Final = ("DelaySeconds", "MessageAttributes", "MessageDeduplicationId", "MessageGroupId")
_RECEIVING: Final = (
    *("AttributeNames", "MaxNumberOfMessages", "MessageAttributeNames", "MessageSystemAttributeNames"),
    *("VisibilityTimeout", "WaitTimeSeconds"),
)
JSON = Mapping[str, Any]


class QueueService:
    """A long poll answers at once: no virtual time passes while a caller waits."""

    def __init__(self, queues: Queues, time: Timekeeper, region: str, account: str) -> None:
        self._queues = queues
        self._time = time
        self._url = f"https://sqs.{region}.amazonaws.com/{account}/"
        self._arn = f"arn:aws:sqs:{region}:{account}:"
        self._account = account

    def operations(self) -> Operations:
        """What SQS answers."""
        url, batch = ("QueueUrl",), ("QueueUrl", "Entries")
        return {
            "CreateQueue": Operation(self._create, requires=("QueueName",), accepts=("Attributes",)),
            "GetQueueUrl": Operation(self._get_url, requires=("QueueName",)),
            "GetQueueAttributes": Operation(self._get_attributes, requires=url, accepts=("AttributeNames",)),
            "SendMessage": Operation(self._send, requires=(*url, "MessageBody"), accepts=_SENDING),
            "SendMessageBatch": Operation(self._send_batch, requires=batch),
            "ReceiveMessage": Operation(self._receive, requires=url, accepts=_RECEIVING),
            "DeleteMessage": Operation(self._delete, requires=(*url, "ReceiptHandle")),
            "DeleteMessageBatch": Operation(self._delete_batch, requires=batch),
            "ChangeMessageVisibility": Operation(
                self._change_visibility, requires=(*url, "ReceiptHandle", "VisibilityTimeout")
            ),
            "ChangeMessageVisibilityBatch": Operation(self._change_visibility_batch, requires=batch),
        }

    def _create(self, ask: Ask) -> dict[str, Any]:
        return {"QueueUrl": self._url + self._queues.create(ask["QueueName"], ask.get("Attributes", {})).name}

    def _get_url(self, ask: Ask) -> dict[str, Any]:
        return {"QueueUrl": self._url + self._queues.of(ask["QueueName"]).name}

    def _get_attributes(self, ask: Ask) -> dict[str, Any]:
        queue = self._queues.of(_name(ask))
        now = self._time.milliseconds()
        values = {
            "QueueArn": self._arn + queue.name,
            "VisibilityTimeout": str(queue.visibility_seconds),
            "ApproximateNumberOfMessages": str(sum(m.visible_at <= now for m in queue.messages)),
            "ApproximateNumberOfMessagesDelayed": str(_waiting(queue, now, received=False)),
            "ApproximateNumberOfMessagesNotVisible": str(_waiting(queue, now, received=True)),
        }
        wanted = ask.get("AttributeNames", ())
        if unknown := sorted(set(wanted) - {*values, "All"}):
            raise NotSimulatedError(f"the queue attribute {unknown[0]} is not simulated here")
        return {"Attributes": _named(values, wanted)}

    def _send(self, ask: Ask) -> dict[str, Any]:
        return self._sent(_name(ask), ask.given)

    def _send_batch(self, ask: Ask) -> dict[str, Any]:
        return _each(ask, lambda entry: self._sent(_name(ask), entry))

    def _sent(self, queue: str, entry: JSON) -> dict[str, Any]:
        delay = entry.get("DelaySeconds")
        if delay is not None and not 0 <= delay <= _LONGEST_DELAY_SECONDS:
            raise RefusedError("InvalidParameterValue", f"Value {delay} for parameter DelaySeconds is invalid.")
        accepted = self._queues.send(
            queue,
            entry["MessageBody"],
            group=entry.get("MessageGroupId"),
            deduplication_id=entry.get("MessageDeduplicationId"),
            delay_seconds=delay,
            attributes=entry.get("MessageAttributes"),
        )
        return _told_sender(accepted, entry["MessageBody"])

    def _receive(self, ask: Ask) -> dict[str, Any]:
        most = ask.get("MaxNumberOfMessages", 1)
        received = self._queues.receive(_name(ask), most, ask.get("VisibilityTimeout"))
        return {"Messages": [self._told_receiver(message, ask) for message in received]} if received else {}

    def _told_receiver(self, message: Message, ask: Ask) -> dict[str, Any]:
        """A message with those attributes that its receiver wants to know."""
        system = {
            "SenderId": self._account,
            "SentTimestamp": str(message.sent_at),
            "ApproximateReceiveCount": str(message.receives),
            "ApproximateFirstReceiveTimestamp": str(message.first_received_at),
        }
        if message.sequence:
            system["SequenceNumber"] = message.sequence
            system["MessageGroupId"] = str(message.group)
            system["MessageDeduplicationId"] = str(message.deduplication_id)
        told: dict[str, Any] = {
            "MessageId": message.id,
            "ReceiptHandle": message.handle,
            "MD5OfBody": _md5(message.body),
            "Body": message.body,
        }
        of_system = (*ask.get("AttributeNames", ()), *ask.get("MessageSystemAttributeNames", ()))
        if wanted := _named(system, of_system):
            told["Attributes"] = wanted
        if own := _named(message.attributes, ask.get("MessageAttributeNames", ())):
            told["MessageAttributes"] = own
        return told

    def _delete(self, ask: Ask) -> dict[str, Any]:
        self._queues.delete(_name(ask), ask["ReceiptHandle"])
        return {}

    def _delete_batch(self, ask: Ask) -> dict[str, Any]:
        def delete(entry: JSON) -> dict[str, Any]:
            self._queues.delete(_name(ask), entry["ReceiptHandle"])
            return {}

        return _each(ask, delete)

    def _change_visibility(self, ask: Ask) -> dict[str, Any]:
        self._queues.change_visibility(_name(ask), ask["ReceiptHandle"], ask["VisibilityTimeout"])
        return {}

    def _change_visibility_batch(self, ask: Ask) -> dict[str, Any]:
        def change(entry: JSON) -> dict[str, Any]:
            self._queues.change_visibility(_name(ask), entry["ReceiptHandle"], entry["VisibilityTimeout"])
            return {}

        return _each(ask, change)


def _name(ask: Ask) -> str:
    return str(ask["QueueUrl"]).rsplit("/", 1)[-1]


def _each(ask: Ask, act: Callable[[JSON], dict[str, Any]]) -> dict[str, Any]:
    """Each entry for itself; what is refused fails its own entry, not the batch."""
    entries = ask["Entries"]
    if not entries:
        raise RefusedError(
            "AWS.SimpleQueueService.EmptyBatchRequest", "There should be at least one entry in the request."
        )
    if len(entries) > _MOST_ENTRIES:
        raise RefusedError("AWS.SimpleQueueService.TooManyEntriesInBatchRequest", "Maximum number of entries is 10.")
    done, failed = [], []
    for entry in entries:
        try:
            done.append({"Id": entry["Id"], **act(entry)})
        except RefusedError as error:  # noqa: PERF203 - each entry for itself
            failed.append({"Id": entry["Id"], "SenderFault": True, "Code": error.code, "Message": error.message})
    return {"Successful": done, **({"Failed": failed} if failed else {})}


def _named(values: Mapping[str, Any], wanted: Collection[str]) -> dict[str, Any]:
    """Those of the values that were asked for."""
    return {name: value for name, value in values.items() if name in wanted or "All" in wanted}


def _told_sender(accepted: Accepted, body: str) -> dict[str, Any]:
    told = {"MessageId": accepted.id, "MD5OfMessageBody": _md5(body)}
    return told | ({"SequenceNumber": accepted.sequence} if accepted.sequence else {})


def _waiting(queue: Queue, now: int, *, received: bool) -> int:
    return sum(message.visible_at > now and bool(message.receives) is received for message in queue.messages)


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
