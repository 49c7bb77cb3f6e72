"""Properties of every history of the in-memory API server."""

from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journeyman.core.api.objects import NODE, NODECLAIM, POD, LabelSelector, LabelSelectorRequirement
from journeyman.errors import KubeAPIError
from journeyman_simulator.apiserver import ApiServer, object_selectors
from journeyman_simulator.apiserver.object_metadata import clone, merge_patch
from journeyman_simulator.clock import VirtualClock

NAMES = st.sampled_from(["a", "b", "c", "d"])
APPS = st.sampled_from(["web", "db"])
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("create"), NAMES, APPS),
        st.tuples(st.just("label"), NAMES, APPS),
        st.tuples(st.just("status"), NAMES, st.sampled_from(["Pending", "Running", "Succeeded"])),
        st.tuples(st.just("bind"), NAMES, st.just("node-1")),
        st.tuples(st.just("delete"), NAMES, st.sampled_from([None, 0, 5])),
        st.tuples(st.just("evict"), NAMES, st.none()),
    ),
    max_size=30,
)
SELECTORS = st.sampled_from(
    [("", ""), ("app=web", ""), ("app!=web", ""), ("", "spec.nodeName="), ("app in (db)", "status.phase!=Running")]
)


def carry_out(server, operation):
    """One request; a refusal is as good an outcome as any."""
    verb, name, value = operation
    where = {"namespace": "default"}
    try:
        if verb == "create":
            body = {"metadata": {"name": name, "labels": {"app": value}}, "spec": {"containers": [{"name": "main"}]}}
            server.create(POD, body, **where)
        elif verb == "label":
            server.patch(POD, name, {"metadata": {"labels": {"app": value}}}, **where)
        elif verb == "status":
            server.patch(POD, name, {"status": {"phase": value}}, **where, subresource="status")
        elif verb == "bind":
            server.bind("default", name, value)
        elif verb == "delete":
            server.delete(POD, name, **where, grace_period_seconds=value)
        else:
            server.evict("default", name)
    except KubeAPIError:
        return


def a_server():
    return ApiServer(VirtualClock(datetime(2026, 3, 1, tzinfo=timezone.utc)))


@given(before=OPERATIONS, after=OPERATIONS, selector=SELECTORS)
def test_watch_applied_to_its_list_is_the_next_list(before, after, selector):
    """Whatever changes in between, and whatever is selected."""
    server = a_server()
    query = {"label_selector": selector[0], "field_selector": selector[1]}
    for operation in before:
        carry_out(server, operation)
    first = server.list(POD, **query)
    for operation in after:
        carry_out(server, operation)

    known = {pod.key: pod for pod in first.items}
    for event in server.watch(POD, resource_version=first.resource_version, **query):
        if event.type == "DELETED":
            del known[event.object.key]
        elif event.type == "ADDED":
            assert event.object.key not in known
            known[event.object.key] = event.object
        elif event.type == "MODIFIED":
            assert int(event.resource_version) > int(known[event.object.key].metadata.resource_version)
            known[event.object.key] = event.object

    assert [known[key] for key in sorted(known)] == list(server.list(POD, **query).items)


@given(operations=OPERATIONS, cut=st.integers(0, 30), limit=st.integers(1, 3))
def test_pages_have_the_version_of_the_first_one(operations, cut, limit):
    """However the store changes between the pages."""
    server = a_server()
    for operation in operations[:cut]:
        carry_out(server, operation)
    whole = [entry.object for entry in server.page(POD).entries]
    page = server.page(POD, limit=limit)
    seen = [entry.object for entry in page.entries]
    for operation in operations[cut:]:
        carry_out(server, operation)
    while page.next:
        page = server.page(POD, limit=limit, token=page.next)
        seen += [entry.object for entry in page.entries]
    assert seen == whole


@given(operations=OPERATIONS)
def test_versions_rise_with_every_change_and_only_then(operations):
    """One counter for all kinds; a refused or empty request does not change it."""
    server = a_server()
    writes = []
    server.on_write(writes.append)
    for operation in operations:
        before = (server.resource_version, [entry.object for entry in server.page(POD).entries])
        carry_out(server, operation)
        after = (server.resource_version, [entry.object for entry in server.page(POD).entries])
        assert (before[0] == after[0]) == (before[1] == after[1])
        assert int(after[0]) >= int(before[0])
    assert [write.version for write in writes] == sorted(write.version for write in writes)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.sampled_from("abcd"), children, max_size=4),
    max_leaves=12,
)


def rfc_7386(target, patch):
    """The algorithm of section 2, line by line."""
    if isinstance(patch, dict):
        if not isinstance(target, dict):
            target = {}
        target = dict(target)
        for name, value in patch.items():
            if value is None:
                if name in target:
                    del target[name]
            else:
                target[name] = rfc_7386(target.get(name), value)
        return target
    return patch


@given(target=JSON, patch=JSON)
def test_merge_patches_follow_the_standard(target, patch):
    """RFC 7386 on any JSON; the inputs stay as they were, and patching twice is patching once."""
    before = (clone(target), clone(patch))
    merged = merge_patch(target, patch)
    assert merged == rfc_7386(target, patch)
    assert (target, patch) == before
    assert merge_patch(merged, patch) == merged


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patches_pass_the_standards_own_examples(target, patch, result):
    """RFC 7386, appendix A."""
    assert merge_patch(target, patch) == result


LABELS = st.dictionaries(st.sampled_from(["app", "tier"]), st.sampled_from(["web", "db", ""]))
EXPRESSIONS = st.lists(
    st.builds(
        LabelSelectorRequirement,
        key=st.sampled_from(["app", "tier"]),
        operator=st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"]),
        values=st.lists(st.sampled_from(["web", "db"]), min_size=1, max_size=2).map(tuple),
    ),
    max_size=3,
)


def as_text(expression):
    values = ", ".join(expression.values)
    return {
        "In": f"{expression.key} in ({values})",
        "NotIn": f"{expression.key} notin ({values})",
        "Exists": expression.key,
        "DoesNotExist": f"!{expression.key}",
    }[expression.operator]


@given(expressions=EXPRESSIONS, labels=LABELS)
def test_label_selector_as_text_and_as_object_are_equal(expressions, labels):
    """That of a list's query and that of a PodDisruptionBudget."""
    text = object_selectors.label_predicate(",".join(map(as_text, expressions)))
    assert text({"metadata": {"labels": labels}}) == object_selectors.matches(
        LabelSelector(match_expressions=tuple(expressions)), labels
    )


@given(data=st.data())
def test_generated_names_and_uids_never_repeat(data):
    """In whatever order kinds are created."""
    server = a_server()
    made = []
    spec = {"requirements": [], "nodeClassRef": {"group": "g", "kind": "K", "name": "n"}}
    for kind in data.draw(st.lists(st.sampled_from([NODE, NODECLAIM]), max_size=20)):
        body = {"metadata": {"generateName": "x-"}, **({"spec": spec} if kind is NODECLAIM else {})}
        made.append(server.create(kind, body)["metadata"])
    assert len({meta["uid"] for meta in made}) == len({meta["name"] for meta in made}) == len(made)
