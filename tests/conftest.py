"""What holds for every test.

Properties are never timed, so that a busy machine fails none of them, and draw the same examples in every run, so that a
change is judged by what it changed. `HYPOTHESIS_PROFILE=search` looks for new counter-examples.

The garbage collectors of Python and Go run less often: the machine has the memory, and tests take a tenth to a sixth less time.

Long xdist groups start first, so that no worker begins one when the others have nothing left to do.
"""

import gc
import os

import pytest
from hypothesis import HealthCheck, settings

from journeyman.runtime.collector import collect_rarely

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put long groups first, the longest at the front.

    xdist hands groups out in this order, the next one to the first worker that is nearly done. Whatever is left to the end
    is short, so the workers end together.
    """
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    names = (mark.args[0] for mark in item.iter_markers("xdist_group"))
    return min((_LONG_GROUPS.get(name, len(_LONG_GROUPS)) for name in names), default=len(_LONG_GROUPS))


gc.disable()  # until all is collected: next to nothing of what is imported goes again


def pytest_collection_finish() -> None:
    """Exclude modules and collected tests from garbage collection: they are live until the end, and many."""
    gc.freeze()
    collect_rarely()
    gc.enable()
