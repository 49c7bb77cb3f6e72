"""Evictions, and the PodDisruptionBudgets that allow or forbid them."""

import pytest

from journeyman.core.api.objects import PDB, POD, LabelSelector
from journeyman.errors import ConflictError, InvalidError, KubeAPIError, TooManyRequestsError
from journeyman_simulator.workload_controllers import REPLICASET
from tests.contract.kube.clusters import a_pod_spec


def counted(cluster, allowed, healthy, name="budget"):
    """Wait until the PodDisruptionBudget's status has these numbers."""

    def is_counted():
        status = cluster.store.get(PDB, name, namespace=cluster.namespace).status
        return (status.disruptions_allowed, status.current_healthy) == (allowed, healthy)

    cluster.eventually(is_counted)


def is_marked(cluster, name):
    return cluster.store.get(POD, name, namespace=cluster.namespace).metadata.deletion_timestamp is not None


def test_eviction_without_a_budget_deletes_gracefully(cluster):
    """The pod keeps its grace period; evicting it again changes nothing."""
    cluster.running_pod("free")
    cluster.store.evict(cluster.namespace, "free")
    assert is_marked(cluster, "free")
    cluster.store.evict(cluster.namespace, "free")


def test_budget_limits_evictions(cluster):
    """With two of three pods required, one can be evicted; the next eviction is refused at once with the budget's reason."""
    cluster.budget(minAvailable=2)
    for name in ("a", "b", "c"):
        cluster.running_pod(name)
    counted(cluster, allowed=1, healthy=3)
    cluster.store.evict(cluster.namespace, "a")
    with pytest.raises(TooManyRequestsError) as caught:
        cluster.store.evict(cluster.namespace, "b")
    assert caught.value.message == "Cannot evict pod as it would violate the pod's disruption budget."
    # Until the controller has counted again, the server of a slow machine gives another cause.
    assert caught.value.context["cause"].startswith("The disruption budget budget ")
    assert not is_marked(cluster, "b")
    counted(cluster, allowed=0, healthy=2)
    with pytest.raises(TooManyRequestsError) as caught:
        cluster.store.evict(cluster.namespace, "b")
    assert caught.value.context["cause"] == "The disruption budget budget needs 2 healthy pods and has 2 currently"
    status = cluster.store.get(PDB, "budget", namespace=cluster.namespace).status
    assert status.desired_healthy == 2


@pytest.mark.parametrize(
    ("spec", "may_go"),
    [
        ({"maxUnavailable": 1}, 1),
        ({"maxUnavailable": "30%"}, 2),  # of 4, rounded up
        ({"minAvailable": "50%"}, 2),
        ({"minAvailable": 4}, 0),
        ({"maxUnavailable": 0}, 0),
    ],
)
def test_budgets_accept_numbers_and_percentages(cluster, spec, may_go):
    """The server takes percentages of the desired replicas and rounds up."""
    template = {"metadata": {"labels": {"app": "web"}}, "spec": a_pod_spec()}
    workload = {"replicas": 4, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    cluster.store.create(REPLICASET, {"metadata": {"name": "web"}, "spec": workload}, namespace=cluster.namespace)
    cluster.eventually(lambda: len(cluster.pods()) == 4)
    pods = cluster.pods()
    for name in pods:
        cluster.run_pod(name)
    cluster.budget(**spec)
    counted(cluster, allowed=may_go, healthy=4)
    for name in pods[:may_go]:
        cluster.store.evict(cluster.namespace, name)
    with pytest.raises(TooManyRequestsError):
        cluster.store.evict(cluster.namespace, pods[-1])


def test_unhealthy_pod_eviction_policies(cluster):
    """IfHealthyBudget allows it if enough pods are healthy, AlwaysAllow always."""
    cluster.budget(minAvailable=1)
    cluster.pod("unready")
    cluster.run_pod("unready", ready=False)
    counted(cluster, allowed=0, healthy=0)
    with pytest.raises(TooManyRequestsError):
        cluster.store.evict(cluster.namespace, "unready")
    cluster.running_pod("well")
    counted(cluster, allowed=0, healthy=1)
    cluster.store.evict(cluster.namespace, "unready")
    with pytest.raises(TooManyRequestsError):
        cluster.store.evict(cluster.namespace, "well")

    always = {"spec": {"unhealthyPodEvictionPolicy": "AlwaysAllow"}}
    cluster.store.patch(PDB, "budget", always, namespace=cluster.namespace)
    cluster.run_pod("well", ready=False)
    counted(cluster, allowed=0, healthy=0)
    cluster.store.evict(cluster.namespace, "well")
    assert is_marked(cluster, "well")


def test_two_budgets_on_one_pod_are_an_internal_error(cluster):
    """The server answers 500, which is neither a rejection nor a success."""
    cluster.budget("one", minAvailable=0)
    cluster.budget("two", minAvailable=0)
    cluster.running_pod("torn")
    with pytest.raises(KubeAPIError, match="more than one PodDisruptionBudget") as caught:
        cluster.store.evict(cluster.namespace, "torn")
    assert caught.value.status == 500
    assert not isinstance(caught.value, TooManyRequestsError)


def test_pending_and_finished_pods_ignore_budgets(cluster):
    """A budget counts only available pods."""
    cluster.budget(minAvailable=9)
    cluster.pod("pending")
    cluster.running_pod("done")
    cluster.pod_status("done", phase="Succeeded")
    cluster.store.evict(cluster.namespace, "pending")
    cluster.store.evict(cluster.namespace, "done")
    assert cluster.pods() == []


def test_eviction_honours_the_uid_precondition(cluster):
    """A pod of the same name with another UID stays."""
    pod = cluster.running_pod("meant")
    with pytest.raises(ConflictError, match=r"the UID in the precondition \(another\) does not match"):
        cluster.store.evict(cluster.namespace, "meant", uid="another")
    assert not is_marked(cluster, "meant")
    cluster.store.evict(cluster.namespace, "meant", uid=pod["metadata"]["uid"])
    assert is_marked(cluster, "meant")


def test_empty_selector_selects_all_pods_and_a_missing_one_none(cluster):
    """These are the semantics of policy/v1."""
    no_selector = {"metadata": {"name": "none"}, "spec": {"minAvailable": 9}}
    cluster.store.create(PDB, no_selector, namespace=cluster.namespace)
    cluster.running_pod("a")
    cluster.store.evict(cluster.namespace, "a")
    empty_selector = {"metadata": {"name": "all"}, "spec": {"minAvailable": 9, "selector": {}}}
    cluster.store.create(PDB, empty_selector, namespace=cluster.namespace)
    assert cluster.store.get(PDB, "all", namespace=cluster.namespace).spec.selector == LabelSelector()
    cluster.running_pod("b")
    counted(cluster, allowed=0, healthy=1, name="all")
    with pytest.raises(TooManyRequestsError):
        cluster.store.evict(cluster.namespace, "b")


def test_budget_with_both_limits_is_refused(cluster):
    """minAvailable and maxUnavailable exclude each other."""
    with pytest.raises(InvalidError, match="minAvailable and maxUnavailable cannot be both set"):
        cluster.budget(minAvailable=1, maxUnavailable=1)


def test_refused_eviction_response(served):
    """The server answers 429 with the budget as the cause, and with Retry-After only before it counted the budget's pods."""
    served.budget(minAvailable=1)
    served.running_pod("a")
    counted(served, allowed=0, healthy=1)
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a", "namespace": served.namespace}}
    answer = served.http.request("POST", POD.path(served.namespace, "a", "eviction"), body)
    assert answer.status == 429
    assert "Retry-After" not in answer.headers
    assert answer.body == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": "Cannot evict pod as it would violate the pod's disruption budget.",
        "reason": "TooManyRequests",
        "details": {
            "causes": [
                {
                    "reason": "DisruptionBudget",
                    "message": "The disruption budget budget needs 1 healthy pods and has 1 currently",
                }
            ]
        },
        "code": 429,
    }
