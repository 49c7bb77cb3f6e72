"""Serves a `SimulatedSmq` over HTTP in SMQ's XML protocol, for the official SDK: queues, messages, signatures and tokens.

It is strict: an unknown element or parameter, a wrong signature, digest or token, or invalid XML is an error.

Restates: SMQ API reference: "Common parameters", "Sign requests" (HMAC-SHA1 over method, digest, type, date, headers and resource).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

from journeyman.cloud.alibaba.smq_queue import SmqError, SmqMessage
from journeyman_simulator.alibaba_account.smq import SimulatedSmq, SmqAttributes, StoredMessage
from journeyman_simulator.cloud_rules.access_keys import SimulatedAccessKey

NAMESPACE: Final = "http://mns.aliyuncs.com/doc/v1/"
VERSION: Final = "2015-06-06"
_STATUS: Final[Mapping[str, int]] = {
    "AccessDenied": 403,
    "InvalidAccessKeyId": 403,
    "SignatureDoesNotMatch": 403,
    "MessageNotExist": 404,
    "QueueNotExist": 404,
    "TimeExpired": 408,
    "QueueAlreadyExist": 409,
    "InternalError": 500,
    "ServiceUnavailable": 503,
}
"""HTTP status by error code; the other errors are 400."""
_ATTRIBUTES: Final[Mapping[str, str]] = {
    "VisibilityTimeout": "visibility_seconds",
    "MessageRetentionPeriod": "retention_seconds",
    "DelaySeconds": "delay_seconds",
    "MaximumMessageSize": "largest_message_bytes",
}

Answer = tuple[int, str, dict[str, str]]
"""Status, body and headers of a response."""


class SmqHttpServer:
    """A context manager that serves the queues until it is closed.

    Args:
        smq: The queues.
        keys: The account's access keys by id; they may change, as temporary credentials do.
        authorize: Returns whether a caller may do an operation, such as `mns:SendMessage`, on a queue; by default each may.
    """

    def __init__(
        self,
        smq: SimulatedSmq,
        keys: Mapping[str, SimulatedAccessKey],
        authorize: Callable[[str, str, str], bool] = lambda _caller, _operation, _queue: True,
    ) -> None:
        self.smq = smq
        self.keys = keys
        self.authorize = authorize
        handler = type("BoundRequestHandler", (_SmqRequestHandler,), {"front": self})
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._http.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._http.server_port}"

    def __enter__(self) -> SmqHttpServer:
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._http.server_close()


class _SmqRequestHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    front: SmqHttpServer
    disable_nagle_algorithm = True

    def do_PUT(self) -> None:
        self._answer()

    do_POST = do_GET = do_DELETE = do_PUT  # noqa: N815 - named by http.server

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - same
        """Log nothing."""

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        try:
            with self.front.smq.lock:
                status, text, headers = self._serve(body)
        except SmqError as error:
            status, text, headers = _STATUS.get(error.code, 400), _error_xml(error), {}
        data = text.encode()
        self.send_response(status)
        for name, value in {"x-mns-request-id": "5F0A1B2C3D4E5F60", "x-mns-version": VERSION, **headers}.items():
            self.send_header(name, value)
        self.send_header("content-type", "text/xml;charset=utf-8")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _serve(self, body: bytes) -> Answer:
        caller = self._authenticate(body)
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        match url.path.strip("/").split("/"):
            case ["queues", name]:
                return self._serve_queue(name, body, caller)
            case ["queues", name, "messages"]:
                return self._serve_messages(name, query, body, caller)
            case _:
                pass
        raise SmqError("InvalidRequestURL", "Http request URL format invalid.")

    def _serve_queue(self, name: str, body: bytes, caller: str) -> Answer:
        method = self.command
        self._authorize(caller, {"PUT": "CreateQueue", "DELETE": "DeleteQueue"}.get(method, method), name)
        if method == "PUT":
            known = name in self.front.smq.queues
            given = _values(_parsed(body, "Queue"), {*_ATTRIBUTES, "PollingWaitSeconds", "LoggingEnabled"})
            settings: dict[str, Any] = {
                _ATTRIBUTES[tag]: _whole_number(tag, text) for tag, text in given.items() if tag in _ATTRIBUTES
            }
            self.front.smq.create(name, SmqAttributes(**settings))
            return (204 if known else 201), "", {"location": f"{self.front.endpoint}/queues/{name}"}
        if method == "DELETE":
            self.front.smq.queues.pop(name, None)
            return 204, "", {}
        raise SmqError("InvalidRequestURL", "Http request URL format invalid.")

    def _serve_messages(self, name: str, query: Mapping[str, str], body: bytes, caller: str) -> Answer:
        smq, method = self.front.smq, self.command
        self._authorize(caller, {"POST": "SendMessage", "GET": "ReceiveMessage"}.get(method, "DeleteMessage"), name)
        if method == "POST":
            return self._send(name, body)
        if method == "GET":
            received = (
                smq.peek(name)
                if query.get("peekonly") == "true"
                else smq.receive(name, int(query.get("numOfMessages", 1)))
            )
            if not received:
                raise SmqError("MessageNotExist", "Message not exist.")
            if "numOfMessages" in query:
                return (
                    200,
                    _document("Messages", "".join(f"<Message>{_received_xml(m)}</Message>" for m in received)),
                    {},
                )
            return 200, _document("Message", _received_xml(received[0])), {}
        if "ReceiptHandle" not in query:
            raise SmqError("MissingReceiptHandle", "ReceiptHandle is required.")
        if method == "PUT":
            if "VisibilityTimeout" not in query:
                raise SmqError("MissingVisibilityTimeout", "VisibilityTimeout is required.")
            message = smq.change_visibility(name, query["ReceiptHandle"], int(query["VisibilityTimeout"]))
            changed = {"ReceiptHandle": message.receipt, "NextVisibleTime": message.visible_at}
            return 200, _document("ChangeVisibility", _elements(changed)), {}
        smq.delete(name, query["ReceiptHandle"])
        return 204, "", {}

    def _send(self, name: str, body: bytes) -> Answer:
        root = _parsed(body, "Messages", "Message")
        is_batch = root.tag == f"{{{NAMESPACE}}}Messages"
        messages = [_message(element) for element in (root if is_batch else [root])]
        try:
            accepted = self.front.smq.send(name, messages)
        except SmqError as error:
            if not error.refused or not is_batch:
                raise
            entries = [
                _elements({"ErrorCode": error.refused[i], "ErrorMessage": error.message})
                if i in error.refused
                else _elements({"MessageId": f"sent-{i}", "MessageBodyMD5": _digest(message.body)})
                for i, message in enumerate(messages)
            ]
            return 500, _document("Messages", "".join(f"<Message>{entry}</Message>" for entry in entries)), {}
        sent = [_elements({"MessageId": m.id, "MessageBodyMD5": _digest(m.body)}) for m in accepted]
        if is_batch:
            return 201, _document("Messages", "".join(f"<Message>{entry}</Message>" for entry in sent)), {}
        return 201, _document("Message", sent[0]), {}

    def _authenticate(self, body: bytes) -> str:
        """Return the caller that signed the request. Raises SmqError if the signature or token is wrong."""
        given = self.headers
        if not given.get("date"):
            raise SmqError("MissingDateHeader", "Date header is required.")
        if given.get("x-mns-version") != VERSION:
            raise SmqError("InvalidVersionHeader", "The x-mns-version header is invalid.")
        scheme, _, pair = given.get("authorization", "").partition(" ")
        key_id, _, signature = pair.partition(":")
        if scheme != "MNS" or not signature:
            raise SmqError("InvalidAuthorizationHeader", "The Authorization header format is invalid.")
        key = self.front.keys.get(key_id)
        if key is None or given.get("security-token", "") != key.security_token:
            raise SmqError("InvalidAccessKeyId", "The AccessKey Id you provided is not exist.")
        digest = given.get("content-md5", "")
        if body and digest != base64.b64encode(hashlib.md5(body).hexdigest().encode()).decode():  # noqa: S324 - SMQ's
            raise SmqError("InvalidDegist", "The Content-MD5 you specified is invalid.")
        headers = sorted((n.lower(), v) for n, v in given.items() if n.lower().startswith("x-mns-"))
        signed = "\n".join((self.command, digest, given.get("content-type", ""), given["date"], ""))
        signed += "".join(f"{name}:{value}\n" for name, value in headers) + self.path
        wanted = hmac.new(key.secret.encode(), signed.encode(), hashlib.sha1).digest()
        if not hmac.compare_digest(base64.b64encode(wanted).decode(), signature):
            raise SmqError("SignatureDoesNotMatch", "The request signature we calculated does not match.")
        return key.caller

    def _authorize(self, caller: str, operation: str, queue: str) -> None:
        if not self.front.authorize(caller, f"mns:{operation}", queue):
            raise SmqError("AccessDenied", "The OwnerId that your Access Key Id associated to is forbidden.")


def _parsed(body: bytes, *tags: str) -> ET.Element:
    try:
        root = ET.fromstring(body)  # noqa: S314 - sent by this machine's own tests
    except (ET.ParseError, ValueError) as error:
        raise SmqError("MalformedXML", "The XML you provided was not well-formed.") from error
    if root.tag not in {f"{{{NAMESPACE}}}{tag}" for tag in tags}:
        raise _schema_error(root.tag)
    return root


def _message(element: ET.Element) -> SmqMessage:
    values = _values(element, {"MessageBody", "DelaySeconds", "Priority"})
    if "MessageBody" not in values:
        raise _schema_error("MessageBody")
    return SmqMessage(values["MessageBody"], _whole_number("DelaySeconds", values.get("DelaySeconds", "0")))


def _values(element: ET.Element, known: set[str]) -> dict[str, str]:
    values = {child.tag.removeprefix(f"{{{NAMESPACE}}}"): child.text or "" for child in element}
    unknown = sorted(values.keys() - known)
    if unknown:
        raise _schema_error(unknown[0])
    return values


def _whole_number(tag: str, text: str) -> int:
    if not text.isdigit():
        raise _schema_error(tag)
    return int(text)


def _schema_error(tag: str) -> SmqError:
    text = "The XML you provided did not validate against our published schema, cause by Element"
    return SmqError("InvalidArgument", f"{text} {tag}.")


def _digest(body: str) -> str:
    return hashlib.md5(body.encode()).hexdigest().upper()  # noqa: S324 - SMQ's


def _elements(values: Mapping[str, object]) -> str:
    return "".join(f"<{tag}>{escape(str(value))}</{tag}>" for tag, value in values.items())


def _document(root: str, content: str) -> str:
    return f'<?xml version="1.0" encoding="UTF-8"?><{root} xmlns="{NAMESPACE}">{content}</{root}>'


def _received_xml(message: StoredMessage) -> str:
    return _elements(
        {
            "MessageId": message.id,
            "ReceiptHandle": message.receipt,
            "MessageBody": message.body,
            "MessageBodyMD5": _digest(message.body),
            "EnqueueTime": message.sent_at,
            "FirstDequeueTime": message.first_received_at,
            "NextVisibleTime": message.visible_at,
            "DequeueCount": message.receives,
            "Priority": 8,
        }
    )


def _error_xml(error: SmqError) -> str:
    values = {"Code": error.code, "Message": error.message, "RequestId": "5F0A1B2C3D4E5F60", "HostId": "127.0.0.1"}
    return _document("Error", _elements(values))
