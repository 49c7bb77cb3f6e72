"""The control plane that other tests use: it runs Kubernetes, authenticates callers, and leaves no processes or data."""

import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from tests.controlplane.caller import Caller
from tests.controlplane.existing import ExistingCluster
from tests.controlplane.processes import Server, ServerFailedError
from tests.controlplane.program import command
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("control-plane")]

CAPACITY = {"cpu": "2", "memory": "4Gi", "pods": "10"}


def calling(plane, **credential):
    """Return a client that calls this API server with a token or a certificate."""
    return Caller(plane.server, plane.ca_file, **credential)


def who_is(caller):
    """Return the user name and groups that the API server reads from the caller's credential."""
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    seen = caller.do("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", review)["status"]["userInfo"]
    return seen["username"], set(seen["groups"])


def test_tokens_and_certificates_authenticate_their_users(control_plane):
    """Each caller has the user and groups of its credential; RBAC authorizes it."""
    admin = control_plane.admin
    reader = calling(control_plane, token=control_plane.token_for("alice", ["readers"]))
    other = calling(control_plane, certificate=control_plane.certificate_for("bob", ["writers"]))

    assert who_is(admin) == ("admin", {"system:masters", "system:authenticated"})
    assert who_is(reader) == ("alice", {"readers", "system:authenticated"})
    assert who_is(other) == ("bob", {"writers", "system:authenticated"})
    admin.do("GET", "/api/v1/nodes")
    assert reader.call("GET", "/api/v1/nodes")[0] == 403


def test_unknown_token_and_expired_certificate_are_refused(control_plane):
    """The API server does not handle the requests as anonymous ones."""
    stranger = calling(control_plane, token="made-up")
    expired = control_plane.certificate_for("eve", ["system:masters"], -timedelta(days=1))
    late = calling(control_plane, certificate=expired)

    assert stranger.call("GET", "/api/v1/nodes")[0] == 401
    assert late.call("GET", "/api/v1/nodes")[0] == 401


def test_token_is_valid_from_its_acceptance_to_its_revocation(control_plane):
    """The API server accepts and refuses it without a restart."""
    caller = calling(control_plane, token="made-elsewhere")
    assert caller.call("GET", "/api")[0] == 401
    control_plane.accept("made-elsewhere", "dave")
    wait_until(lambda: caller.call("GET", "/api")[0] == 200, "the API server does not answer", seconds=10)

    unused = control_plane.token_for("erin")
    control_plane.revoke(unused)

    assert calling(control_plane, token=unused).call("GET", "/api")[0] == 401


def test_kubeconfig_authenticates_its_user(control_plane):
    """The product reads the kubeconfig that `kubeconfig_for` writes."""
    from journeyman.kube.access.kubeconfig import from_kubeconfig

    connection = from_kubeconfig(str(control_plane.kubeconfig_for("carol", ["readers"])))

    assert connection.server == control_plane.server
    shown = connection.authorization().removeprefix("Bearer ")
    assert who_is(calling(control_plane, token=shown))[0] == "carol"


def test_service_account_tokens_are_issued_and_reviewed(control_plane, namespace):
    """A TokenReview returns the projected token's account and audience, and rejects another audience."""
    admin = control_plane.admin
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    admin.do("POST", accounts, {"metadata": {"name": "forwarder"}})
    request = admin.do("POST", f"{accounts}/forwarder/token", {"spec": {"audiences": ["receiver"]}})

    def review(audience):
        spec = {"token": request["status"]["token"], "audiences": [audience]}
        return admin.do("POST", "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": spec})["status"]

    assert review("receiver")["user"]["username"] == f"system:serviceaccount:{namespace}:forwarder"
    assert not review("another token").get("authenticated")


def test_version_is_that_of_go_mod(control_plane):
    """`/version` returns it, because clients may depend on it."""
    version = control_plane.admin.do("GET", "/version")

    assert f"k8s.io/kubernetes {version['gitVersion']}\n" in (Path(__file__).parent / "go.mod").read_text()


def test_deployments_pods_are_bound_and_all_processes_end(make_control_plane):
    """Real controllers create the pod, and the real scheduler binds it to a node that exists as an object only."""
    with make_control_plane(scheduler=True, controllers=True) as plane:
        admin = plane.admin
        pids = plane.pids()
        assert set(pids) == {"etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager"}
        join(admin, "node-1")
        deploy(admin, "web")

        def pods():
            return admin.do("GET", "/api/v1/namespaces/default/pods")["items"]

        wait_until(lambda: [pod["spec"].get("nodeName") for pod in pods()] == ["node-1"], "the pod is not bound")

    assert not any(is_alive(pid) for pid in pids.values())
    assert not list(plane.logs.glob("etcd/*"))


def join(admin, name):
    """Create a Ready node with free capacity, without the `not-ready` taint that admission adds to every new node."""
    admin.do("POST", "/api/v1/nodes", {"metadata": {"name": name}})
    status = {"capacity": CAPACITY, "allocatable": CAPACITY, "conditions": [{"type": "Ready", "status": "True"}]}
    merge = "application/merge-patch+json"
    admin.do("PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, kind=merge)
    admin.do("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": None}}, kind=merge)


def deploy(admin, name):
    """Create a Deployment of one pod that requests one CPU."""
    container = {"name": "main", "image": "pause", "resources": {"requests": {"cpu": "1"}}}
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}}
    spec = {"selector": {"matchLabels": {"app": name}}, "template": template}
    body = {"metadata": {"name": name}, "spec": spec}
    admin.do("POST", "/apis/apps/v1/namespaces/default/deployments", body)


def test_servers_end_when_the_test_run_is_killed(make_control_plane, tmp_path):
    """After SIGKILL of the parent each server ends by itself."""
    make_control_plane()  # skips the test if the programs are missing
    with subprocess.Popen([sys.executable, "-c", STARTS_A_SERVER, str(tmp_path)], stdout=subprocess.PIPE) as run:
        pid = int(run.stdout.readline())
        assert is_alive(pid)
        run.send_signal(signal.SIGKILL)

    wait_until(lambda: not is_alive(pid), f"process {pid} still runs", seconds=10)


# all four servers end by the same mechanism; etcd starts fastest
STARTS_A_SERVER = """
import pathlib, sys, time
from tests.controlplane import flags, processes, program
folder = pathlib.Path(sys.argv[1])
flags = flags.etcd(folder / "data", processes.free_port())
print(processes.Server("etcd", [*program.command("etcd"), *flags], folder).pid, flush=True)
time.sleep(600)
"""


def is_alive(pid):
    """Return whether a process runs; a zombie, for which its parent has not waited yet, does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"


def test_server_that_does_not_start_shows_its_log(make_control_plane):
    """The error has the log's last lines and its path."""
    shown = r"kube-apiserver ended with status 1(?s:.*)unknown flag: --no-such-flag"
    plane = make_control_plane(apiserver_flags=["--no-such-flag"])

    with pytest.raises(ServerFailedError, match=shown):
        plane.__enter__()

    assert (plane.logs / "kube-apiserver.log").exists()
    assert not plane.pids()


def test_existing_cluster_is_used_by_its_kubeconfig(control_plane):
    """Tests that need to own the control plane are skipped."""
    cluster = ExistingCluster(control_plane.kubeconfig)

    assert cluster.server == control_plane.server
    assert who_is(cluster.admin)[0] == "admin"
    with pytest.raises(pytest.skip.Exception, match="`restart_apiserver` needs a control plane that the tests own"):
        cluster.restart_apiserver()


def test_released_programs_end_with_their_input(tmp_path):
    """KUBEBUILDER_ASSETS' programs do not watch their parent, so a wrapper ends them."""
    released = tmp_path / "etcd"
    released.write_text("#!/bin/sh\necho $$\nexec sleep 600\n")
    released.chmod(0o755)

    server = Server("etcd", command("etcd", {"KUBEBUILDER_ASSETS": str(tmp_path)}), tmp_path)
    server.wait_until(lambda: server.log.read_text().endswith("\n"), 10)
    program = int(server.log.read_text())
    assert is_alive(program)
    server.stop()

    assert not is_alive(program)
