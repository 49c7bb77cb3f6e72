"""The API's metrics route returns gauges of the current cluster by group, and writes nothing."""

from types import SimpleNamespace

import pytest

from functions.aws.api import lambda_handler
from journeyman.core.api.metrics import METRICS
from journeyman.runtime.composition import Runtime, installed
from journeyman.runtime.scrape import CLUSTER_STATE_GROUPS, GROUPS, MAX_BYTES, check_size
from journeyman.steps.context import Settings
from tests.helpers.builders import condition, node_class_body, pod_body, pool_body
from tests.unit.runtime.test_batch import Adapters

CONTEXT = SimpleNamespace(
    aws_request_id="req-1",
    function_name="api",
    memory_limit_in_mb=1769,
    invoked_function_arn="arn:aws:lambda:us-east-1:123456789012:function:api",
    get_remaining_time_in_millis=lambda: 20_000,
)


def request(query):
    return {
        "resource": "/clusters/{name}/metrics",
        "path": "/clusters/dev/metrics",
        "httpMethod": "GET",
        "headers": {},
        "multiValueQueryStringParameters": {key: [value] for key, value in query.items()} or None,
        "pathParameters": {"name": "dev"},
        "requestContext": {"httpMethod": "GET", "resourcePath": "/clusters/{name}/metrics"},
        "body": None,
        "stageVariables": None,
    }


@pytest.fixture
def adapters():
    made = Adapters()
    made.cluster.add(pool_body(), node_class_body(status={"conditions": [condition("Ready")]}), pod_body("waits"))
    return made


def scraped(adapters, *, observability=True, **query):
    settings = Settings(cluster_name="dev", cluster_state_observability=observability)
    with installed(Runtime({"dev": settings}, adapters)):
        return lambda_handler(request(query), CONTEXT)


def families(answer):
    return {line.split()[2] for line in answer["body"].splitlines() if line.startswith("# TYPE")}


def test_scrape_shows_every_group_and_writes_nothing(adapters):
    """Each sample has the cluster's name."""
    writes = []
    adapters.cluster.server.on_write(writes.append)

    answer = scraped(adapters)

    assert answer["statusCode"] == 200
    assert answer["headers"]["Content-Type"].startswith("text/plain; version=0.0.4")
    assert {
        "karpenter_build_info",
        "karpenter_cluster_state_synced",
        "karpenter_pods_state",
        "karpenter_nodepools_cost_total",
        "karpenter_cloudprovider_instance_type_offering_price_estimate",
        "operator_ec2nodeclass_status_condition_count",
    } <= families(answer)
    assert 'karpenter_pods_state{cluster="dev",name="waits"' in answer["body"]
    assert writes == []


def test_groups_are_selected_by_name(adapters):
    """The groups of a large cluster do not fit into one response; an unknown one is refused with the known ones."""
    assert families(scraped(adapters, of="cluster, nodepools")) == {
        "karpenter_build_info",
        "karpenter_cluster_state_node_count",
        "karpenter_cluster_state_synced",
        "karpenter_cluster_state_unsynced_time_seconds",
        "karpenter_nodepools_cost_total",
    }
    refused = scraped(adapters, of="nodez")
    assert (refused["statusCode"], "nodez" in refused["body"], "nodepools" in refused["body"]) == (409, True, True)


def test_too_large_response_says_what_to_do():
    """The platform's error would not name the remedy."""
    assert check_size("x" * MAX_BYTES)
    with pytest.raises(Exception, match=r"of=.*nodes"):
        check_size("x" * (MAX_BYTES + 1))


def test_cluster_state_can_be_turned_off_as_in_karpenter(adapters):
    """DISABLE_CLUSTER_STATE_OBSERVABILITY leaves out nodes, pools, pods and conditions."""
    left = families(scraped(adapters, observability=False))

    assert left
    assert not any(name.startswith(("karpenter_pods", "karpenter_nodepools", "operator_")) for name in left)
    assert set(GROUPS) >= CLUSTER_STATE_GROUPS
    assert left <= METRICS.keys()
