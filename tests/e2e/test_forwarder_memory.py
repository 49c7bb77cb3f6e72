"""The forwarder's peak resident memory, measured in a process like the pod's, with TLS to the API server and to AWS.

Covers: 10,000 pending pods listed, then 2,000 of them changed, in a separate process with IRSA's credentials.
Scenario: pods of 3 kB; the container's limit, 64 MiB, is the bound.
"""

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path

import botocore.httpsession
import pytest

from infra.forwarder.observability import PREFIX
from journeyman.core.api.objects import POD
from journeyman.runtime.adapters import SystemClock
from journeyman_simulator.apiserver import ApiServer
from journeyman_simulator.apiserver.http_server import HttpApiServer
from journeyman_simulator.moto_account.moto_server import MotoAccount
from tests.controlplane.certificates import Authority

ROOT = Path(__file__).parents[2]
PODS = 10_000
CHANGES = 2_000
LIMIT_KIB = 64 * 1024
RECEIVED = f'{PREFIX}received_bytes_total{{resource="pods"}}'
SENT = f'{PREFIX}messages_total{{outcome="sent",sink="sqs",step="provision"}}'


def a_pending_pod(number, message="0/3 nodes are available: 3 Insufficient cpu."):
    """Return a Deployment's pod with the fields that API server, kube-scheduler and admission add: about 3 kB."""
    name = f"web-6d4b75cb6d-{number:05d}"
    probe = {"httpGet": {"path": "/healthz", "port": 8080, "scheme": "HTTP"}, "periodSeconds": 10, "timeoutSeconds": 1}
    variables = [{"name": f"SETTING_{i}", "value": f"the value of setting {i} of {name}"} for i in range(8)]
    container = {
        "name": "web", "image": "registry.example.org/team/web@sha256:" + "0123456789abcdef" * 4, "env": variables,
        "imagePullPolicy": "IfNotPresent", "livenessProbe": probe, "readinessProbe": probe,
        "resources": {"limits": {"memory": "512Mi"}, "requests": {"cpu": "250m", "memory": "512Mi"}},
        "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
        "volumeMounts": [{"name": "kube-api-access", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}],
    }  # fmt: skip
    owner = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": "web-6d4b75cb6d",
        "uid": "1" * 36,
        "controller": True,
    }
    fields = {"f:metadata": {"f:labels": {".": {}, "f:app": {}}}, "f:spec": {f"f:field-{i}": {} for i in range(30)}}
    managed = {
        "manager": "kube-controller-manager",
        "operation": "Update",
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
    }
    refused = {
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message,
        "lastTransitionTime": "2026-11-21T09:00:00Z",
    }  # fmt: skip
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "default", "uid": f"{number:08d}-0000-4000-8000-000000000000",
            "creationTimestamp": "2026-11-21T09:00:00Z", "labels": {"app": "web", "pod-template-hash": "6d4b75cb6d"},
            "ownerReferences": [owner], "managedFields": [managed],
        },
        "spec": {"containers": [container], "tolerations": [{"key": "a", "operator": "Exists"}], "schedulerName": "default"},
        "status": {"phase": "Pending", "qosClass": "Burstable", "conditions": [refused]},
    }  # fmt: skip


def change(cluster, number):
    """Update a pod as kube-scheduler does after another failed attempt."""
    pod = a_pending_pod(number, "0/4 nodes are available: 4 Insufficient memory.")
    name, status = pod["metadata"]["name"], {"status": pod["status"]}
    cluster.patch(POD, name, status, namespace="default", subresource="status")


class TlsFront:
    """A TLS proxy for a plain HTTP server on this machine, with a thread for each direction of a connection."""

    def __init__(self, context, port):
        self._context, self._behind = context, port
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with suppress(OSError):  # closed
            while True:
                plain, _ = self._socket.accept()
                threading.Thread(target=self._join, args=(plain,), daemon=True).start()

    def _join(self, plain):
        with suppress(OSError), self._context.wrap_socket(plain, server_side=True) as outside:
            inside = socket.create_connection(("127.0.0.1", self._behind))
            threading.Thread(target=self._copy, args=(inside, outside), daemon=True).start()
            self._copy(outside, inside)

    @staticmethod
    def _copy(source, target):
        with suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def close(self):
        self._socket.close()


class Process:
    """The forwarder in a separate process, with its metrics and its memory as the kernel reports it."""

    def __init__(self, variables):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "infra.forwarder"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={"PATH": os.environ["PATH"], "MALLOC_ARENA_MAX": "1", "PORT": str(self._port), **variables},
        )  # fmt: skip

    def metrics(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}

    def memory(self):
        """Return the current and the peak resident memory, in KiB."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return tuple(int(re.search(rf"{name}:\s+(\d+) kB", status)[1]) for name in ("VmRSS", "VmHWM"))

    def until(self, holds, seconds=60):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with suppress(OSError):
                if holds(self.metrics()):
                    return
            time.sleep(0.1)
        raise AssertionError(f"it never came to be; the forwarder said:\n{self.end()}")

    def end(self):
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.communicate(timeout=20)[0]
        finally:
            self._process.kill()


@pytest.fixture
def cluster():
    """Return an API server with ten thousand pending pods."""
    server = ApiServer(SystemClock())
    server.load(a_pending_pod(number) for number in range(PODS))
    return server


@pytest.mark.slow
def test_ten_thousand_pending_pods_fit_into_64_mib(cluster, tmp_path):
    """The forwarder lists them at the start, and many of them change afterwards."""
    size = len(json.dumps(a_pending_pod(1), separators=(",", ":")))
    assert 2_000 < size < 4_000
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("server"))
    bundle = tmp_path / "bundle.pem"
    bundle.write_text(Path(botocore.httpsession.DEFAULT_CA_BUNDLE).read_text() + authority.certificate.read_text())
    (tmp_path / "web-identity-token").write_text("a-token-that-moto-takes")
    with ExitStack() as stack:
        aws = stack.enter_context(MotoAccount(SystemClock(), {}))
        tls = TlsFront(context, int(aws.endpoint_url.rpartition(":")[2]))
        stack.callback(tls.close)
        create = aws.client("sqs").create_queue
        queue = create(QueueName="queue.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
        front = stack.enter_context(HttpApiServer(cluster, ssl_context=context))
        process = Process({
            "CLUSTER_NAME": "dev", "PROVISION_QUEUE_URL": queue, "TERMINATE_QUEUE_URL": queue,
            "KUBERNETES_URL": front.url, "KUBERNETES_CA_FILE": str(authority.certificate),
            "AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": tls.url, "AWS_CA_BUNDLE": str(bundle),
            "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/forwarder", "AWS_ROLE_SESSION_NAME": "test",
            "AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "web-identity-token"),
        })  # fmt: skip
        stack.callback(process.end)
        process.until(lambda found: found.get(SENT) == 1)
        assert process.metrics()[f"{PREFIX}unschedulable_pods"] == PODS
        listed = process.memory()
        came = process.metrics()[RECEIVED]
        for number in range(CHANGES):
            change(cluster, number)
        process.until(lambda found: found[RECEIVED] > came + CHANGES * size)
        changed = process.memory()
    figures = (
        f"{PODS} pods of {size} bytes: {came / 1e6:.1f} MB listed, RSS and peak {listed} KiB; changed, {changed} KiB"
    )
    sys.stdout.write(figures)
    assert max(listed + changed) <= LIMIT_KIB, figures
