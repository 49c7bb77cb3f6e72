"""Receives the forwarder's events over HTTPS; the cluster that the request names authenticates the sender.

The route has no other guard, so the cluster's API server authenticates every request: the token is a
projected one of the forwarder's service account, made for this receiver alone (its audience), and a TokenReview checks its
signature, its life, its audience and that the service account still exists (it may remember for ten seconds). Before the API server is bothered, what can
be refused by looking is: bodies too large, tokens that do not even claim to be the forwarder's. Refusals say no more
than "no"; the log says why.

An event triggers one step, which derives its work from the cluster, so repeating one is harmless; still an event is accepted
for five minutes only, and not sent twice by one process.
"""

from __future__ import annotations

import base64
import binascii
from collections import OrderedDict
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from journeyman.core.api.objects import Resource
from journeyman.errors import ConfigurationError, MalformedEventError, UnknownClusterError
from journeyman.events import parse_trigger
from journeyman.events.decoding import decode_json
from journeyman.ports import Clock, ClusterChanged, KubeStore, Message
from journeyman.runtime.composition import Runtime

Body = dict[str, Any]

MOST_BYTES: Final = 8192
"""An event has some five hundred."""

LONGEST_TOKEN: Final = 8192
FRESH_FOR: Final = timedelta(minutes=5)
"""How long after it was sent, by the cluster's clock, an event is taken; and how far ahead that clock may be."""

MAX_KEPT: Final = 1024
DEFAULT_AUDIENCE: Final = "journeyman"

TOKEN_REVIEW: Final[Resource[dict[str, Any]]] = Resource(
    group="authentication.k8s.io", version="v1", kind="TokenReview", plural="tokenreviews", namespaced=False, type=dict
)


class Sender(Struct, frozen=True, kw_only=True):
    """Who may send: one service account, with tokens for one audience. Without one, every request is refused."""

    service_account: str = ""
    audience: str = DEFAULT_AUDIENCE

    @property
    def user(self) -> str:
        """Its name to Kubernetes."""
        return f"system:serviceaccount:{self.service_account.replace('/', ':')}"


def read_sender(variables: Mapping[str, str]) -> Sender:
    """FORWARDER_SERVICE_ACCOUNT (`namespace/name`; if empty, every event is refused) and FORWARDER_AUDIENCE (`journeyman`).

    Raises:
        ConfigurationError: The service account is not written so.
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
    """The answer: a status and a body."""

    status: int
    body: Body


class Refusal(Exception):  # noqa: N818 - an answer, not a failure of ours
    """The request is not served; `status` and the text are for the sender, `why` is for the log."""

    def __init__(self, status: int, message: str, why: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.why = why or message


class Receiver:
    """Accepts events for the clusters of one process, and keeps for a while which it has sent.

    Args:
        sender: Who may send.
    """

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._sent: OrderedDict[tuple[str, str], None] = OrderedDict()

    def receive(self, runtime: Runtime, cluster: str, authorization: str, body: bytes) -> Verdict:
        """Check one request, and send its step a message.

        Args:
            runtime: The clusters served here.
            cluster: The one that the request's path names.
            authorization: The header.
            body: What was sent, raw.

        Returns:
            202 for an event that was handed on, now or before; 400, 401 or 413 for one that is not served.

        Raises:
            JourneymanError: The cluster's API server or the queue does not answer, or refuses us: try again.
        """
        try:
            trigger = self._checked(runtime, cluster, authorization, body)
        except Refusal as refused:
            runtime.log("info", "event refused", on=cluster[:100], status=str(refused.status), why=refused.why)
            return Verdict(refused.status, {"error": "Refused", "message": str(refused)})
        return self._send(runtime, trigger)

    def _checked(self, runtime: Runtime, cluster: str, authorization: str, body: bytes) -> ClusterChanged:
        if len(body) > MOST_BYTES:
            raise Refusal(413, f"an event has at most {MOST_BYTES} bytes")
        self._authenticate(runtime, cluster, authorization)
        return self._read(runtime.clock, cluster, body)

    def _authenticate(self, runtime: Runtime, cluster: str, authorization: str) -> None:
        token = authorization.removeprefix("Bearer ")
        if not self._sender.service_account:
            raise _unknown("FORWARDER_SERVICE_ACCOUNT is not set, so every event is refused")
        if token == authorization or not token or len(token) > LONGEST_TOKEN:
            raise _unknown("there is no bearer token, or one of absurd length")
        self._check_claims(token, runtime.clock)
        try:
            with runtime.connected(cluster) as store:
                self._review(store, token)
        except UnknownClusterError as error:
            raise _unknown("the cluster is not registered here") from error

    def _check_claims(self, token: str, clock: Clock) -> None:
        """Refuse a token that does not claim to be the sender's; it is not authenticated yet."""
        claims = _claims(token)
        if claims.sub != self._sender.user:
            raise _unknown(f"the token is of {claims.sub[:200]!r}, not of {self._sender.user!r}")
        if self._sender.audience not in claims.audiences:
            raise _unknown(f"the token is not for audience {self._sender.audience!r}")
        if claims.exp <= clock.now().timestamp():
            raise _unknown("the token has run out")

    def _review(self, store: KubeStore, token: str) -> None:
        """Let the cluster authenticate the token."""
        asked = {"spec": {"token": token, "audiences": [self._sender.audience]}}
        status: Mapping[str, Any] = store.create(TOKEN_REVIEW, asked).get("status") or {}
        if not status.get("authenticated"):
            raise _unknown(f"the cluster does not accept the token: {status.get('error', '')}")
        if self._sender.audience not in (status.get("audiences") or ()):
            raise _unknown("the cluster does not say that the token is for our audience")
        name = (status.get("user") or {}).get("username", "")
        if name != self._sender.user:
            raise _unknown(f"the cluster says that the token is of {name!r}")

    def _read(self, clock: Clock, cluster: str, body: bytes) -> ClusterChanged:
        try:
            trigger = parse_trigger(decode_json(body, what="event", which="body"))
        except MalformedEventError as error:
            raise Refusal(400, error.message) from error
        if not isinstance(trigger, ClusterChanged) or trigger.cluster != cluster:
            raise Refusal(400, "the event is not the forwarder's, or names another cluster than the request")
        if abs(clock.now() - trigger.time) > FRESH_FOR:
            raise Refusal(400, "the event is too old, or the sender's clock is wrong")
        return trigger

    def _send(self, runtime: Runtime, trigger: ClusterChanged) -> Verdict:
        answer = {"cluster": trigger.cluster, "step": trigger.step.value}
        key = (trigger.cluster, trigger.id)
        if key in self._sent:
            return Verdict(202, {**answer, "status": "known"})
        runtime.queue.send([Message(cluster=trigger.cluster, step=trigger.step, reason=trigger.reason)])
        self._sent[key] = None
        if len(self._sent) > MAX_KEPT:
            self._sent.popitem(last=False)
        return Verdict(202, {**answer, "status": "sent"})


class _TokenClaims(Struct, frozen=True):
    """What a service account's token says of itself."""

    sub: str = ""
    aud: str | tuple[str, ...] = ()
    exp: Annotated[float, msgspec.Meta(ge=0)] = 0.0

    @property
    def audiences(self) -> tuple[str, ...]:
        return (self.aud,) if isinstance(self.aud, str) else self.aud


def _claims(token: str) -> _TokenClaims:
    """The middle part of a JSON Web Token, unchecked."""
    _, _, rest = token.partition(".")
    payload = rest.partition(".")[0]
    try:
        text = base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4))
        return msgspec.json.decode(text, type=_TokenClaims)
    except (binascii.Error, ValueError, msgspec.DecodeError) as error:
        raise _unknown(f"the token is no service account's: {error}") from error


def _unknown(why: str) -> Refusal:
    return Refusal(401, "the sender is not known here", why)
