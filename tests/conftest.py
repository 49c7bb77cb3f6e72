"""What holds for every test.

Properties are never timed, so that a busy machine fails none of them, and draw the same examples in every run, so that a
change is judged by what it changed. `HYPOTHESIS_PROFILE=search` looks for new counter-examples.

Garbage collectors, ours and Go's, are told to do less: the machine has the memory, and tests take a tenth less time.
"""

import gc
import os

from hypothesis import HealthCheck, settings

settings.register_profile("gate", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "gate"))

pytest_plugins = ["tests.controlplane.fixtures"]  # a real API server, for whoever asks for one

# For real servers and the oracle, which live for seconds: they collect nothing before they have that much.
os.environ.setdefault("GOGC", "off")
os.environ.setdefault("GOMEMLIMIT", "1GiB")


gc.disable()  # until all is collected: next to nothing of what is imported goes again


def pytest_collection_finish() -> None:
    """What is there now stays to the end: modules and tests by the hundred thousand objects, that nobody need look through."""
    gc.freeze()
    gc.enable()
