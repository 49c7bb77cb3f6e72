"""Errors of an API server, or of the connection to it, have the cluster's name and the remedy."""

import json
import socket
import ssl
import threading
from datetime import datetime, timedelta, timezone

import pytest
import urllib3

from journeyman.core.api.objects import NODE, NODECLAIM, NODEPOOL, POD
from journeyman.errors import (
    AlreadyExistsError,
    ConfigurationError,
    ConflictError,
    ForbiddenError,
    GoneError,
    InvalidError,
    InvalidObjectError,
    JourneymanError,
    KubeAPIError,
    KubeUnavailableError,
    NotFoundError,
    TooManyRequestsError,
)
from journeyman.kube.connection_pool import Connection, client_context
from journeyman.kube.error_translation import refusal, unreachable
from journeyman.kube.http_store import HttpKubeStore
from journeyman.kube.request_budget import NO_RETRIES
from journeyman.kube.transport import Transport
from journeyman_simulator.apiserver import ApiServer
from journeyman_simulator.apiserver.http_server import HttpApiServer
from journeyman_simulator.clock import VirtualClock

NOW = datetime(2026, 3, 1, tzinfo=timezone.utc)
PAGE_NOT_FOUND = b"404 page not found\n"  # kube-apiserver's whole response for a path without a kind
FORBIDDEN = {
    "kind": "Status",
    "code": 403,
    "reason": "Forbidden",
    "message": 'nodeclaims.karpenter.sh is forbidden: User "lambda" cannot patch resource "nodeclaims/status" in API group '
    '"karpenter.sh" at the cluster scope',
}


@pytest.fixture
def prod(script):
    """Return a store for cluster `prod`, whose API server has the script's responses."""
    transport = Transport(Connection(server=script.url), cluster="prod")
    yield HttpKubeStore(transport)
    transport.close()


def raised(call):
    with pytest.raises(JourneymanError) as caught:
        call()
    return caught.value


def test_missing_right_has_verb_resource_and_remedy(script, prod):
    """They are fields of the error; the remedy is the chart, which grants the permissions."""
    script.add_response(403, FORBIDDEN)
    error = raised(lambda: prod.patch(NODECLAIM, "c", {"status": {}}, subresource="status"))
    assert isinstance(error, ForbiddenError)
    context = error.context
    assert (context["cluster"], context["verb"], context["resource"], context["api_group"]) == (
        "prod", "patch", "nodeclaims/status", "karpenter.sh",
    )  # fmt: skip
    assert "infra/chart" in context["to_do"]


def test_missing_crds_have_the_command_that_installs_them(script, prod):
    """404 for a kind differs from 404 for an object; an old Karpenter may have installed CRDs of another version."""
    script.add_response(404, PAGE_NOT_FOUND)
    error = raised(lambda: prod.list(NODEPOOL))
    assert isinstance(error, NotFoundError)
    assert error.message == "the API server does not serve nodepools of karpenter.sh/v1"
    assert error.context["cluster"] == "prod"
    assert "infra/crds" in error.context["to_do"]

    script.answers.clear()
    script.add_response(404, PAGE_NOT_FOUND)
    served = [{"groupVersion": "karpenter.sh/v1beta1", "version": "v1beta1"}]
    script.add_response(200, {"kind": "APIGroup", "versions": served})
    error = raised(lambda: prod.list(NODECLAIM))
    assert isinstance(error, NotFoundError)
    assert error.message.endswith("but v1beta1: the CRDs are of another version")
    assert "infra/crds" in error.context["to_do"]

    script.answers.clear()
    status = {"kind": "Status", "code": 404, "reason": "NotFound", "details": {"name": "c"}}
    script.add_response(404, {**status, "message": 'nodeclaims.karpenter.sh "c" not found'})
    error = raised(lambda: prod.get(NODECLAIM, "c"))
    assert error.message == 'nodeclaims.karpenter.sh "c" not found'
    assert "to_do" not in error.context


def test_unreachable_server_is_described_without_urllib3s_objects(script, prod):
    """The error has server and remedy as fields, and users know no HTTPConnectionPool."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    refused, unresolved = (
        raised(lambda server=server: HttpKubeStore(Transport(Connection(server=server))).get(NODE, "n"))
        for server in (url, "http://api.cluster.invalid")
    )
    script.delay_responses(seconds=1)
    script.add_response(200)
    late = raised(lambda: list(prod.transport.stream("/", {}, 0.1, retries=NO_RETRIES)))

    assert refused.message.startswith("the API server refuses connections: Failed to establish a new connection: ")
    assert unresolved.message.startswith("the API server's name does not resolve: Failed to")
    assert late.message.startswith("the API server did not answer in time: Read timed out.")
    script.answers.clear()
    script.add_closed_connection()
    closed = raised(lambda: prod.patch(NODE, "n", {"spec": {}}))
    assert closed.retryable, "the requeue message is the retry"
    assert (closed.context["cluster"], closed.context["request"]) == ("prod", "PATCH /api/v1/nodes/n")
    assert {type(error) for error in (refused, unresolved, late, closed)} == {KubeUnavailableError}
    assert refused.context["server"] == url
    assert "to_do" in refused.context
    assert isinstance(refused.__cause__, urllib3.exceptions.HTTPError)
    assert "object at 0x" not in str(refused)


A_UID = {"field": "metadata.uid", "message": "Precondition failed"}
A_NAME = {"field": "metadata.name", "message": "must not be empty"}


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        (300, {}, KubeAPIError),
        (400, {"reason": "BadRequest"}, KubeAPIError),
        (401, {"reason": "Unauthorized"}, ForbiddenError),
        (403, {"reason": "Forbidden"}, ForbiddenError),
        (404, {"reason": "NotFound"}, NotFoundError),
        (404, {}, NotFoundError),
        (409, {"reason": "Conflict"}, ConflictError),
        (409, {"reason": "AlreadyExists"}, AlreadyExistsError),
        (410, {"reason": "Expired"}, GoneError),
        (422, {"reason": "Invalid"}, InvalidError),
        (422, {"reason": "Invalid", "details": {"causes": [A_NAME]}}, InvalidError),
        (422, {"reason": "Invalid", "details": {"causes": [A_NAME, A_UID]}}, ConflictError),
        (429, {"reason": "TooManyRequests"}, TooManyRequestsError),
        (500, {"reason": "InternalError"}, KubeAPIError),
        (502, {}, KubeUnavailableError),
        (503, {}, KubeUnavailableError),
        (504, {"reason": "Timeout"}, KubeUnavailableError),
        (504, {"reason": "Timeout", "message": "Timeout: Too large resource version: 9, current: 7"}, GoneError),
    ],
)
def test_each_refusal_has_a_class_by_what_the_caller_does_next(code, status, kind):
    """A patch of an object that was created again is a conflict, and a version from the future means a restored store."""
    error = refusal(code, json.dumps(status).encode(), "PATCH /api/v1/nodes/n")
    assert (type(error), error.status, error.reason) == (kind, code, status.get("reason", ""))


@pytest.mark.parametrize(
    ("header", "in_body", "seconds"), [("5", 7, 5), ("Wed, 21 Oct 2026 07:28:00 GMT", 7, 7), ("", 7, 7), ("", 0, 1)]
)
def test_throttled_request_is_repeated_when_the_server_says(header, in_body, seconds):
    """The header counts, then the body; without both it is a second."""
    body = json.dumps({"details": {"retryAfterSeconds": in_body}}).encode()
    assert refusal(429, body, "GET /", retry_after=header).retry_after_seconds == seconds


@pytest.mark.parametrize(
    ("said", "kind", "message"),
    [
        ("certificate verify failed: self-signed certificate", ConfigurationError, "certificate is not trusted"),
        ("[SSL] PEM lib: CERTIFICATE_VERIFY_FAILED certificate", ConfigurationError, "certificate is not trusted"),
        ("certificate verify failed: certificate has expired", ConfigurationError, "has expired or is not valid yet"),
        (
            "certificate verify failed: certificate is not yet valid",
            ConfigurationError,
            "has expired or is not valid yet",
        ),
        ("ssl/tls alert certificate expired", ConfigurationError, "does not accept the client certificate"),
        ("tlsv13 alert certificate required", ConfigurationError, "does not accept the client certificate"),
        ("tlsv1 alert unknown ca", ConfigurationError, "does not accept the client certificate"),
        ("tlsv1 alert access denied", ConfigurationError, "does not accept the client certificate"),
        ("sslv3 alert handshake failure", KubeUnavailableError, "TLS with the API server failed"),
        ("wrong version number", KubeUnavailableError, "TLS with the API server failed"),
    ],
)
def test_failed_handshake_says_whose_certificate_it_is_about(said, kind, message):
    """An alert comes from the server, so it is about the client's."""
    error = unreachable(urllib3.exceptions.SSLError(ssl.SSLError(1, said)), "https://k:6443", "GET /version")
    assert type(error) is kind
    assert message in error.message


def listed_from(certificate, key, *, host="127.0.0.1", expected=""):
    """Return the error of a list from a server with this certificate, which the client trusts."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate, key)
    trust = client_context(ca_file=str(certificate))
    with HttpApiServer(ApiServer(VirtualClock(NOW)), ssl_context=serving) as front:
        server = front.url.replace("127.0.0.1", host)
        connection = Connection(server=server, ssl_context=trust, assert_hostname=expected)
        return raised(lambda: HttpKubeStore(Transport(connection, cluster="prod")).list(NODE))


def test_expired_certificate_differs_from_an_untrusted_one(make_certificate):
    """The remedy for the first is renewal, for the second another CA."""
    error = listed_from(*make_certificate(lifetime=timedelta(days=-1)))
    assert isinstance(error, ConfigurationError)
    assert "has expired" in error.message
    assert error.context["cluster"] == "prod"
    assert error.context["to_do"].startswith("renew the API server's certificate")


@pytest.mark.parametrize(
    ("host", "expected", "said"),
    [("localhost", "", "localhost"), ("127.0.0.1", "prod.example", "prod.example")],
    ids=["OpenSSL finds out", "urllib3 finds out"],
)
def test_certificate_for_another_name_is_an_error_with_both_names(certificate, host, expected, said):
    """A retry cannot help; the remedy is to use the certificate's name."""
    error = listed_from(*certificate, host=host, expected=expected)
    assert isinstance(error, ConfigurationError)
    assert error.message == f"the API server's certificate is not for {said!r} but for '127.0.0.1'"
    assert error.context["cluster"] == "prod"
    assert "tls-server-name" in error.context["to_do"]


@pytest.mark.parametrize(
    ("alert", "kind", "retryable"),
    [(42, ConfigurationError, False), (48, ConfigurationError, False), (50, KubeUnavailableError, True)],
    ids=["bad certificate", "unknown CA", "decode error"],
)
def test_only_certificate_alerts_are_about_the_client_certificate(alert, kind, retryable):
    """Errors of other TLS alerts are retryable."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def refuse():
            with listening.accept()[0] as peer:
                peer.recv(1024)
                peer.sendall(bytes((21, 3, 3, 0, 2, 2, alert)))

        threading.Thread(target=refuse, daemon=True).start()
        connection = Connection(server=f"https://127.0.0.1:{listening.getsockname()[1]}")
        error = raised(lambda: HttpKubeStore(Transport(connection, cluster="prod")).patch(NODE, "n", {"spec": {}}))
    assert (type(error), error.retryable) == (kind, retryable)


def test_large_objects_and_unknown_fields_are_read_and_invalid_ones_are_named(script, prod):
    """The object has a megabyte in fields that the Structs do not have; `$.items[812]` alone would not help."""
    pod = {"metadata": {"name": "p", "annotations": {"big": "x" * 2**20}}, "spec": {"nobodyKnows": [{"deep": [1]}] * 9}}
    script.add_response(
        200, {"metadata": {"resourceVersion": "7", "shard": {}}, "items": [pod, {"metadata": {"name": "q"}}]}
    )
    assert [item.metadata.name for item in prod.list(POD).items] == ["p", "q"]

    script.answers.clear()
    good = {"metadata": {"name": "good"}, "spec": {}}
    bad = {"metadata": {"name": "bad"}, "spec": {"taints": "none"}}
    script.add_response(200, {"metadata": {"resourceVersion": "7"}, "items": [good, bad]})
    with pytest.raises(InvalidObjectError, match=r"NodeClaim bad cannot be read: .*taints"):
        prod.list(NODECLAIM)


def test_list_metadata_is_found_in_any_position(script, prod):
    """API servers usually send it first, and after the items of custom resources; its text may contain `"items":`."""
    odd = {"metadata": {"resourceVersion": "7", "continue": '"items":', "remainingItemCount": 1}, "items": []}
    long = {"metadata": {"name": "a", "labels": {"x": "y" * 5000}}}
    between = {"items": [long], "metadata": {"continue": "more", "resourceVersion": "7"}}
    last = {"items": [{"metadata": {"name": "b"}}], "metadata": {"continue": "", "resourceVersion": "7"}}
    for page in (odd, between, last):
        script.add_response(200, json.dumps(page).encode())
    listing = prod.list(NODECLAIM)
    assert [item.metadata.name for item in listing.items] == ["a", "b"]
    assert listing.resource_version == "7"
    assert "continue=%22items%22%3A" in script.requests[1][1]
    assert "continue=more" in script.requests[2][1]
