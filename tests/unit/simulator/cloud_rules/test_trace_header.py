"""The trace header of invocations that overlap."""

import os

from journeyman_simulator.cloud_rules.trace_header import traced

FUNCTION = "AWS_LAMBDA_FUNCTION_NAME"


def test_overlapping_invocations_leave_the_variables_as_they_were(monkeypatch):
    """Whichever ends first, later requests outside of any invocation carry no function's name."""
    monkeypatch.delenv(FUNCTION, raising=False)
    first, second = traced("Root=1", "ProvisionFunction"), traced("Root=2", "TerminateFunction")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert os.environ[FUNCTION] == "TerminateFunction"
    second.__exit__(None, None, None)
    assert FUNCTION not in os.environ
