"""Implements `ports.Queue` with Simple Message Queue (SMQ, formerly MNS): a standard queue per step, and one dead-letter queue.

SMQ delays each message by itself, for up to 7 days, so a message that is not due yet waits in its own step's queue. It may expire
there after 7 days, so its delay is at most 6 (`LONGEST_DELAY_SECONDS`); the queues need the longest retention, 7 days. A step that
a message starts too early finds nothing to do, and requeues itself.

EventBridge receives the messages, invokes the step's function with a batch of them, and deletes them once the function returned.
So the function cannot delay, keep or fail a single message. One that failed is sent again as a new message, whose body counts its
receives in the field `receives`, and goes to the dead-letter queue once these are used up (`SmqQueue.retry`). Standard queues are
neither ordered nor free of duplicates: the Lease keeps runs of one cluster apart, and steps tolerate both.

Bodies are Base64 in the queue, as by default in the SDK and in EventBridge, which decodes them (`IsBase64Decode`). No character
of an unreadable message can then make the XML of a request invalid.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from journeyman.cloud import messages as formats
from journeyman.core.api.wording import counted
from journeyman.core.plan import Step
from journeyman.errors import CloudProviderError, CloudUnavailableError, ConfigurationError, RateLimitedError
from journeyman.ports import Clock, Interruption, Message, ReceivedMessage

if TYPE_CHECKING:
    from mns.mns_client import MNSClient

    from journeyman.signing import Credentials

LONGEST_DELAY_SECONDS: Final = 6 * 24 * 3600
"""SMQ accepts 7 days, after which the message would expire at once: its retention starts when it is sent."""
MESSAGES_PER_CALL: Final = 16  # SMQ: BatchSendMessage
BYTES_PER_CALL: Final = 64 * 1024
"""SMQ: the bodies of all messages of a call, as sent."""
LARGEST_BODY_BYTES: Final = BYTES_PER_CALL // 4 * 3
"""The bytes of a body that fits into a call in Base64."""
ATTEMPTS: Final = 3
TIMEOUT_SECONDS: Final = 10
"""How long a request waits for a connection, and then for each part of the response."""

_THROTTLED: Final = frozenset({"QpsLimitExceeded", "TooManyRequests", "Throttling"})
_SERVER_ERRORS: Final = frozenset({"InternalError", "InternalServerError", "ServiceUnavailable", "TimeExpired"})
"""Errors inside SMQ; and a request whose signature is too old, because its sandbox was frozen."""
_UNAUTHORIZED: Final = frozenset(
    {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidSecurityToken", "SecurityTokenExpired"}
)
_NO_RESPONSE: Final = ""


class SmqMessage(NamedTuple):
    """A message as it is sent: its body, which SMQ gets in Base64, and the seconds until it is delivered."""

    body: str
    delay_seconds: int = 0


class SmqError(Exception):
    """SMQ refused a request, some of its messages, or did not respond.

    Attributes:
        code: SMQ's error code; empty if there was no response.
        refused: The error code of each refused message by its index, if SMQ accepted the others.
    """

    def __init__(self, code: str, message: str, *, refused: Mapping[int, str] | None = None) -> None:
        super().__init__(f"{code}: {message}" if code else message)
        self.code = code
        self.message = message
        self.refused = dict(refused or {})


class Smq(Protocol):
    """Sends messages to SMQ; safe to share between threads."""

    def send(self, queue: str, messages: Sequence[SmqMessage]) -> None:
        """Send up to 16 messages, of 64 KiB together, to a queue, given by its name. Raises SmqError."""
        ...


class SdkSmq:
    """`Smq` with the official SDK, imported for the first request.

    A client of the SDK has one connection and no lock, so each thread takes an idle client or creates one.

    Args:
        endpoint: The account's endpoint for the queues, such as `https://123.mns.cn-hangzhou.aliyuncs.com`.
        credentials: Returns the credentials; called for each request, since those of a role expire.
    """

    def __init__(self, endpoint: str, credentials: Callable[[], Credentials]) -> None:
        self._endpoint = endpoint
        self._credentials = credentials
        self._idle: list[MNSClient] = []

    def send(self, queue: str, messages: Sequence[SmqMessage]) -> None:
        """Send messages in one request. Raises SmqError."""
        from mns.mns_exception import MNSExceptionBase, MNSServerException  # noqa: PLC0415 - see above
        from mns.mns_request import BatchSendMessageRequest, BatchSendMessageResponse  # noqa: PLC0415 - see above

        request = BatchSendMessageRequest(queue, True)
        for message in messages:
            request.add_message(message.body, message.delay_seconds)
        try:
            with self._client() as client:
                client.batch_send_message(request, BatchSendMessageResponse())
        except MNSServerException as error:
            codes = [str(entry.get("ErrorCode", "")) for entry in error.sub_errors or ()]
            refused = {index: code for index, code in enumerate(codes) if code}
            raise SmqError(str(error.type), str(error.message), refused=refused) from error
        except MNSExceptionBase as error:  # no response, or one that the SDK cannot read
            raise SmqError(_NO_RESPONSE, f"{error.type}: {error.message}") from error

    @contextmanager
    def _client(self) -> Iterator[MNSClient]:
        try:
            client = self._idle.pop()
        except IndexError:
            client = new_client(self._endpoint, self._credentials)
        try:
            yield client
        finally:
            self._idle.append(client)


def new_client(endpoint: str, credentials: Callable[[], Credentials]) -> MNSClient:
    """Return a client of the SDK, which opens its connection for the first request."""
    from mns.mns_client import MNSClient  # noqa: PLC0415 - `mns.account` would import twice as much

    client = MNSClient(endpoint, credentials_provider=_SdkCredentials(credentials))
    # not `set_connection_timeout`, which replaces a TLS connection by one without
    client.http.conn.timeout = client.http.conn.connection_timeout = TIMEOUT_SECONDS
    return client


class _SdkCredentials:
    """The SDK's provider of credentials, which it calls for each request."""

    def __init__(self, read: Callable[[], Credentials]) -> None:
        self._read = read

    def get_credentials(self) -> Any:
        """Return the credentials in the SDK's type."""
        from mns.auth import Credentials as SdkCredentials  # noqa: PLC0415 - as above

        now = self._read()
        return SdkCredentials(now.access_key_id, now.access_key_secret, now.security_token)


class SmqQueue:
    """Sends messages to the queues of the steps. Safe to share between threads."""

    def __init__(
        self,
        smq: Smq,
        clock: Clock,
        *,
        queues: Mapping[Step, str],
        dead_letter_queue: str,
        max_receives: int = formats.MAX_RECEIVES,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        """Create a sender.

        Args:
            smq: Sends to the queues.
            clock: Decides whether a message is due.
            queues: The name of each step's queue, the sweep's included.
            dead_letter_queue: The name of the queue for messages that cannot succeed or whose receives are used up.
            max_receives: How often a message is received before it goes there.
            new_id: Returns a new message id.
        """
        self._smq = smq
        self._clock = clock
        self._queues = dict(queues)
        self._dead_letter_queue = dead_letter_queue
        self._max_receives = max_receives
        self._new_id = new_id

    def send(self, messages: Iterable[Message]) -> None:
        """Send the messages, each distinct message once, to their steps' queues; each is delivered when it is due.

        Raises:
            RateLimitedError, CloudUnavailableError: SMQ throttles the calls, or cannot be reached.
            ConfigurationError: A queue does not exist, or the function's role may not send to it.
            CloudProviderError: SMQ rejected some messages; it accepted the others.
        """
        by_queue: dict[str, list[SmqMessage]] = {}
        for message in formats.distinct(messages):
            body = formats.requeue_body(message, message_id=self._new_id(), clock=self._clock)
            delay_seconds = formats.delay_seconds(message, self._clock, longest=LONGEST_DELAY_SECONDS)
            by_queue.setdefault(self._name_of(message.step), []).append(SmqMessage(body, delay_seconds))
        self._send(by_queue)

    @contextmanager
    def hold(self, messages: Sequence[ReceivedMessage]) -> Iterator[None]:
        """Do nothing: EventBridge holds the messages until the function returned, and repeats the batch after a crash."""
        yield

    def retry(self, seconds_by_message: Mapping[ReceivedMessage, int]) -> None:
        """Send received messages again, to be delivered after so many seconds, and with one more receive in their bodies.

        EventBridge deletes the received ones when the function returns. Those whose receives are used up go to the dead-letter
        queue.

        Raises:
            RateLimitedError, CloudUnavailableError, ConfigurationError, CloudProviderError: As `send`.
        """
        by_queue: dict[str, list[SmqMessage]] = {}
        for message, seconds in seconds_by_message.items():
            if message.receives >= self._max_receives:
                by_queue.setdefault(self._dead_letter_queue, []).append(_dead_letter(message))
            else:
                again = SmqMessage(formats.with_receives(message.body, message.receives), seconds)
                by_queue.setdefault(self._name_of(Step(message.queue)), []).append(again)
        self._send(by_queue)

    def send_interruptions(self, queue: str, interruptions: Sequence[Interruption], delay_seconds: int) -> None:
        """Send interruptions, each of one cluster, to a step's queue; deliver them after so many seconds.

        Raises:
            RateLimitedError, CloudUnavailableError, ConfigurationError, CloudProviderError: As `send`.
        """
        messages = [SmqMessage(formats.interruption_body(each), delay_seconds) for each in interruptions]
        self._send({self._name_of(Step(queue)): messages})

    def send_to_dead_letters(self, messages: Sequence[ReceivedMessage]) -> bool:
        """Send messages to the dead-letter queue; return True.

        Raises:
            RateLimitedError, CloudUnavailableError, ConfigurationError, CloudProviderError: As `send`.
        """
        self._send({self._dead_letter_queue: [_dead_letter(message) for message in messages]})
        return True

    def _name_of(self, step: Step) -> str:
        if step not in self._queues:
            raise ConfigurationError(
                f"no queue is configured for {step.value}", step=step.value, to_do="set the name of its SMQ queue"
            )
        return self._queues[step]

    def _send(self, by_queue: Mapping[str, Sequence[SmqMessage]]) -> None:
        """Send messages to their queues; raise for those that SMQ rejected after all others were sent."""
        refused: list[str] = []
        for queue, messages in by_queue.items():
            for batch in _batches(messages):
                refused += self._send_batch(queue, batch)
        if refused:
            raise CloudProviderError(
                f"SMQ rejected {counted(len(refused), 'message')}; the next sweep runs their steps",
                codes=sorted(set(refused)),
            )

    def _send_batch(self, queue: str, messages: Sequence[SmqMessage]) -> list[str]:
        """Send the messages of one call; return the error codes of those that SMQ rejected.

        Messages that fail inside SMQ are sent again at once; a duplicate is harmless.
        """
        remaining, rejected = list(messages), list[str]()
        for attempt in range(1, ATTEMPTS + 1):
            try:
                self._smq.send(queue, remaining)
            except SmqError as error:
                if not error.refused:
                    if attempt < ATTEMPTS and error.code in {_NO_RESPONSE, *_SERVER_ERRORS}:
                        continue
                    raise _translated(error, queue) from error
                is_final = attempt == ATTEMPTS
                rejected += [code for code in error.refused.values() if is_final or code not in _SERVER_ERRORS]
                remaining = [remaining[i] for i, code in error.refused.items() if code in _SERVER_ERRORS]
                if remaining and not is_final:
                    continue
            break
        return rejected


def _dead_letter(message: ReceivedMessage) -> SmqMessage:
    """Return a copy of the message; only the start of one that is too large for SMQ, such as a direct event of EventBridge."""
    body = message.body.encode(errors="replace")[:LARGEST_BODY_BYTES].decode(errors="ignore")
    return SmqMessage(body or "{}")


def _batches(messages: Sequence[SmqMessage]) -> Iterator[list[SmqMessage]]:
    return formats.batches(
        messages,
        entries_per_call=MESSAGES_PER_CALL,
        bytes_per_call=BYTES_PER_CALL,
        size_of=lambda message: len(base64.b64encode(message.body.encode())),
    )


def _translated(error: SmqError, queue: str) -> CloudProviderError | ConfigurationError:
    """Return the `journeyman.errors` error for a request that SMQ refused or did not answer."""
    facts: dict[str, Any] = {"operation": "mns:SendMessage", "queue": queue, "code": error.code}
    if error.code in _THROTTLED:
        return RateLimitedError(f"SMQ throttles messages to {queue}: {error.message}", **facts)
    if error.code == _NO_RESPONSE:
        return CloudUnavailableError(f"SMQ sent no valid response: {error.message}", **facts)
    if error.code in _SERVER_ERRORS:
        return CloudUnavailableError(f"SMQ failed: {error.message}", **facts)
    if error.code == "QueueNotExist":
        to_do = "create the queue in the region of the functions, or correct its name in their environment"
        return ConfigurationError(f"SMQ has no queue {queue}", **facts, to_do=to_do)
    if error.code in _UNAUTHORIZED:
        to_do = f"grant mns:SendMessage on the queue {queue} to the functions' role"
        return ConfigurationError(f"not allowed to send to queue {queue}: {error.message}", **facts, to_do=to_do)
    return CloudProviderError(f"SMQ refused messages to {queue}: {error.code}: {error.message}", **facts)
