"""The HTTP adapter with failing servers; the contract tests have the normal responses."""

import gzip
import json
import socket
import ssl
import threading
import time
import tracemalloc
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from journeyman.core.api.objects import NODE, NODECLAIM, POD
from journeyman.errors import (
    ConfigurationError,
    ForbiddenError,
    GoneError,
    InvalidObjectError,
    JourneymanError,
    KubeAPIError,
    KubeUnavailableError,
    NotFoundError,
    ResponseTooLargeError,
    TooManyRequestsError,
)
from journeyman.kube.connection_pool import client_context
from journeyman.kube.transport import MAX_BODY_BYTES

NODES = {"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "n"}}]}
BUSY = {"kind": "Status", "code": 429, "reason": "TooManyRequests", "message": "please wait"}


def test_read_is_retried_until_it_succeeds(script, store_for):
    script.add_closed_connection()
    script.add_response(429, BUSY, Retry_After="0")
    script.add_response(503, b"upstream is not there")
    script.add_response(200, NODES)
    listing = store_for(script.url).list(NODE)
    assert [node.metadata.name for node in listing.items] == ["n"]
    assert len(script.requests) == 4


def test_read_fails_after_some_retries(script, store_for):
    script.add_response(503, b"<html>bad gateway</html>")
    with pytest.raises(KubeUnavailableError, match="HTTP 503 without a Kubernetes Status: <html>bad gateway") as caught:
        store_for(script.url).list(NODE)
    assert (caught.value.status, caught.value.retryable) == (503, True)
    assert 1 < len(script.requests) <= 5


def test_write_that_may_have_taken_effect_is_not_retried(script, store_for):
    """That is the case after a broken connection and after 5xx."""
    script.add_closed_connection()
    with pytest.raises(KubeUnavailableError, match="closed the connection before the response was complete"):
        store_for(script.url).patch(NODE, "n", {"metadata": {}})
    script.answers.clear()
    script.add_response(503, b"", Retry_After="0")
    with pytest.raises(KubeUnavailableError):
        store_for(script.url).create(NODECLAIM, {"metadata": {"name": "c"}})
    assert len(script.requests) == 2


def test_throttled_write_is_retried_unless_it_deletes_a_pod_by_force(script, store_for):
    """429 of API Priority and Fairness means that nothing was written; the reason for force may be gone by the time of a retry."""
    for write in (
        lambda store: store.patch(NODE, "n", {"metadata": {}}),
        lambda store: store.delete(POD, "a", namespace="default", uid="u"),
    ):
        script.add_response(429, BUSY, Retry_After="0")
        script.add_response(200, {"metadata": {"name": "n"}})
        write(store_for(script.url))
        assert len(script.requests) == 2
        script.requests.clear()
        script.answers.clear()

    script.add_response(429, BUSY, Retry_After="0")
    with pytest.raises(TooManyRequestsError):
        store_for(script.url).delete(POD, "a", namespace="default", uid="u", grace_period_seconds=1)
    assert len(script.requests) == 1


def test_eviction_that_a_pdb_forbids_is_not_retried(script, store_for):
    """Retry-After is ignored; the error has the PodDisruptionBudget's cause."""
    cause = {
        "reason": "DisruptionBudget",
        "message": "The disruption budget b needs 1 healthy pods and has 1 currently",
    }
    script.add_response(429, {**BUSY, "details": {"causes": [cause], "retryAfterSeconds": 10}}, Retry_After="10")
    with pytest.raises(TooManyRequestsError) as caught:
        store_for(script.url).evict("default", "p")
    assert caught.value.retry_after_seconds == 10
    assert caught.value.context["cause"] == cause["message"]
    assert len(script.requests) == 1


def test_refused_identity_comes_with_advice(script, store_for):
    script.add_response(401, {"kind": "Status", "code": 401, "reason": "Unauthorized", "message": "Unauthorized"})
    with pytest.raises(ForbiddenError) as caught:
        store_for(script.url).get(NODE, "n")
    assert "access entries" in caught.value.context["to_do"]
    assert caught.value.context["request"] == "GET /api/v1/nodes/n"
    assert "/api/v1/nodes/n" in str(caught.value)


def test_lists_are_read_in_compressed_pages(script, store_for):
    first = {"metadata": {"resourceVersion": "7", "continue": "more"}, "items": [{"metadata": {"name": "a"}}]}
    packed = gzip.compress(json.dumps(first).encode())
    script.add_response(200, packed, Content_Encoding="gzip")
    script.add_response(200, {"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "b"}}]})
    listing = store_for(script.url).list(NODECLAIM, cached=True, field_selector="spec.nodeName=")
    assert [pod.metadata.name for pod in listing.items] == ["a", "b"]
    assert listing.resource_version == "7"
    (_, one, headers), (_, two, _) = script.requests
    assert headers["Accept-Encoding"] == "gzip"
    assert one == "/apis/karpenter.sh/v1/nodeclaims?fieldSelector=spec.nodeName%3D&resourceVersion=0&limit=500"
    assert two == "/apis/karpenter.sh/v1/nodeclaims?fieldSelector=spec.nodeName%3D&limit=500&continue=more"


def bomb(mebibytes):
    """Return a body of so many MiB, a two-hundredth of that when compressed."""
    packer = zlib.compressobj(1, wbits=31)
    filler = b" " * (1 << 20)
    return b"".join(
        [packer.compress(b'{"metadata":'), *(packer.compress(filler) for _ in range(mebibytes)), packer.flush()]
    )


def test_response_that_is_too_large_is_not_read_to_its_end(script, store_for):
    """300 MiB, 1.3 MiB on the wire, would end the function for its memory; lists that are read in pieces have failures, too."""
    script.add_response(200, bomb(300), Content_Encoding="gzip")
    script.add_response(403, bomb(100), Content_Encoding="gzip")
    tracemalloc.start()
    with pytest.raises(ResponseTooLargeError, match="GET /api/v1/nodes/n has over 64 MiB") as caught:
        store_for(script.url).get(NODE, "n")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 150 << 20
    assert "annotations" in caught.value.context["to_do"]
    assert len(script.requests) == 1
    with pytest.raises(ResponseTooLargeError, match="has over 64 MiB"):
        store_for(script.url).list(POD)


def padded(body, size):
    text = json.dumps(body).encode()
    return text[:-1] + b" " * (size - len(text)) + b"}"


def test_object_is_held_up_to_a_size(script, store_for):
    for size in (MAX_BODY_BYTES, MAX_BODY_BYTES + 1):
        script.add_response(200, padded({"metadata": {"name": "n"}}, size))
    store = store_for(script.url)
    assert store.get(NODE, "n").metadata.name == "n"
    with pytest.raises(ResponseTooLargeError):
        store.get(NODE, "n")


@pytest.mark.parametrize(("size", "requests"), [(MAX_BODY_BYTES, 1), (MAX_BODY_BYTES + 1, 2)])
def test_list_in_json_instead_of_protobuf_is_held_up_to_a_size(script, store_for, size, requests):
    """A larger one is read in pages."""
    script.add_response(200, padded(NODES, size))
    script.add_response(200, NODES)
    assert [node.metadata.name for node in store_for(script.url).list(NODE).items] == ["n"]
    assert len(script.requests) == requests


@contextmanager
def pausing_server(before, within):
    """Yield the address of a server that pauses for so many seconds before its response, and between its two lines."""
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as thread:
        is_over = threading.Event()

        def serve():
            with listening.accept()[0] as peer:
                peer.recv(1024)
                time.sleep(before)
                peer.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(b"one\n"))
                if not is_over.wait(within):
                    peer.sendall(chunked(b"two\n") + b"0\r\n\r\n")

        thread.submit(serve)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        is_over.set()


@pytest.mark.parametrize(
    ("before", "within", "lines"), [(0, 5, [b"one"]), (0.2, 0.4, [b"one", b"two"]), (0.5, 5, [b"one"])]
)
def test_silence_that_ends_a_watch_depends_on_how_slowly_it_began(store_for, before, within, lines):
    """A busy server pauses within its response, too, so the silence is four times as long, up to a second."""
    with pausing_server(before, within) as url:
        began = time.monotonic()
        arrived = store_for(url).transport.stream("/", {}, 30, quiet_seconds=0.05)
        found = [next(arrived)]
        began_after, silent_since = time.monotonic() - began, time.monotonic()
        found += arrived
        silence = time.monotonic() - silent_since
    assert found == lines
    assert silence < min(max(0.05, 4 * began_after), 1.0) + 0.5
    with pausing_server(before, 5) as url:
        unasked = store_for(url).transport.stream("/", {}, before + 0.2)  # without a silence that ends it
        assert next(unasked) == b"one"
        with pytest.raises(KubeUnavailableError, match="did not answer in time"):
            next(unasked)


def test_page_that_is_too_large_is_requested_with_fewer_objects(script, store_for):
    """Objects of 1.5 MiB make a page of 750 MiB; one that is too large for a page of its own is an error after some attempts."""
    script.add_response(200, bomb(100), Content_Encoding="gzip")
    script.add_response(200, {"metadata": {"resourceVersion": "7", "continue": "more"}, "items": []})
    script.add_response(200, {"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "b"}}]})
    assert [claim.metadata.name for claim in store_for(script.url).list(NODECLAIM).items] == ["b"]
    limits = [path.partition("?")[2] for _, path, _ in script.requests]
    assert limits == ["limit=500", "limit=62", "limit=62&continue=more"]

    script.answers.clear()
    script.add_response(200, bomb(70), Content_Encoding="gzip")
    with pytest.raises(ResponseTooLargeError, match=r"GET /apis/karpenter\.sh/v1/nodeclaims"):
        store_for(script.url).list(NODECLAIM)
    assert len(script.requests) == 3 + 4


def test_response_that_breaks_off_is_read_again(script, store_for):
    """As if the connection had broken before the response began; a write is not repeated."""
    script.add_response(200, b"{\r\n", Content_Encoding="identity", Transfer_Encoding="chunked")
    script.add_response(200, NODES["items"][0])
    assert store_for(script.url).get(NODE, "n").metadata.name == "n"


def test_list_that_expires_between_pages_is_read_without_pages(script, store_for):
    """client-go does the same."""
    script.add_response(
        200, {"metadata": {"resourceVersion": "7", "continue": "more"}, "items": [{"metadata": {"name": "a"}}]}
    )
    script.add_response(410, {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"})
    script.add_response(200, NODES)
    assert [node.metadata.name for node in store_for(script.url).list(NODECLAIM).items] == ["n"]
    assert "limit" not in script.requests[-1][1]


@pytest.mark.parametrize(
    ("body", "error", "said"),
    [
        ({"metadata": {"name": "n", "labels": {"a": 5}}}, InvalidObjectError, r"Node n cannot be read: .*labels"),
        (b"<html>please log in</html>", KubeAPIError, "not an API server's"),
    ],
    ids=["the object and its field are named", "a proxy's login page"],
)
def test_response_that_is_no_object_is_an_error(script, store_for, body, error, said):
    script.add_response(200, body)
    with pytest.raises(error, match=said):
        store_for(script.url).get(NODE, "n")


def chunked(*lines):
    return b"".join(b"%x\r\n%b\r\n" % (len(line), line) for line in lines)


@pytest.mark.parametrize(("given", "asked"), [(0, "1"), (0.2, "1"), (1, "1"), (2.5, "3")])
def test_watch_reads_lines_across_chunks_for_its_timeout(script, store_for, given, asked):
    """Chunks end anywhere, events at newlines. An API server watches for half an hour at least without whole, positive seconds."""
    one = b'{"type":"ADDED","object":{"metadata":{"name":"a","resourceVersion":"8"}}}\n'
    two = b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}\n'
    script.add_response(200, chunked(one[:20], one[20:] + two[:5], two[5:]) + b"0\r\n\r\n", Transfer_Encoding="chunked")
    events = list(store_for(script.url).watch(NODE, resource_version="7", timeout_seconds=given))
    assert [(e.type, e.resource_version) for e in events] == [("ADDED", "8"), ("BOOKMARK", "9")]
    assert events[0].object.metadata.name == "a"
    assert f"timeoutSeconds={asked}&" in f"{script.requests[0][1]}&"

    script.answers.clear()
    script.add_response(200, chunked(one), Transfer_Encoding="chunked", Connection="close")
    broken = store_for(script.url).watch(NODE, resource_version="7")
    assert next(broken).resource_version == "8"
    with pytest.raises(KubeUnavailableError):
        next(broken)


@pytest.mark.parametrize(
    ("time", "year"),
    [("0000-01-01T00:00:00Z", 1), ("10000-01-01T00:00:00Z", 9999), ("10000-01-01T00:00:00+14:00", 9999)],
)
def test_time_beyond_any_range_fails_neither_get_nor_list_nor_watch(script, store_for, time, year):
    """The API server admits it; the object has the earliest or latest time instead, and all others are read."""
    odd = {"metadata": {"name": "odd", "resourceVersion": "8", "creationTimestamp": time}}
    line = json.dumps({"type": "ADDED", "object": odd}).encode() + b"\n"
    script.add_response(200, odd)
    script.add_response(200, {"metadata": {"resourceVersion": "7"}, "items": [odd, {"metadata": {"name": "n"}}]})
    script.add_response(200, chunked(line) + b"0\r\n\r\n", Transfer_Encoding="chunked")
    store = store_for(script.url)

    one, (listed, other) = store.get(NODECLAIM, "odd"), store.list(NODECLAIM).items
    (event,) = store.watch(NODECLAIM, resource_version="7", timeout_seconds=0.2)
    assert [found.metadata.creation_timestamp.year for found in (one, listed, event.object)] == [year] * 3
    assert other.metadata.name == "n"


def test_error_event_of_a_watch_is_raised(script, store_for):
    expired = {"code": 410, "reason": "Expired", "message": "too old"}
    line = json.dumps({"type": "ERROR", "object": expired}).encode()
    script.add_response(200, chunked(line + b"\n") + b"0\r\n\r\n", Transfer_Encoding="chunked")
    script.add_response(410, expired)
    for _ in range(2):
        with pytest.raises(GoneError, match="too old"):
            list(store_for(script.url).watch(NODE, resource_version="7"))


@pytest.mark.parametrize("status", [300, 400, 401, 409, 415, 422, 500])  # the classes: test_error_translation.py
def test_each_failure_is_a_journeyman_error(script, store_for, status):
    script.add_response(status, b"", Retry_After="0")
    for attempt in (
        lambda store: store.get(NODE, "n"),
        lambda store: store.patch(NODE, "n", {}),
        lambda store: store.delete(NODE, "n"),
    ):
        with pytest.raises(JourneymanError) as caught:
            attempt(store_for(script.url))
        assert isinstance(caught.value, KubeAPIError)
        assert caught.value.status == status


def test_authorization_is_read_before_each_request(script, store_for):
    tokens = iter(["Bearer one", "Bearer two"])
    script.add_response(200, {"metadata": {"name": "n"}})
    store = store_for(script.url, authorization=lambda: next(tokens))
    store.get(NODE, "n")
    store.get(NODE, "n")
    assert [headers["Authorization"] for _, _, headers in script.requests] == ["Bearer one", "Bearer two"]


def test_deletion_sends_its_preconditions(script, store_for):
    """404 is raised, because some callers accept it."""
    script.add_response(404, {"code": 404, "reason": "NotFound", "message": 'nodes "n" not found'})
    store = store_for(script.url)
    with pytest.raises(NotFoundError, match='nodes "n" not found'):
        store.delete(NODE, "n", uid="u", resource_version="5", grace_period_seconds=0)
    with pytest.raises(NotFoundError):
        store.delete(NODE, "n")
    assert [verb for verb, _, _ in script.requests] == ["DELETE", "DELETE"]
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
    assert [json.loads(body) for body in script.bodies] == [
        {**options, "preconditions": {"uid": "u", "resourceVersion": "5"}, "gracePeriodSeconds": 0},
        options,
    ]


def test_untrusted_certificate_is_a_configuration_error(store_for, tls_front):
    """A retry cannot help; the remedy names the CA."""
    with pytest.raises(ConfigurationError, match="certificate is not trusted") as caught:
        store_for(tls_front.url).get(NODE, "n")
    assert not caught.value.retryable
    assert "CA certificate" in caught.value.context["to_do"]


def test_connections_do_not_change_a_shared_tls_context(store_for, tls_front, certificate, monkeypatch):
    """If another thread starts a handshake at that time, OpenSSL sends a malformed ClientHello."""
    changed = []
    change = ssl.SSLContext.set_alpn_protocols

    def recording(context, protocols):
        changed.append(protocols)
        change(context, protocols)

    monkeypatch.setattr(ssl.SSLContext, "set_alpn_protocols", recording)
    context = client_context(ca_file=str(certificate[0]))
    assert len(changed) == 1
    store = store_for(tls_front.url, ssl_context=context, authorization=lambda: "Bearer secret")
    with ThreadPoolExecutor(16) as threads:
        listings = list(threads.map(lambda _: store.list(NODE), range(64)))
    for _ in range(3):
        store_for(tls_front.url, ssl_context=context, authorization=lambda: "Bearer secret").list(NODE)
    assert (len(listings), len(changed)) == (64, 1)


def test_servers_are_verified_as_by_python_itself(certificate):
    """With the system's authorities, or with those of the cluster only."""
    for own in (client_context(), client_context(ca_file=str(certificate[0]))):
        default = ssl.create_default_context()
        assert (own.verify_flags, own.verify_mode) == (default.verify_flags, default.verify_mode)
        assert own.check_hostname
    assert [found["subject"] for found in own.get_ca_certs()] == [((("commonName", "journeyman test"),),)]


@pytest.mark.parametrize("force", [True, False])
def test_server_side_apply_names_its_manager_and_forces_only_if_asked(script, store_for, force):
    """Without `force` the API server refuses to take a field from another manager."""
    script.add_response(200, {"metadata": {"name": "n"}})
    store_for(script.url).apply(NODE, "n", {"metadata": {"labels": {"a": "b"}}}, manager="me", force=force)
    [(verb, path, _)] = script.requests
    assert verb == "PATCH"
    assert sorted(path.partition("?")[2].split("&")) == ["fieldManager=me", *(["force=true"] if force else [])]


@pytest.mark.parametrize(("given", "own", "used"), [("", "web", "web"), ("web", "", "web"), ("web", "other", "web")])
def test_object_is_created_in_the_given_namespace_or_its_own(script, store_for, given, own, used):
    """The argument comes first."""
    script.add_response(201, {"metadata": {"name": "p"}})
    store_for(script.url).create(POD, {"metadata": {"name": "p", "namespace": own}}, namespace=given)
    [(_, path, _)] = script.requests
    assert path == f"/api/v1/namespaces/{used}/pods"
