"""One run of the demo with its recorded writes and log lines, which the tests of this folder share."""

import io

import pytest
from rich.console import Console

from journeyman.core.api.objects import NODE, NODE_DISRUPTION, NODECLAIM
from journeyman_simulator.local_deployment import ACTOR
from journeyman_simulator.simulator_cli.demo_command import CLOUDS, DemoScenario
from journeyman_simulator.simulator_cli.timeline import Timeline


class DemoRun:
    """A run of the demo scenario and its recorded writes, log lines and invocations."""

    def __init__(self, cloud):
        self.cloud = cloud
        self.writes, self.lines = [], []
        self.output = io.StringIO()

    def log_line(self, line):
        self.lines.append(line)
        self.timeline.log_line(line)

    def run(self, deployment):
        deployment.server.on_write(lambda write: self.writes.append((deployment.clock.now(), write)))
        self.timeline = Timeline(Console(file=self.output, width=140), deployment.clock, lambda: 0.0)
        self.facts, self.window_opens = deployment.facts, self.cloud.window_opens
        self.scenario = DemoScenario(self.cloud, deployment, self.timeline)
        self.scenario.run()
        self.disruptions = deployment.server.list(NODE_DISRUPTION).items
        self.left = (
            deployment.leftovers(),
            deployment.server.list(NODECLAIM).items,
            deployment.server.list(NODE).items,
        )
        self.invocations = [i for f in deployment.functions for i in f.invocations]
        self.launches = deployment.calls()[deployment.facts.launch_operation]

    def ours(self, verb, kind):
        return [(at, w) for at, w in self.writes if w.user == ACTOR and w.verb == verb and w.resource.kind == kind]


@pytest.fixture(scope="session", params=sorted(CLOUDS))
def demo_run(request):
    """Run the demo once per session and cloud; tests that use it are in the xdist group "moto"."""
    cloud = CLOUDS[request.param]
    result = DemoRun(cloud)
    with cloud.deploy(cloud.start, result.log_line) as deployment:
        result.run(deployment)
    return result
