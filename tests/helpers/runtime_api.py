"""The part of Lambda's Runtime API that one function needs: it serves events and receives responses, one at a time.

Source: AWS, "Using the Lambda runtime API" (2018-06-01): next invocation, response, error, initialization error.
"""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

TIMEOUT_SECONDS = 30


class RuntimeApi:
    """Runs one built function in a separate process; a context manager.

    Args:
        python: The interpreter, of the version for which the layer was built.
        function: The folder with the handlers.
        paths: The rest of Lambda's import path: the layer and the runtime interface client.
        handler: The template's `Handler`.
        variables: The function's environment variables.
    """

    def __init__(
        self, python: str, function: Path, paths: tuple[Path, ...], handler: str, variables: dict[str, str]
    ) -> None:
        self._events: queue.Queue[dict[str, Any]] = queue.Queue()
        self._answers: queue.Queue[tuple[str, Any]] = queue.Queue()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        environment = {
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": ":".join(str(path) for path in (function, *paths)),
            "AWS_LAMBDA_RUNTIME_API": f"127.0.0.1:{self._http.server_port}",
            "AWS_LAMBDA_FUNCTION_NAME": handler,
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "1769",
            "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
            "LAMBDA_TASK_ROOT": str(function),
            **variables,
        }
        self._process = subprocess.Popen(
            [python, "-m", "awslambdaric", handler], env=environment, cwd=function,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def __enter__(self) -> RuntimeApi:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self.output = self._process.communicate()[0]
        self._http.shutdown()
        self._http.server_close()

    def invoke(self, event: dict[str, Any]) -> tuple[str, Any]:
        """Invoke the function; return ("response", its result) or ("error" or "init/error", Lambda's error object)."""
        self._events.put(event)
        try:
            return self._answers.get(timeout=TIMEOUT_SECONDS)
        except queue.Empty:
            self._process.kill()
            raise AssertionError(f"no answer; the function said:\n{self._process.communicate()[0]}") from None

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        events, answers = self._events, self._answers

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                body = json.dumps(events.get()).encode()
                self.send_response(200)
                self.send_header("Lambda-Runtime-Aws-Request-Id", "req-1")
                self.send_header("Lambda-Runtime-Deadline-Ms", str(int((time.time() + TIMEOUT_SECONDS) * 1000)))
                self.send_header(
                    "Lambda-Runtime-Invoked-Function-Arn", "arn:aws:lambda:us-east-1:123456789012:function:f"
                )
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                kind = "init/error" if self.path.endswith("init/error") else self.path.rpartition("/")[2]
                self.send_response(202)
                self.send_header("Content-Length", "0")
                self.end_headers()
                answers.put((kind, json.loads(body)))

            def log_message(self, *_: object) -> None:
                """Write no log line."""

        return Handler
