"""The metric table is the only place where a metric is declared."""

import re
from pathlib import Path

import journeyman
from docs.metrics import PAGE, named_in, page
from journeyman.core.api.metrics import METRICS
from journeyman.core.api.metrics.absent import ABSENT
from journeyman.core.api.metrics.cloud import CLOUD
from journeyman.core.api.metrics.conditions import CONDITIONS
from journeyman.core.api.metrics.decisions import DISRUPTION, SCHEDULING
from journeyman.core.api.metrics.fleet import NODEPOOLS, NODES, PODS
from journeyman.core.api.metrics.lifecycle import LIFECYCLE
from journeyman.core.api.metrics.own import OWN

SOURCE = Path(journeyman.__file__).parent
COST = "karpenter_nodepools_cost_total"  # a gauge: a sum over nodes, not over time
DECLARED = SOURCE / "core/api/metrics"


def test_every_metric_that_the_product_names_is_declared():
    """An undeclared one would have no kind and no help, and nobody would find it."""
    named = {
        name
        for path in SOURCE.rglob("*.py")
        if DECLARED not in path.parents
        for name in re.findall(r'"((?:karpenter|journeyman|operator)_[a-z0-9_]+)"', path.read_text())
    }
    assert named
    assert named <= METRICS.keys()


def test_every_declared_metric_is_emitted_by_some_code_or_listed_with_the_reason():
    """A name that nobody emits looks on a dashboard as if nothing ever happened."""
    emitted = named_in(SOURCE)

    assert METRICS.keys() - emitted - ABSENT.keys() == set()
    assert METRICS.keys() >= ABSENT.keys()
    assert all(why.endswith(".") for why in ABSENT.values())


def test_nothing_is_listed_as_absent_that_code_names():
    """The list would be out of date."""
    literal = {
        name
        for path in SOURCE.rglob("*.py")
        if DECLARED not in path.parents
        for name in re.findall(r'"((?:karpenter|operator)_[a-z0-9_]+)"', path.read_text())
    }

    assert ABSENT.keys() & literal == set()


def test_the_page_of_metrics_is_the_table():
    """`make metrics` writes it anew."""
    assert PAGE.read_text() == page()


def test_names_follow_the_conventions():
    """Counters end in _total, durations in _seconds; a prefix tells Karpenter's from ours; labels are distinct."""
    for name, metric in METRICS.items():
        assert name == metric.name
        assert name.startswith(("karpenter_", "operator_", "journeyman_"))
        assert (metric.kind == "counter") == (name.endswith("_total") and name != COST)
        assert not re.search("duration|time_|lifetime", name) or name.endswith(("_seconds", "_total"))
        assert len(set(metric.labels)) == len(metric.labels)
        assert all(re.fullmatch("[a-z][a-z0-9_]*", label) for label in metric.labels)
        assert metric.help.endswith(".")


def test_no_metric_is_declared_twice():
    """The later declaration would win in silence."""
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


def test_conditions_of_each_kind_have_metrics_of_their_own():
    """With the labels that say which pool and class an object belongs to, as Prometheus writes them."""
    counted = METRICS["operator_nodeclaim_status_condition_count"]
    assert counted.labels == (
        *("namespace", "name", "karpenter_k8s_aws_ec2nodeclass", "karpenter_sh_nodepool"),
        *("type", "status", "reason"),
    )
    assert METRICS["operator_nodepool_status_condition_transitions_total"].labels == ("type", "status", "reason")
