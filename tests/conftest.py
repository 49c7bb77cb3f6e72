"""What holds for every test.

Properties are never timed, so that a busy machine fails none of them, and draw the same examples in every run, so that a
change is judged by what it changed. `HYPOTHESIS_PROFILE=search` looks for new counter-examples.

The garbage collectors of Python and Go run less often: the machine has the memory, and tests take a tenth less time.
"""

import gc
import os

from hypothesis import HealthCheck, settings

settings.register_profile("gate", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "gate"))

pytest_plugins = ["tests.controlplane.fixtures"]  # a real API server, for tests that request the fixture

# For real servers and the oracle, which live for seconds: they collect nothing before they have that much.
os.environ.setdefault("GOGC", "off")
os.environ.setdefault("GOMEMLIMIT", "1GiB")


gc.disable()  # until all is collected: next to nothing of what is imported goes again


def pytest_collection_finish() -> None:
    """Exclude modules and collected tests from garbage collection: they are live until the end, and many."""
    gc.freeze()
    gc.enable()
