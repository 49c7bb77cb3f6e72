"""Lists of Huawei Cloud's services in pages."""

import pytest

from journeyman.cloud.huawei.rest_api import last_id, pages

ENTRIES = [{"id": f"e-{n}"} for n in range(7)]


@pytest.mark.parametrize("size", [1, 2, 3, 6, 7, 8])
def test_every_entry_of_a_list_is_read_once(size):
    """A page that is full may have another one behind it, and the first request has no marker."""
    queries = []

    def read(query):
        queries.append(dict(query))
        after = [entry["id"] for entry in ENTRIES].index(query["marker"]) + 1 if query else 0
        return ENTRIES[after : after + size]

    found = [entry for page in pages(read, lambda page: last_id(page, of=size)) for entry in page]

    assert found == ENTRIES
    assert queries[0] == {}
    assert [query["marker"] for query in queries[1:]] == [ENTRIES[n]["id"] for n in range(size - 1, 7, size)]
    assert last_id(ENTRIES[: size - 1], of=size) is None, "one that is not full is the last one"
