"""Implement `ports.Queue` with SQS: a FIFO queue per step, and a standard queue for messages that are not due yet.

FIFO queues have no delay per message, so a message that is not due yet waits in the standard requeue queue with
DelaySeconds. SQS delays a message by at most 15 minutes; `runtime` sends it back if it is still not due then, and otherwise
sends it to its step's queue. A queue's message group is the cluster: one runner per cluster and step.

Lambda receives messages with the queue's visibility timeout, which must be as long as the function's timeout. After a crash their message
group would wait for its end. So a function shortens it to `HOLD_SECONDS` when it starts, and renews it while it lives (`SQSQueue.hold`).

The deduplication id belongs to one `send`, not to the content: SQS drops a retry of the same call, but delivers an equal
message five seconds later, because the first one may have been received already.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from journeyman.cloud import messages as formats
from journeyman.cloud.aws.aws_errors import translated
from journeyman.core.api.wording import counted
from journeyman.core.plan import Step
from journeyman.errors import CloudProviderError, JourneymanError
from journeyman.ports import Clock, Interruption, Message, ReceivedMessage

LONGEST_DELAY_SECONDS: Final = 900  # SQS: DelaySeconds
ENTRIES_PER_CALL: Final = 10  # SQS: SendMessageBatch
BYTES_PER_CALL: Final = 256 * 1024
"""SQS accepts messages and batches of 1 MiB; some regions did of 256 KiB for long. A larger message is sent alone."""
ATTEMPTS: Final = 3
HOLD_SECONDS: Final = 20
"""How long a message stays invisible after each renewal: three renewals, so that two may fail."""
RENEW_SECONDS: Final = 6
_LAST_RENEWAL_SECONDS: Final = 1
"""How long the end of a hold waits for a renewal that is under way."""

Entry = dict[str, Any]
Failure = Mapping[str, Any]
Log = Callable[..., None]


class SQSQueue:
    """Sends requeues to the queues. Safe to share between threads, as boto3's clients are."""

    def __init__(
        self,
        sqs: Any,
        clock: Clock,
        *,
        queues: Mapping[Step, str],
        requeue_url: str,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
        log: Log = lambda *_, **__: None,
        renew_seconds: float = RENEW_SECONDS,
    ) -> None:
        """Create a sender.

        Args:
            sqs: A boto3 client.
            clock: Decides whether a message is due.
            queues: The URL of each step's FIFO queue.
            requeue_url: The URL of the standard queue, for messages that are not due or whose step has no FIFO queue.
            new_id: Returns a new deduplication id.
            log: Called with a level, a message and fields for messages that cannot be held.
            renew_seconds: How often held messages are renewed, by a thread; 0 for never, since a simulation runs without threads.
        """
        self._sqs = sqs
        self._clock = clock
        self._queues = dict(queues)
        self._requeue_url = requeue_url
        self._new_id = new_id
        self._log = log
        self._renew_seconds = renew_seconds
        self._dead_letter_urls: dict[str, str] = {}

    def send(self, messages: Iterable[Message]) -> None:
        """Send the messages, each distinct message once; those not due yet go through the requeue queue.

        Raises:
            RateLimitedError, CloudUnavailableError: SQS throttles the calls, or cannot be reached.
            CloudProviderError: SQS rejected some messages, which the error names; it accepted the others.
        """
        by_queue: dict[str, list[Entry]] = {}
        for message in formats.distinct(messages):
            url, entry = self._entry(message)
            by_queue.setdefault(url, []).append(entry)
        refused = [
            failure
            for url, entries in by_queue.items()
            for batch in _batches(entries)
            for failure in self._send_batch(url, batch)
        ]
        if refused:
            raise _not_sent(refused)

    @contextmanager
    def hold(self, messages: Sequence[ReceivedMessage]) -> Iterator[None]:
        """Keep received messages of one queue invisible inside the block, by `HOLD_SECONDS` at a time.

        A renewal that fails is logged; after two failures SQS may deliver the messages a second time, while this run goes on.
        """
        ended = threading.Event()

        def renew_until_ended() -> None:
            while not ended.wait(self._renew_seconds):
                self._renew(messages)

        self._renew(messages)
        renewing = threading.Thread(target=renew_until_ended, name="hold-messages", daemon=True)
        if self._renew_seconds:
            renewing.start()
        try:
            yield
        finally:
            ended.set()
            if self._renew_seconds:
                renewing.join(_LAST_RENEWAL_SECONDS)

    def _renew(self, messages: Sequence[ReceivedMessage]) -> None:
        try:
            self.retry(dict.fromkeys(messages, HOLD_SECONDS))
        except JourneymanError as error:
            queue = messages[0].queue
            text = f"cannot hold {counted(len(messages), 'message')} of {queue}, which may be delivered a second time: {error.message}"
            self._log("warning", text, error=type(error).__name__)

    def retry(self, seconds_by_message: Mapping[ReceivedMessage, int]) -> None:
        """Make received messages of one queue visible again after so many seconds.

        SQS counts their receives, and moves them to the dead-letter queue once these are used up. It ignores an expired receipt,
        whose message is visible already.

        Raises:
            RateLimitedError, CloudUnavailableError: SQS throttles the calls, or cannot be reached; the messages are delivered
                again after the queue's visibility timeout.
            CloudProviderError: SQS rejected the call; same.
        """
        entries = [
            {"Id": str(number), "ReceiptHandle": message.receipt, "VisibilityTimeout": seconds}
            for number, (message, seconds) in enumerate(seconds_by_message.items())
        ]
        url = self._url(next(iter(seconds_by_message)).queue)
        for batch in _batches(entries):
            with translated("sqs:ChangeMessageVisibility", queue=url):
                self._sqs.change_message_visibility_batch(QueueUrl=url, Entries=batch)

    def send_interruptions(self, queue: str, interruptions: Sequence[Interruption], delay_seconds: int) -> None:
        """Send interruptions, each of one cluster, to a standard queue, given by its ARN; deliver them after so many seconds.

        Raises:
            RateLimitedError, CloudUnavailableError: SQS throttles the calls, or cannot be reached.
            CloudProviderError: SQS rejected some messages.
        """
        entries = [
            {"Id": str(number), "MessageBody": formats.interruption_body(interruption), "DelaySeconds": delay_seconds}
            for number, interruption in enumerate(interruptions)
        ]
        refused = [failure for batch in _batches(entries) for failure in self._send_batch(self._url(queue), batch)]
        if refused:
            raise _not_sent(refused)

    def send_to_dead_letters(self, messages: Sequence[ReceivedMessage]) -> bool:
        """Send messages of one queue to its dead-letter queue; return False if it has none.

        Raises:
            RateLimitedError, CloudUnavailableError: SQS throttles the calls, or cannot be reached.
            CloudProviderError: SQS rejected some messages.
        """
        url = self._dead_letter_url(messages[0].queue)
        if not url:
            return False
        refused = [
            failure
            for batch in _batches([self._dead_letter(m) for m in messages])
            for failure in self._send_batch(url, batch)
        ]
        if refused:
            raise _not_sent(refused)
        return True

    def _dead_letter(self, message: ReceivedMessage) -> Entry:
        message_id = self._new_id()
        fifo = {"MessageGroupId": message.group, "MessageDeduplicationId": message_id} if message.group else {}
        return {"Id": message_id, "MessageBody": message.body, **fifo}

    def _url(self, queue: str) -> str:
        """Return the URL of a queue that invokes a function, which is in the account and region of our own queues."""
        return f"{self._requeue_url.rpartition('/')[0]}/{queue.rpartition(':')[2]}"

    def _dead_letter_url(self, queue: str) -> str:
        """Return the URL of a queue's dead-letter queue, which is in the same account and region; empty if it has none."""
        if queue not in self._dead_letter_urls:
            url = self._url(queue)
            with translated("sqs:GetQueueAttributes", queue=url):
                reply = self._sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["RedrivePolicy"])
            policy = json.loads(reply.get("Attributes", {}).get("RedrivePolicy", "{}"))
            target = str(policy.get("deadLetterTargetArn", ""))
            self._dead_letter_urls[queue] = self._url(target) if target else ""
        return self._dead_letter_urls[queue]

    def _entry(self, message: Message) -> tuple[str, Entry]:
        delay_seconds = formats.delay_seconds(message, self._clock, longest=LONGEST_DELAY_SECONDS)
        message_id = self._new_id()
        body = formats.requeue_body(message, message_id=message_id, clock=self._clock)
        entry: Entry = {"Id": message_id, "MessageBody": body}
        queue = self._queues.get(message.step)
        if queue is not None and not delay_seconds:
            return queue, {**entry, "MessageGroupId": message.cluster, "MessageDeduplicationId": message_id}
        return self._requeue_url, {**entry, "DelaySeconds": delay_seconds}

    def _send_batch(self, url: str, entries: Sequence[Entry]) -> list[Failure]:
        """Send up to ten messages and return those that failed. Entries that fail inside SQS are retried with the same ids."""
        remaining, refused = list(entries), []
        for attempt in range(1, ATTEMPTS + 1):
            failures: Sequence[Failure] = self._call(url, remaining).get("Failed", ())
            final = [f for f in failures if f.get("SenderFault") or attempt == ATTEMPTS]
            refused += final
            retried_ids = {f["Id"] for f in failures} - {f["Id"] for f in final}
            remaining = [entry for entry in remaining if entry["Id"] in retried_ids]
            if not remaining:
                break
        return refused

    def _call(self, url: str, entries: Sequence[Entry]) -> Mapping[str, Any]:
        with translated("sqs:SendMessage", queue=url):
            reply: Mapping[str, Any] = self._sqs.send_message_batch(QueueUrl=url, Entries=entries)
        return reply


def _batches(entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    """Yield the entries in batches that SQS accepts, in order."""
    return formats.batches(
        entries,
        entries_per_call=ENTRIES_PER_CALL,
        bytes_per_call=BYTES_PER_CALL,
        size_of=lambda entry: len(str(entry.get("MessageBody", "")).encode()),
    )


def _not_sent(refused: Sequence[Failure]) -> CloudProviderError:
    return CloudProviderError(
        f"SQS rejected {len(refused)} requeue message(s); the next sweep runs their steps",
        codes=sorted({str(failure.get("Code", "")) for failure in refused}),
        ids=[failure["Id"] for failure in refused],
    )
