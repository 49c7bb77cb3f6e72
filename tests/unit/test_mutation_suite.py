"""The caches of a mutated module are found, so that what was cached before hides no mutant."""

import importlib.util

from tests.mutation.suite import caches

SOURCE = """
from functools import cache, lru_cache

@cache
def area(side):
    return side * side

class Box:
    @staticmethod
    @lru_cache(maxsize=4)
    def volume(side):
        return side ** 3

def plain(side):
    return side
"""


def test_cached_functions_of_a_file_can_be_cleared(tmp_path):
    """Those of other files stay as they are."""
    modules = []
    for name in ("one", "other"):
        path = tmp_path / f"{name}.py"
        path.write_text(SOURCE)
        spec = importlib.util.spec_from_file_location(name, path)
        modules.append(importlib.util.module_from_spec(spec))
        spec.loader.exec_module(modules[-1])

    found = caches(frozenset({str(tmp_path / "one.py")}))

    assert {id(each) for each in found} == {id(modules[0].area), id(modules[0].Box.volume)}
