"""What holds for every test.

Properties are never timed, so that a busy machine fails none of them, and draw the same examples in every run, so that a
change is judged by what it changed. `HYPOTHESIS_PROFILE=search` looks for new counter-examples.
"""

import os

from hypothesis import HealthCheck, settings

settings.register_profile("gate", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "gate"))

pytest_plugins = ["tests.controlplane.fixtures"]  # a real API server, for whoever asks for one
