"""Receives the forwarder's events over HTTPS; the cluster that the request names authenticates the sender.

The route has no other authentication. The forwarder sends a projected token of its service account, whose audience is this
receiver. A TokenReview verifies the token's signature, expiry and audience, and that the service account exists (the API
server may cache the result for ten seconds). The receiver rejects bodies that are too large and tokens of other accounts
before it sends the TokenReview. The response to a rejected request contains no reason; the log does.

An event starts one step, which derives its work from the cluster, so repeated events are harmless. Nevertheless an event is
accepted for five minutes only, and one process sends it on only once.
"""

from __future__ import annotations

import base64
from collections import OrderedDict
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from journeyman.core.api.objects import Resource
from journeyman.errors import ConfigurationError, MalformedEventError, UnknownClusterError
from journeyman.events import parse_trigger
from journeyman.events.wire_format import decode_json
from journeyman.ports import Clock, ClusterChanged, KubeStore, Message
from journeyman.runtime.composition import Runtime

Body = dict[str, Any]

MAX_EVENT_BYTES: Final = 8192
"""The largest accepted body; an event has about 500 bytes."""

MAX_TOKEN_LENGTH: Final = 8192
MAX_EVENT_AGE: Final = timedelta(minutes=5)
"""How long after its time an event is accepted, and how far in the future its time may be."""

MAX_KEPT_IDS: Final = 1024
DEFAULT_AUDIENCE: Final = "journeyman"

TOKEN_REVIEW: Final[Resource[dict[str, Any]]] = Resource(
    group="authentication.k8s.io", version="v1", kind="TokenReview", plural="tokenreviews", namespaced=False, type=dict
)


class Sender(Struct, frozen=True, kw_only=True):
    """The service account that may send, and its tokens' audience. Without a service account, every request is rejected."""

    service_account: str = ""
    audience: str = DEFAULT_AUDIENCE

    @property
    def user(self) -> str:
        """The service account's user name in Kubernetes."""
        return f"system:serviceaccount:{self.service_account.replace('/', ':')}"


def read_sender(variables: Mapping[str, str]) -> Sender:
    """Return the sender from FORWARDER_SERVICE_ACCOUNT (`namespace/name`) and FORWARDER_AUDIENCE (`journeyman`).

    Raises:
        ConfigurationError: The service account does not have the form `namespace/name`.
    """
    account = variables.get("FORWARDER_SERVICE_ACCOUNT", "")
    if account and not all(account.partition("/")[::2]):
        raise ConfigurationError(
            "FORWARDER_SERVICE_ACCOUNT does not parse",
            variable="FORWARDER_SERVICE_ACCOUNT",
            value=account[:200],
            to_do="give it the form 'journeyman/forwarder': namespace, slash, name",
        )
    return Sender(service_account=account, audience=variables.get("FORWARDER_AUDIENCE") or DEFAULT_AUDIENCE)


class Verdict(NamedTuple):
    """The response: a status and a body."""

    status: int
    body: Body


class Refusal(Exception):  # noqa: N818 - a response, not an error of ours
    """Rejects a request; `status` and the message go to the sender, `why` goes to the log."""

    def __init__(self, status: int, message: str, why: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.why = why or message


class Receiver:
    """Accepts events for the clusters of one process, and keeps the ids of the last events that it has sent on.

    Args:
        sender: The only accepted sender.
    """

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._sent: OrderedDict[tuple[str, str], None] = OrderedDict()

    def receive(self, runtime: Runtime, cluster: str, authorization: str, body: bytes) -> Verdict:
        """Authenticate and parse one request, and send a message to the step that it names.

        Args:
            runtime: The registered clusters.
            cluster: The cluster that the request's path names.
            authorization: The header `Authorization`.
            body: The request's body.

        Returns:
            202 for an event that was sent on, now or before; 400, 401 or 413 for a rejected request.

        Raises:
            JourneymanError: The cluster's API server or the queue fails; the sender should try again.
        """
        try:
            trigger = self._parse(runtime, cluster, authorization, body)
        except Refusal as refused:
            runtime.log("info", "event refused", on=cluster[:100], status=str(refused.status), why=refused.why)
            return Verdict(refused.status, {"error": "Refused", "message": str(refused)})
        return self._send(runtime, trigger)

    def _parse(self, runtime: Runtime, cluster: str, authorization: str, body: bytes) -> ClusterChanged:
        if len(body) > MAX_EVENT_BYTES:
            raise Refusal(413, f"an event has at most {MAX_EVENT_BYTES} bytes")
        self._authenticate(runtime, cluster, authorization)
        return self._read(runtime.clock, cluster, body)

    def _authenticate(self, runtime: Runtime, cluster: str, authorization: str) -> None:
        token = authorization.removeprefix("Bearer ")
        if not self._sender.service_account:
            raise _unauthenticated("FORWARDER_SERVICE_ACCOUNT is not set, so every event is rejected")
        if token == authorization or not token or len(token) > MAX_TOKEN_LENGTH:
            raise _unauthenticated("the bearer token is missing or too long")
        self._check_claims(token, runtime.clock)
        try:
            with runtime.connected(cluster) as store:
                self._review(store, token)
        except UnknownClusterError as error:
            raise _unauthenticated("the cluster is not registered here") from error

    def _check_claims(self, token: str, clock: Clock) -> None:
        """Reject a token whose claims are not the sender's; the cluster authenticates the claims later."""
        claims = _claims(token)
        if claims.sub != self._sender.user:
            raise _unauthenticated(f"the token is of {claims.sub[:200]!r}, not of {self._sender.user!r}")
        if self._sender.audience not in claims.audiences:
            raise _unauthenticated(f"the token is not for audience {self._sender.audience!r}")
        if claims.exp <= clock.now().timestamp():
            raise _unauthenticated("the token has expired")

    def _review(self, store: KubeStore, token: str) -> None:
        """Have the cluster authenticate the token."""
        review = {"spec": {"token": token, "audiences": [self._sender.audience]}}
        status: Mapping[str, Any] = store.create(TOKEN_REVIEW, review).get("status") or {}
        if not status.get("authenticated"):
            raise _unauthenticated(f"the cluster does not accept the token: {status.get('error', '')}")
        if self._sender.audience not in (status.get("audiences") or ()):
            raise _unauthenticated(f"the cluster does not confirm the token's audience {self._sender.audience!r}")
        name = (status.get("user") or {}).get("username", "")
        if name != self._sender.user:
            raise _unauthenticated(f"according to the cluster, the token is of {name!r}")

    def _read(self, clock: Clock, cluster: str, body: bytes) -> ClusterChanged:
        try:
            trigger = parse_trigger(decode_json(body, what="event", message_id="body"))
        except MalformedEventError as error:
            raise Refusal(400, error.message) from error
        if not isinstance(trigger, ClusterChanged) or trigger.cluster != cluster:
            raise Refusal(400, "the event is not the forwarder's, or names another cluster than the request")
        if abs(clock.now() - trigger.time) > MAX_EVENT_AGE:
            raise Refusal(400, "the event is too old, or the sender's clock is wrong")
        return trigger

    def _send(self, runtime: Runtime, trigger: ClusterChanged) -> Verdict:
        answer = {"cluster": trigger.cluster, "step": trigger.step.value}
        key = (trigger.cluster, trigger.id)
        if key in self._sent:
            return Verdict(202, {**answer, "status": "known"})
        runtime.queue.send([Message(cluster=trigger.cluster, step=trigger.step, reason=trigger.reason)])
        self._sent[key] = None
        if len(self._sent) > MAX_KEPT_IDS:
            self._sent.popitem(last=False)
        return Verdict(202, {**answer, "status": "sent"})


class _TokenClaims(Struct, frozen=True):
    """The claims of a service account's token."""

    sub: str = ""
    aud: str | tuple[str, ...] = ()
    exp: Annotated[float, msgspec.Meta(ge=0)] = 0.0

    @property
    def audiences(self) -> tuple[str, ...]:
        return (self.aud,) if isinstance(self.aud, str) else self.aud


def _claims(token: str) -> _TokenClaims:
    """Return the claims of a JSON Web Token, whose signature is not verified here."""
    _, _, rest = token.partition(".")
    payload = rest.partition(".")[0]
    try:
        text = base64.urlsafe_b64decode(f"{payload}==")  # tokens have no padding; what is too much is ignored
        return msgspec.json.decode(text, type=_TokenClaims)
    except (ValueError, RecursionError) as error:  # RecursionError: claims of nested objects
        raise _unauthenticated(f"the token is not a service account's: {error}") from error


def _unauthenticated(why: str) -> Refusal:
    return Refusal(401, "the sender is not authenticated", why)
