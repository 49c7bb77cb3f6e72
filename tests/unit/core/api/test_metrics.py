"""The metric table is the only place where a metric is declared."""

import re
from pathlib import Path

import journeyman
from docs.metrics import PAGE, named_in, page
from journeyman.core.api.metrics import (
    CLOUD,
    CONDITIONS,
    DISRUPTION,
    LIFECYCLE,
    METRICS,
    NODEPOOLS,
    NODES,
    NOT_EMITTED,
    OWN,
    PODS,
    SCHEDULING,
)

SOURCE = Path(journeyman.__file__).parent
COST = "karpenter_nodepools_cost_total"  # a gauge: a sum over nodes, not over time
DECLARED = SOURCE / "core/api/metrics.py"


def test_every_metric_named_in_the_product_is_declared():
    """An undeclared metric has no kind and no help."""
    named = {
        name
        for path in SOURCE.rglob("*.py")
        if path != DECLARED
        for name in re.findall(r'"((?:karpenter|journeyman|operator)_[a-z0-9_]+)"', path.read_text())
    }
    assert named
    assert named <= METRICS.keys()


def test_every_declared_metric_is_emitted_or_listed_with_the_reason():
    """On a dashboard, a metric that no code emits suggests that nothing ever happened."""
    emitted = named_in(SOURCE)

    assert METRICS.keys() - emitted - NOT_EMITTED.keys() == set()
    assert METRICS.keys() >= NOT_EMITTED.keys()
    assert all(why.endswith(".") for why in NOT_EMITTED.values())


def test_no_metric_listed_as_not_emitted_is_named_in_the_product():
    """The list would be out of date."""
    literal = {
        name
        for path in SOURCE.rglob("*.py")
        if path != DECLARED
        for name in re.findall(r'"((?:karpenter|operator)_[a-z0-9_]+)"', path.read_text())
    }

    assert NOT_EMITTED.keys() & literal == set()


def test_page_of_metrics_is_up_to_date():
    """`make metrics` generates it."""
    assert PAGE.read_text() == page()


def test_metric_names_follow_the_conventions():
    """Counters end in _total, durations in _seconds; the prefix says whose metric it is; labels are distinct."""
    for name, metric in METRICS.items():
        assert name == metric.name
        assert name.startswith(("karpenter_", "operator_", "journeyman_"))
        assert (metric.kind == "counter") == (name.endswith("_total") and name != COST)
        assert not re.search("duration|time_|lifetime", name) or name.endswith(("_seconds", "_total"))
        assert len(set(metric.labels)) == len(metric.labels)
        assert all(re.fullmatch("[a-z][a-z0-9_]*", label) for label in metric.labels)
        assert metric.help.endswith(".")


def test_no_metric_is_declared_twice():
    """The later declaration would silently win."""
    declared = [*LIFECYCLE, *SCHEDULING, *DISRUPTION, *CLOUD, *NODES, *NODEPOOLS, *PODS, *CONDITIONS, *OWN]
    assert len({metric.name for metric in declared}) == len(declared) == len(METRICS)


def test_metrics_of_nodes_carry_every_well_known_label():
    """Dashboards group nodes by them."""
    wanted = {
        "node_name",
        "nodepool",
        "zone",
        "zone_id",
        "arch",
        "capacity_type",
        "instance_gpu_count",
        "resource_type",
    }
    assert wanted <= set(METRICS["karpenter_nodes_allocatable"].labels)
    assert "resource_type" not in METRICS["karpenter_nodes_current_lifetime_seconds"].labels


def test_condition_metrics_have_the_labels_of_their_kind():
    """NodePool and NodeClass of an object are labels, as Prometheus writes them."""
    counted = METRICS["operator_nodeclaim_status_condition_count"]
    assert counted.labels == (
        *("namespace", "name", "karpenter_k8s_aws_ec2nodeclass", "karpenter_k8s_alibabacloud_ecsnodeclass"),
        *("karpenter_alibabacloud_com_ecsnodeclass", "karpenter_k8s_huawei_ccenodeclass", "karpenter_sh_nodepool"),
        *("type", "status", "reason"),
    )
    assert METRICS["operator_nodepool_status_condition_transitions_total"].labels == ("type", "status", "reason")
