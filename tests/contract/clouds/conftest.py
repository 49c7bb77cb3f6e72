"""Fixtures of the conformance suite: one account of each cloud for a whole file, and a new cluster in it for each test."""

import itertools

import pytest

from tests.contract.clouds.clouds import CLOUDS
from tests.helpers.launching import launch_request

_SERIAL = itertools.count(1)


@pytest.fixture(
    scope="module",
    params=[pytest.param(c, id=c.name, marks=pytest.mark.xdist_group(f"conformance of {c.name}")) for c in CLOUDS],
)
def cloud(request):
    """Return an account of each cloud, which the tests of a file share."""
    with request.param() as account:
        yield account


@pytest.fixture
def cluster():
    """Return the name of a new cluster."""
    return f"cluster-{next(_SERIAL)}"


@pytest.fixture
def provider(cloud, cluster):
    """Return the cluster's provider, with empty caches."""
    return cloud.provider(cluster)


@pytest.fixture(scope="module")
def ready(cloud):
    """Return the default NodeClass with its status."""
    body = cloud.node_class()
    return {**body, "status": cloud.provider("reader").resolve(body, cloud.clock.now())}


@pytest.fixture(scope="module")
def instance_types(cloud, ready):
    """Return the instance types of the default NodeClass."""
    return cloud.provider("reader").get_instance_types(ready)


@pytest.fixture
def request_for(cloud, ready, instance_types, cluster):
    """Return a function that makes the launch request of a NodeClaim which allows these types."""

    def make(name, *types, capacity_type="on-demand", zones=(), annotations=None, body=ready, **state):
        return launch_request(
            name,
            uid=f"uid-{cluster}-{name}",
            types=types or cloud.types[:1],
            capacity_types=capacity_type.split(),
            zones=zones,
            annotations=annotations,
            node_class={"kind": cloud.kind, "group": cloud.group, "raw": body, **state},
            instance_types=instance_types,
        )

    return make


@pytest.fixture
def launch(provider):
    """Return a function that launches one request, with the test's provider or another, and returns the outcome."""

    def one(request, using=provider):
        [outcome] = using.launch([request])
        return outcome

    return one


@pytest.fixture
def running(cloud, launch, request_for):
    """Return a function that launches an instance, waits until it runs, and returns it."""

    def start(name, *types, **given):
        instance = launch(request_for(name, *types, **given)).instance
        cloud.wait(60)
        return instance

    return start
