"""The whole event flow on a real control plane, with functions whose processes are killed (SIGKILL) repeatedly."""

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

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("killed-processes")]

DEATHS = 20
LONG = timedelta(hours=2)  # a message whose function died comes again after minutes


@pytest.fixture
def world(make_control_plane):
    """The application deployed on a cluster with the demo's pool; its functions die before long."""
    with make_control_plane(scheduler=True, controllers=True) as plane:
        install_crds(plane.admin)
        with RealWorld(plane, deaths=Deaths(DEATHS, seed=1)) as world:
            for name in ("demo-cluster", "inflate"):
                world.apply(*yaml.safe_load_all(deployment_file("docs", "examples", f"{name}.yaml").read_text()))
            yield world


def launches(world):
    """How many instances were ever launched for each NodeClaim, by its UID."""
    pages = world.aws.client("ec2").get_paginator("describe_instances").paginate()
    tags = [{t["Key"]: t["Value"] for t in i["Tags"]} for p in pages for r in p["Reservations"] for i in r["Instances"]]
    return Counter(tag["journeyman.dev/nodeclaim-uid"] for tag in tags)


def stands(world):
    """Ten pods run; nodes, NodeClaims and living instances are the same."""
    claims = {claim.status.provider_id.rsplit("/", 1)[-1] for claim in world.claims()}
    living = {i for i, state in world.instances().items() if state in {"pending", "running"}}
    return world.running("inflate") == len(world.pods("inflate")) == 10 and world.is_quiet() and claims == living


def interrupt_one(world):
    """The Spot market takes a node back; until its pods run elsewhere and it is gone."""
    lost = world.claims()[0].status.provider_id.rsplit("/", 1)[-1]
    world.aws.interrupt(lost)
    gone = {"shutting-down", "terminated", "forgotten"}
    world.until(lambda: world.instances().get(lost, "forgotten") in gone and stands(world), "ten pods", within=LONG)


def test_functions_killed_at_twenty_moments_leave_the_cluster_consistent(world):
    """0 → 10 → a node is interrupted → 10 → 0, until so many have died: all pods run, then nothing is left."""
    while True:
        world.scale("inflate", 10)
        world.until(lambda: stands(world), "ten pods on nodes that are in order", within=LONG)
        interrupt_one(world)
        world.scale("inflate", 0)
        world.until(lambda: not world.leftovers(), "an empty cluster", within=LONG)
        if not world.sandboxes.deaths.left:
            break

    assert len(world.sandboxes.killed) == DEATHS
    assert set(launches(world).values()) == {1}
    world.until(
        lambda: {d["status"]["phase"] for d in world.store.list(NODE_DISRUPTION).items} <= FINISHED,
        "the end of all disruptions",
        within=LONG,
    )
    assert world.leftovers() == []
