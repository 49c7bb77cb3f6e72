"""What holds for every test.

Properties are never timed, so that a busy machine fails none of them, and draw the same examples in every run, so that a
change is judged by what it changed. `HYPOTHESIS_PROFILE=search` looks for new counter-examples.

The garbage collectors of Python and Go run less often: the machine has the memory, and tests take a tenth to a sixth less time.

Long xdist groups start first, so that no worker begins one when the others have nothing left to do.

Tests that restate specs of Karpenter's own suites are listed in karpenter_specs.toml and get the mark `karpenter`.
"""

import gc
import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from journeyman.runtime.collector import collect_rarely

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

settings.register_profile(
    "gate", max_examples=50, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(  # for mutation tests, in which each property has seconds
    "mutation", settings.get_profile("gate"), max_examples=25
)
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "gate"))

pytest_plugins = ["tests.controlplane.fixtures"]  # a real API server, for tests that request the fixture

# For real servers and the oracle, which live for seconds: they collect nothing before they have that much.
os.environ.setdefault("GOGC", "off")
os.environ.setdefault("GOMEMLIMIT", "1GiB")


_LONG_GROUPS = {
    name: place
    for place, name in enumerate(
        (
            "real-world",  # the two longest wait half of their time, so one that computes starts beside them
            "killed-processes",
            "moto",
            "control-plane",
            "rights",
            "wheel",
            "sam",
            "forwarder",
            "scheduler",
            "aws-cloud",
        )
    )
}


def pytest_configure(config: pytest.Config) -> None:
    """Let xdist distribute groups in the order of collection; by default the ones with most tests come first, however short."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


@pytest.hookimpl(tryfirst=True)  # before pytest deselects tests by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that restate Karpenter's specs, and put long groups first, the longest at the front.

    xdist hands groups out in this order, the next one to the first worker that is nearly done. Whatever is left to the end
    is short, so the workers end together.
    """
    config.stash[_UNKNOWN_SPECS] = _mark_specs(items, whole_files=not any("::" in arg for arg in config.args))
    items.sort(key=_place)


_UNKNOWN_SPECS = pytest.StashKey[frozenset[str]]()


@pytest.fixture
def unknown_specs(pytestconfig: pytest.Config) -> frozenset[str]:
    """The entries of karpenter_specs.toml without a test, as far as their files were collected."""
    return pytestconfig.stash[_UNKNOWN_SPECS]


def _mark_specs(items: list[pytest.Item], *, whole_files: bool) -> frozenset[str]:
    """Add the mark `karpenter` to the tests that karpenter_specs.toml lists; return the entries without a test."""
    root = Path(__file__).parent.parent
    specs = tomllib.loads((root / "tests" / "karpenter_specs.toml").read_text(encoding="utf-8"))
    missing = {f"{file}::{test}" for file, tests in specs.items() for test in tests if (root / file).exists()}
    collected = set()
    for item in items:
        file, _, rest = item.nodeid.partition("::")
        test = rest.partition("[")[0]
        collected.add(file)
        missing.discard(f"{file}::{test}")
        for title in specs.get(file, {}).get(test, ()):
            item.add_marker(pytest.mark.karpenter(title))
    without_test = (test for test in missing if whole_files and test.partition("::")[0] in collected)
    return frozenset((*without_test, *(file for file in specs if not (root / file).exists())))


def _place(item: pytest.Item) -> int:
    names = (mark.args[0] for mark in item.iter_markers("xdist_group"))
    return min((_LONG_GROUPS.get(name, len(_LONG_GROUPS)) for name in names), default=len(_LONG_GROUPS))


gc.disable()  # until all is collected: next to nothing of what is imported goes again


def pytest_collection_finish() -> None:
    """Exclude modules and collected tests from garbage collection: they are live until the end, and many."""
    gc.freeze()
    collect_rarely()
    gc.enable()
