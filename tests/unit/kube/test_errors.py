"""What goes wrong between us and an API server is told with the cluster's name and what to do about it."""

import json
import socket
import ssl
import threading
from datetime import datetime, timedelta, timezone

import pytest

from journeyman.core.api.objects import NODE, NODECLAIM, NODEPOOL, POD
from journeyman.errors import (
    ConfigurationError,
    ForbiddenError,
    InvalidObjectError,
    JourneymanError,
    KubeUnavailableError,
    NotFoundError,
)
from journeyman.kube.connection_pool import Connection
from journeyman.kube.http_store import HttpKubeStore
from journeyman.kube.tls import client_context
from journeyman.kube.transport import Transport
from journeyman_simulator.apiserver import ApiServer
from journeyman_simulator.apiserver.http_server import HttpApiServer
from journeyman_simulator.clock import VirtualClock

NOW = datetime(2026, 3, 1, tzinfo=timezone.utc)
PAGE_NOT_FOUND = b"404 page not found\n"  # kube-apiserver's whole answer for a path that is no kind's
FORBIDDEN = {
    "kind": "Status",
    "code": 403,
    "reason": "Forbidden",
    "message": 'nodeclaims.karpenter.sh is forbidden: User "lambda" cannot patch resource "nodeclaims/status" in API group '
    '"karpenter.sh" at the cluster scope',
}


@pytest.fixture
def prod(script):
    """A store for cluster `prod`, whose API server says what the script has."""
    transport = Transport(Connection(server=script.url), cluster="prod")
    yield HttpKubeStore(transport)
    transport.close()


def raised(call):
    with pytest.raises(JourneymanError) as caught:
        call()
    return caught.value


def test_a_missing_right_is_named_with_where_it_comes_from(script, prod):
    """Verb, resource and group as fields; the chart that grants them as advice."""
    script.say(403, FORBIDDEN)
    error = raised(lambda: prod.patch(NODECLAIM, "c", {"status": {}}, subresource="status"))
    assert isinstance(error, ForbiddenError)
    told = error.context
    assert (told["cluster"], told["verb"], told["resource"], told["api_group"]) == (
        "prod", "patch", "nodeclaims/status", "karpenter.sh",
    )  # fmt: skip
    assert "infra/chart" in told["to_do"]


def test_missing_crds_are_told_with_how_to_install_them(script, prod):
    """404 about a whole kind is another matter than 404 about an object."""
    script.say(404, PAGE_NOT_FOUND)
    error = raised(lambda: prod.list(NODEPOOL))
    assert isinstance(error, NotFoundError)
    assert error.message == "the API server does not serve nodepools of karpenter.sh/v1"
    assert error.context["cluster"] == "prod"
    assert "infra/crds" in error.context["to_do"]


def test_crds_of_another_version_are_told_with_that_version(script, prod):
    """As an old Karpenter leaves them behind."""
    script.say(404, PAGE_NOT_FOUND)
    script.say(200, {"kind": "APIGroup", "versions": [{"groupVersion": "karpenter.sh/v1beta1", "version": "v1beta1"}]})
    error = raised(lambda: prod.list(NODECLAIM))
    assert isinstance(error, NotFoundError)
    assert error.message.endswith("but v1beta1: the CRDs are of another version")
    assert "infra/crds" in error.context["to_do"]


def test_a_single_object_that_is_missing_stays_what_it_is(script, prod):
    """The server's own words, and no talk of CRDs."""
    message = 'nodeclaims.karpenter.sh "c" not found'
    script.say(404, {"kind": "Status", "code": 404, "reason": "NotFound", "message": message, "details": {"name": "c"}})
    error = raised(lambda: prod.get(NODECLAIM, "c"))
    assert error.message == message
    assert "to_do" not in error.context


def test_an_expired_certificate_is_told_apart_from_an_unknown_one(make_certificate):
    """Renewing it is another remedy than trusting another CA."""
    certificate, key = make_certificate(lifetime=timedelta(days=-1))
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate, key)
    trust = client_context(ca_file=str(certificate))
    with HttpApiServer(ApiServer(VirtualClock(NOW)), ssl_context=serving) as front:
        store = HttpKubeStore(Transport(Connection(server=front.url, ssl_context=trust), cluster="prod"))
        error = raised(lambda: store.list(NODE))
    assert isinstance(error, ConfigurationError)
    assert "has expired" in error.message
    assert error.context["cluster"] == "prod"
    assert error.context["to_do"].startswith("renew the API server's certificate")


@pytest.mark.parametrize(
    ("host", "expected", "said"),
    [("localhost", "", "localhost"), ("127.0.0.1", "prod.example", "prod.example")],
    ids=["OpenSSL finds out", "urllib3 finds out"],
)
def test_a_certificate_for_another_name_is_told_with_both_names(certificate, host, expected, said):
    """No retry makes it ours; whoever reads it must know which name to use instead."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(*certificate)
    trust = client_context(ca_file=str(certificate[0]))
    with HttpApiServer(ApiServer(VirtualClock(NOW)), ssl_context=serving) as front:
        server = front.url.replace("127.0.0.1", host)
        connection = Connection(server=server, ssl_context=trust, assert_hostname=expected)
        error = raised(lambda: HttpKubeStore(Transport(connection, cluster="prod")).list(NODE))
    assert isinstance(error, ConfigurationError)
    assert error.message == f"the API server's certificate is not for {said!r} but for '127.0.0.1'"
    assert error.context["cluster"] == "prod"
    assert "tls-server-name" in error.context["to_do"]


@pytest.mark.parametrize(
    ("alert", "kind", "retryable"),
    [(42, ConfigurationError, False), (48, ConfigurationError, False), (50, KubeUnavailableError, True)],
    ids=["bad certificate", "unknown CA", "decode error"],
)
def test_only_what_is_said_of_our_certificate_is_about_it(alert, kind, retryable):
    """Other alerts are accidents, and the next try may go well."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def refuse():
            with listening.accept()[0] as peer:
                peer.recv(1024)
                peer.sendall(bytes((21, 3, 3, 0, 2, 2, alert)))

        threading.Thread(target=refuse, daemon=True).start()
        connection = Connection(server=f"https://127.0.0.1:{listening.getsockname()[1]}")
        error = raised(lambda: HttpKubeStore(Transport(connection, cluster="prod")).patch(NODE, "n", {"spec": {}}))
    assert (type(error), error.retryable) == (kind, retryable)


def test_an_unreachable_server_names_cluster_and_request(prod, script):
    """And is worth another try, which the wake-up is."""
    script.hang_up()
    error = raised(lambda: prod.patch(NODE, "n", {"spec": {}}))
    assert isinstance(error, KubeUnavailableError)
    assert error.retryable
    assert (error.context["cluster"], error.context["request"]) == ("prod", "PATCH /api/v1/nodes/n")


def test_one_object_of_another_shape_is_found_among_the_others(script, prod):
    """A list of thousands that says only `$.items[812]` helps nobody."""
    good = {"metadata": {"name": "good"}, "spec": {}}
    bad = {"metadata": {"name": "bad"}, "spec": {"taints": "none"}}
    script.say(200, {"metadata": {"resourceVersion": "7"}, "items": [good, bad]})
    with pytest.raises(InvalidObjectError, match=r"NodeClaim bad cannot be read: .*taints"):
        prod.list(NODECLAIM)


def test_large_objects_and_unknown_fields_are_nothing_special(script, prod):
    """A megabyte of what we do not read, in fields that nobody has heard of."""
    pod = {"metadata": {"name": "p", "annotations": {"big": "x" * 2**20}}, "spec": {"nobodyKnows": [{"deep": [1]}] * 9}}
    script.say(200, {"metadata": {"resourceVersion": "7", "shard": {}}, "items": [pod, {"metadata": {"name": "q"}}]})
    assert [item.metadata.name for item in prod.list(POD).items] == ["p", "q"]


def test_pages_are_found_wherever_the_metadata_is(script, prod):
    """API servers send it first; nobody promised that, nor that its words do not come in it."""
    odd = {"metadata": {"resourceVersion": "7", "continue": '"items":', "remainingItemCount": 1}, "items": []}
    last = {"items": [{"metadata": {"name": "a", "labels": {"x": "y" * 5000}}}], "metadata": {"resourceVersion": "7"}}
    script.say(200, json.dumps(odd).encode())
    script.say(200, json.dumps(last).encode())
    assert [item.metadata.name for item in prod.list(NODECLAIM).items] == ["a"]
    assert "continue=%22items%22%3A" in script.requests[1][1]
