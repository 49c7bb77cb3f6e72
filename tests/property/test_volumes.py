"""Node affinity alternatives of any set of volumes."""

from hypothesis import given
from hypothesis import strategies as st

from journeyman.core.api import labels
from journeyman.core.scheduling.requirements import from_labels
from journeyman.core.scheduling.volumes import StorageObjects, resolve_volumes
from tests.helpers.builders import a_pod, a_snapshot, a_volume, a_volume_claim, claims_as_volumes

KEYS = {labels.ZONE: "abc", "example.com/rack": "xy"}


def values(key):
    return st.lists(st.sampled_from(KEYS[key]), min_size=1, max_size=2, unique=True).map(tuple)


terms = st.lists(st.sampled_from(sorted(KEYS)), min_size=1, max_size=2, unique=True).flatmap(
    lambda keys: st.fixed_dictionaries({key: values(key) for key in keys})
)
reaches = st.lists(terms, max_size=3)
nodes = st.fixed_dictionaries({}, optional={key: st.sampled_from(known) for key, known in KEYS.items()})


def demanded(order, per_volume):
    """What a pod demands that has these volumes, listed in this order."""
    names = [f"v{i}" for i in order]
    world = a_snapshot(
        persistent_volume_claims=tuple(a_volume_claim(name, volume=name) for name in names),
        persistent_volumes=tuple(a_volume(f"v{i}", *reach) for i, reach in enumerate(per_volume)),
    )
    return resolve_volumes(a_pod("p", **claims_as_volumes(*names)), StorageObjects.of(world))


def reached(reach, node):
    """Whether a node is in one of a volume's places, read plainly."""
    return not reach or any(all(node.get(key) in allowed for key, allowed in term.items()) for term in reach)


@given(per_volume=st.lists(reaches, min_size=1, max_size=4), node=nodes, data=st.data())
def test_volume_alternatives_match_nodes_that_reach_all_volumes(per_volume, node, data):
    """And it makes no difference in which order the volumes are listed."""
    order = data.draw(st.permutations(range(len(per_volume))))
    found = demanded(order, per_volume)
    suits = any(from_labels(node).compatible(term) is None for term in found.terms)
    assert suits == all(reached(reach, node) for reach in per_volume)
    assert found == demanded(range(len(per_volume)), per_volume)
