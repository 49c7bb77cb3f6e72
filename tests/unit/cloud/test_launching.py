"""`cloud.launching`: the errors of launches."""

from journeyman.cloud.fault_rules import FaultRule
from journeyman.cloud.launching import Launcher
from journeyman.core.api.launch_faults import FaultScope
from journeyman.errors import CloudProviderError, CreateError, RateLimitedError


class Launching(Launcher):
    """A launcher of a cloud with one known error code."""

    def launch_one(self, request):
        raise NotImplementedError

    def launched(self, request, instance):
        raise NotImplementedError

    def launch_rule(self, error):
        is_quota = error.context.get("code") == "Quota"
        return FaultRule(
            scope=FaultScope.ACCOUNT if is_quota else FaultScope.NODE_CLASS,
            reason="QuotaExceeded" if is_quota else "InvalidNodeClass",
            meaning="the quota is used up" if is_quota else "the NodeClass is wrong",
            remedy="Request a higher one" if is_quota else "Correct it",
        )


def test_throttled_launch_is_no_create_error():
    """Every other error gets a reason for the Launched condition, and keeps its context for the log."""
    launcher, throttled = Launching(None, 1), RateLimitedError("slow down")
    assert launcher.as_create_error(throttled, "launching") is throttled

    refused = CloudProviderError("no more servers", code="Quota", condition_reason="not this one")
    failed = launcher.as_create_error(refused, "launching")

    assert isinstance(failed, CreateError)
    assert failed.condition_reason == "QuotaExceeded"
    assert failed.message == "launching: the quota is used up: no more servers. Request a higher one"
    assert failed.context["code"] == "Quota"
    assert failed.__cause__ is refused
