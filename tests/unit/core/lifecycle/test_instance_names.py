"""Instances get their node's name once the node registered."""

from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.lifecycle.instance_names import MAX_NAMES, name_instances
from journeyman.core.plan import NameInstance, PatchObject
from tests.helpers.actions import of_type
from tests.helpers.builders import NOW, a_launched_claim, a_node_class, a_running_claim, a_snapshot, node_class_body
from tests.helpers.small_clusters import table


def names(*claims, **snapshot):
    """Return the names that instances get, by provider id."""
    plan = name_instances(a_snapshot(claims=claims, **snapshot))
    return {a.provider_id: a.name for a in of_type(plan, NameInstance)}


def test_registered_claims_instance_gets_the_nodes_name_once():
    """An annotation, which is also Karpenter's, says that it has it."""
    claim = a_running_claim()
    [name, record] = name_instances(a_snapshot(claims=(claim,))).actions

    assert isinstance(name, NameInstance)
    assert (name.provider_id, name.name) == (claim.status.provider_id, claim.status.node_name)
    assert isinstance(record, PatchObject)
    assert record.patch == {"metadata": {"annotations": {"karpenter.k8s.aws/tagged": "true"}}}
    tagged = replace(claim, metadata=replace(claim.metadata, annotations={labels.TAGGED: "true"}))
    assert names(tagged) == {}


RUNNING = a_running_claim()
OF_ANOTHER_CLOUD = replace(RUNNING.spec, node_class_ref=replace(RUNNING.spec.node_class_ref, group="other"))


@table(
    "claim",
    not_registered=(a_launched_claim(),),
    deleted=(a_running_claim(deleting=NOW),),
    no_instance=(a_running_claim(provider_id=""),),
    no_node=(replace(RUNNING, status=replace(RUNNING.status, node_name="")),),
    another_clouds=(replace(RUNNING, spec=OF_ANOTHER_CLOUD),),
)
def test_other_instances_get_no_name(claim):
    """They have no node, or their cloud names them."""
    assert names(claim) == {}


def test_name_among_the_node_classs_tags_stays():
    """The user chose it."""
    tagged = a_node_class(raw=node_class_body(spec={"tags": {"Name": "mine"}}))
    assert names(a_running_claim(), node_classes=(tagged,)) == {}
    assert len(names(a_running_claim(), node_classes=(a_node_class(),))) == 1


def test_one_run_names_a_limited_number_in_order():
    """Each takes a request, and later runs name the others."""
    claims = [a_running_claim(f"default-{n:03}") for n in reversed(range(MAX_NAMES + 3))]
    found = names(*claims)
    assert len(found) == MAX_NAMES
    assert sorted(found) == sorted(c.status.provider_id for c in claims)[:MAX_NAMES]
