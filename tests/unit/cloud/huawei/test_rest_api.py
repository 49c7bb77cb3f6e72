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


@pytest.mark.parametrize(("number", "marker"), [(0, None), (2, None), (3, "e-2"), (4, "e-3")])
def test_page_that_is_not_full_is_the_last_one(number, marker):
    """A full one is followed by another request, which may have an empty answer."""
    assert last_id(ENTRIES[:number], of=3) == marker
