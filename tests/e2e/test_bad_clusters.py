"""A cluster that is not as it should be: errors name the cluster and the remedy, and work continues once it is mended.

The steps as they are deployed, in one process that stays, against a real API server whose certificate runs out and whose CRDs
are of another version. Outages, missing CRDs and missing rights: `test_real_control_plane`.
"""

import json
from datetime import timedelta

import pytest
import yaml

from journeyman.core.plan import Step
from journeyman.runtime.aws import AwsAdapters
from journeyman.runtime.composition import Runtime, installed
from journeyman.runtime.environment import read_environment
from journeyman.runtime.lambda_entry import run_batch
from journeyman.steps.provision import provision
from journeyman.steps.sweep import sweep
from journeyman_simulator.deployment_files import deployment_file
from tests.controlplane.manifests import install, install_crds, remove_crds
from tests.controlplane.registered import registered
from tests.helpers.fakes import FakeQueue

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("control-plane")]

OLD = "v1beta1"


class Context:
    aws_request_id = "req-1"

    def get_remaining_time_in_millis(self):
        return 30_000


class Adapters(AwsAdapters):
    """As on Lambda, but that lines and messages are kept, and that there is no cloud to ask."""

    def __init__(self, environment):
        super().__init__(environment, clients=lambda service, region: pytest.fail(f"{service} is asked"))
        self.lines, self.fake_queue = [], FakeQueue()

    def queue(self):
        return self.fake_queue

    def log(self, level, message, **fields):
        self.lines.append({"level": level, "message": message, **fields})


class Deployed:
    """One process of each step for one cluster."""

    def __init__(self, plane):
        self.plane = plane
        clusters = json.dumps([registered(plane, "demo", plane.kubeconfig)])
        queues = {
            f"JOURNEYMAN_{queue}_QUEUE_URL": "none" for queue in ("PROVISION", "TERMINATE", "CONSOLIDATE", "REQUEUE")
        }
        environment = read_environment({"JOURNEYMAN_CLUSTERS": clusters, "AWS_REGION": "us-east-1", **queues})
        self.adapters = Adapters(environment)
        self._runtime = Runtime(environment.settings, self.adapters)

    def run(self, step, function, number):
        """Whether a message is taken, and what was said about it."""
        now = self._runtime.clock.now().isoformat()
        body = {
            "version": "1",
            "source": "requeue",
            "id": f"m{number}",
            "time": now,
            "cluster": "demo",
            "step": step.value,
        }
        record = {"messageId": f"m{number}", "body": json.dumps(body), "eventSource": "aws:sqs", "receiptHandle": "r"}
        with installed(self._runtime):
            answer = run_batch(step.value, function, {"Records": [record]}, Context())
        lines, self.adapters.lines = self.adapters.lines, []
        return not answer["batchItemFailures"], lines


@pytest.fixture(scope="module")
def deployed(make_control_plane):
    with make_control_plane() as plane:
        yield Deployed(plane)


def test_expired_certificate_is_reported_until_it_is_renewed(deployed):
    """Retrying cannot help, so the message is taken, and the sweep asks each minute; the first after the renewal succeeds."""
    install_crds(deployed.plane.admin)
    deployed.plane.show_certificate(timedelta(hours=-1))
    try:
        taken, (line,) = deployed.run(Step.PROVISION, provision, 1)
        swept, (again,) = deployed.run(Step.SWEEP, sweep, 2)
    finally:
        deployed.plane.show_certificate(timedelta(hours=1))
    renewed = deployed.run(Step.SWEEP, sweep, 3)

    for each in (line, again):
        assert (each["error"], each["cluster"]) == ("ConfigurationError", "demo")
        assert "has expired" in each["message"]
        assert each["to_do"].startswith("renew the API server's certificate")
    assert (taken, swept) == (True, True)
    assert renewed == (True, [])


def test_crds_of_another_version_are_reported_until_replaced(deployed):
    """As an old Karpenter leaves them behind: nothing is written into them, the message comes back, and no other message waits behind it."""
    remove_crds(deployed.plane.admin)
    install(
        deployed.plane.admin,
        [of_version(path, OLD) for path in deployment_file("infra", "crds").glob("karpenter.sh_*.yaml")],
    )
    taken, (line,) = deployed.run(Step.PROVISION, provision, 1)
    written = [
        deployed.plane.admin.do("GET", f"/apis/karpenter.sh/{OLD}/{kind}")["items"]
        for kind in ("nodepools", "nodeclaims")
    ]
    remove_crds(deployed.plane.admin)
    install_crds(deployed.plane.admin)
    replaced = deployed.run(Step.PROVISION, provision, 2)

    assert line["cluster"] == "demo"
    assert line["message"].endswith("of karpenter.sh/v1, but v1beta1: the CRDs are of another version")
    assert "infra/crds" in line["to_do"]
    assert not taken
    assert written == [[], []]
    assert replaced == (True, [])


def of_version(path, version):
    """A CRD of the repository, served in another version."""
    crd = yaml.safe_load(path.read_text())
    (served,) = crd["spec"]["versions"]
    served["name"] = version
    return crd
