"""Fixtures: an HTTP server with scripted responses, and an API server with TLS."""

import ipaddress
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from journeyman.kube.connection_pool import Connection
from journeyman.kube.http_store import HttpKubeStore
from journeyman.kube.transport import Transport
from journeyman_simulator.apiserver import ApiServer
from journeyman_simulator.apiserver.http_server import HttpApiServer
from journeyman_simulator.clock import VirtualClock


class Script:
    """The responses of a server in order, of which the last one repeats, and the requests that it received, with their bodies.

    A response is (status, headers, body), or None to close the connection.
    """

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict[str, str], bytes] | None] = []
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.bodies: list[bytes] = []
        self.ports: list[int] = []  # the client's port of each request; requests over one connection have the same
        self.url = ""
        self.delay_seconds = 0.0

    def delay_responses(self, *, seconds: float) -> None:
        self.delay_seconds = seconds

    def add_response(self, status: int, body: object = b"", **headers: str) -> None:
        """Add a response; underscores stand for the dashes of header names."""
        encoded = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.answers.append((status, {name.replace("_", "-"): value for name, value in headers.items()}, encoded))

    def add_closed_connection(self) -> None:
        self.answers.append(None)

    def next_response(self) -> tuple[int, dict[str, str], bytes] | None:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def _handler(script: Script) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            script.bodies.append(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
            script.requests.append((self.command, self.path, dict(self.headers)))
            script.ports.append(self.client_address[1])
            answer = script.next_response()
            time.sleep(script.delay_seconds)
            if answer is None:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            status, headers, body = answer
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if "Transfer-Encoding" not in headers:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with suppress(ConnectionError):  # the client's timeout has passed
                self.wfile.write(body)

        do_GET = do_POST = do_PATCH = do_DELETE = handle_any  # noqa: N815 - http.server's names

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@pytest.fixture
def script() -> Iterator[Script]:
    """Return the script of a server on the loopback interface."""
    script = Script()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(script))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    script.url = f"http://127.0.0.1:{server.server_port}"
    yield script
    server.shutdown()
    server.server_close()


@pytest.fixture
def store_for() -> Iterator[Callable[..., HttpKubeStore]]:
    """Return a function that makes a store for an address."""
    transports = []

    def make(url: str, **connection: object) -> HttpKubeStore:
        transports.append(Transport(Connection(server=url, **connection)))
        return HttpKubeStore(transports[-1], page_size=500)

    yield make
    for transport in transports:
        transport.close()


@dataclass(frozen=True)
class TlsFront:
    """An API server with TLS, its CA, and the tokens that it received."""

    url: str
    server: ApiServer
    authority: bytes
    tokens: list[str]


@pytest.fixture(scope="session")
def make_certificate(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, Path]]:
    """Return a function that makes (certificate, key) of a self-signed authority for 127.0.0.1, expired if negative."""
    return lambda lifetime=timedelta(days=1): _certificate(tmp_path_factory.mktemp("tls"), lifetime)


@pytest.fixture(scope="session")
def certificate(make_certificate: Callable[..., tuple[Path, Path]]) -> tuple[Path, Path]:
    return make_certificate()


def _certificate(folder: Path, lifetime: timedelta) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "journeyman test")])
    today = datetime.now(timezone.utc)  # noqa: TID251 - TLS checks the real time
    loopback = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - timedelta(days=2))
        .not_valid_after(today + lifetime)
        .add_extension(x509.SubjectAlternativeName([loopback]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "ca.pem").write_bytes(built.public_bytes(pem))
    (folder / "key.pem").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return folder / "ca.pem", folder / "key.pem"


@pytest.fixture
def tls_front(certificate: tuple[Path, Path]) -> Iterator[TlsFront]:
    """Return an API server with TLS that accepts tokens in EKS's format and `secret`."""
    tokens: list[str] = []

    def authenticate(token: str) -> bool:
        tokens.append(token)
        return token.startswith("k8s-aws-v1.") or token == "secret"

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    server = ApiServer(VirtualClock(datetime(2026, 3, 1, tzinfo=timezone.utc)))
    with HttpApiServer(server, authenticate=authenticate, ssl_context=context) as front:
        yield TlsFront(front.url, server, certificate[0].read_bytes(), tokens)
