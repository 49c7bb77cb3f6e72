"""The whole event flow on a real control plane, while the functions' processes are killed (SIGKILL) repeatedly."""

from collections import Counter
from datetime import timedelta

import pytest
import yaml

from journeyman.core.api.node_disruption import FINISHED
from journeyman.core.api.objects import NODE_DISRUPTION
from journeyman_simulator.deployment_files import deployment_file
from tests.controlplane.manifests import install_crds
from tests.controlplane.sandboxes import Deaths
from tests.controlplane.world import RealWorld
from tests.helpers.deployed_application import FEW_FAMILIES

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("killed-processes")]

LONG = timedelta(hours=2)  # of virtual time; the message of a killed function returns within 41 s


@pytest.fixture(params=[2, pytest.param(20, marks=pytest.mark.nightly)])
def deaths(request):
    """Return how many invocations are killed."""
    return request.param


@pytest.fixture
def world(make_control_plane, deaths):
    """Deploy the application, with functions that are killed, on a cluster with the demo's NodePool."""
    with make_control_plane(scheduler=True, controllers=True) as plane:
        install_crds(plane.admin)
        with RealWorld(plane, deaths=Deaths(deaths, seed=1), families=FEW_FAMILIES) as world:
            for name in ("demo-cluster", "inflate"):
                world.apply(*yaml.safe_load_all(deployment_file("docs", "examples", f"{name}.yaml").read_text()))
            yield world


def launches(world):
    """Return how many instances were ever launched for each NodeClaim, by its UID."""
    pages = world.aws.client("ec2").get_paginator("describe_instances").paginate()
    tags = [{t["Key"]: t["Value"] for t in i["Tags"]} for p in pages for r in p["Reservations"] for i in r["Instances"]]
    return Counter(tag["journeyman.dev/nodeclaim-uid"] for tag in tags)


def is_consistent(world):
    """Return whether ten pods run, and each NodeClaim has one initialized node and one instance, and none is left over."""
    claims = {claim.status.provider_id.rsplit("/", 1)[-1] for claim in world.claims()}
    present = {i for i, state in world.instances().items() if state in {"pending", "running"}}
    return world.running("inflate") == len(world.pods("inflate")) == 10 and world.is_quiet() and claims == present


def interrupt_one_node(world):
    """Interrupt a Spot instance; wait until it is terminated and its pods run on other nodes."""
    lost = world.claims()[0].status.provider_id.rsplit("/", 1)[-1]
    world.aws.interrupt(lost)
    gone = {"shutting-down", "terminated", "forgotten"}
    world.until(
        lambda: world.instances().get(lost, "forgotten") in gone and is_consistent(world), "ten pods", within=LONG
    )


def test_killed_functions_leave_the_cluster_consistent(world, deaths):
    """Scale to ten pods, interrupt a node, scale to zero, until so many invocations were killed; nothing may be left."""
    while True:
        world.scale("inflate", 10)
        world.until(lambda: is_consistent(world), "ten pods on initialized nodes", within=LONG)
        interrupt_one_node(world)
        world.scale("inflate", 0)
        world.until(lambda: not world.leftovers(), "an empty cluster", within=LONG)
        if not world.sandboxes.deaths.left:
            break

    assert len(world.sandboxes.killed) == deaths
    assert set(launches(world).values()) == {1}
    world.until(
        lambda: {d["status"]["phase"] for d in world.store.list(NODE_DISRUPTION).items} <= FINISHED,
        "the end of all disruptions",
        within=LONG,
    )
    assert world.leftovers() == []
