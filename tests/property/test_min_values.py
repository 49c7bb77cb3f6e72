"""minValues with any instance types."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from journeyman.core.api.objects import NodeSelectorRequirement
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.nodeclaim_templates import (
    distinct_enough,
    make_templates,
    needed_for_variety,
    varied_sizes,
    with_variety,
)
from journeyman.core.scheduling.nodepool_options import NodePoolOptions
from journeyman.core.scheduling.results import Options
from journeyman.core.scheduling.scheduler import Scheduler, pods_to_schedule
from journeyman_simulator.judge import verify_strictly
from tests.helpers.builders import a_pod, a_pool, a_snapshot, an_instance_type
from tests.helpers.examples import examples

FAMILY = "karpenter.k8s.aws/instance-family"
AXES = ("cpu", "memory")
FEW = settings(max_examples=examples(60), deadline=None)


@st.composite
def catalogues(draw):
    """Some types of a few families."""
    sizes = st.tuples(st.integers(1, 16), st.integers(1, 64), st.sampled_from("cmr"), st.integers(1, 9))
    types = []
    for n, (cpu, memory_gib, family, price) in enumerate(draw(st.lists(sizes, min_size=1, max_size=8))):
        plain = an_instance_type(f"{family}{n}", cpu=cpu, memory_gib=memory_gib, price=price / 10)
        own = NodeSelectorRequirement(key=FAMILY, operator="In", values=(family,))
        types.append(replace(plain, requirements=(*plain.requirements, own)))
    return tuple(types)


def demanding(count):
    """A pool whose claims must leave a choice of so many families."""
    entry = {"key": FAMILY, "operator": "Exists", "minValues": count}
    return a_pool(spec={"template": {"spec": {"requirements": [entry]}}})


@FEW
@given(types=catalogues(), families=st.integers(1, 3), data=st.data())
def test_enough_families_hold_what_an_offer_is_said_to_hold(types, families, data):
    """Also where types suit different pods: those that hold it suit all that the offer suits."""
    ((template,), _) = make_templates(a_snapshot(node_pools=(demanding(families),)), Catalogue({"default": types}))
    pool = NodePoolOptions.of(template, (), AXES)
    codes = np.array(data.draw(st.lists(st.integers(0, 2), min_size=len(types), max_size=len(types))))
    patterns = np.array(data.draw(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=3, max_size=3)))
    own = np.arange(len(types))

    served = with_variety(pool, own, codes, patterns)
    sizes = varied_sizes(pool, own, pool.sizes, (codes, served), np.arange(len(AXES)))

    assert not (served & ~patterns).any()
    for offer in own[served[codes].any(axis=1)]:
        suiting = ~(served[codes[offer]] & ~patterns[codes]).any(axis=1)
        holding = suiting & (pool.sizes >= sizes[offer]).all(axis=1)
        assert distinct_enough(pool, holding) or not sizes[offer].any()
        assert (sizes[offer] <= pool.sizes[offer]).all()


@FEW
@given(types=catalogues(), families=st.integers(1, 3))
def test_min_values_need_no_type_without_a_new_value(types, families):
    """The named types have the required values, if all types do."""
    ((template,), _) = make_templates(a_snapshot(node_pools=(demanding(families),)), Catalogue({"default": types}))
    pool = NodePoolOptions.of(template, (), AXES)
    every = np.arange(len(types))

    needed = needed_for_variety(pool, every)

    assert len(needed) <= families
    assert distinct_enough(pool, np.array(needed, dtype=np.int64)) == distinct_enough(pool, every)


@FEW
@given(
    types=catalogues(),
    families=st.integers(1, 3),
    cores=st.lists(st.integers(1, 8), min_size=1, max_size=12),
    picky=st.integers(0, 7),
)
def test_plans_with_min_values_pass_verification(types, families, cores, picky):
    """Whatever the pods are; one of them requires a type of its own."""
    chosen = types[picky % len(types)].name
    pods = [a_pod(f"p{i}", cpu=str(n), memory="2Gi") for i, n in enumerate(cores)]
    pods.append(a_pod("picky", spec={"nodeSelector": {"node.kubernetes.io/instance-type": chosen}}))
    snapshot = a_snapshot(pods=tuple(sorted(pods, key=lambda p: p.key)), node_pools=(demanding(families),))
    catalogue = Catalogue({"default": types})

    results = Scheduler(snapshot, catalogue, Options()).solve()

    assert verify_strictly(snapshot, catalogue, results, pods=pods_to_schedule(snapshot)) == ()
    for claim in results.new_claims:
        assert len({name[0] for name in claim.instance_types}) >= families
