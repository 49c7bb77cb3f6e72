"""`cloud.launching`: the errors of launches."""

from journeyman.cloud.launching import Launcher
from journeyman.errors import CloudProviderError, CreateError, RateLimitedError


class Launching(Launcher):
    """A launcher of a cloud with one known error code."""

    def launch_one(self, request):
        raise NotImplementedError

    def launched(self, request, instance):
        raise NotImplementedError

    def launch_reason(self, error):
        return (
            ("QuotaExceeded", "request a higher quota")
            if error.context.get("code") == "Quota"
            else ("LaunchFailed", "")
        )


def test_throttled_launch_is_no_create_error():
    """Every other error gets a reason for the Launched condition, and keeps its context for the log."""
    launcher, throttled = Launching(None, 1), RateLimitedError("slow down")
    assert launcher.as_create_error(throttled, "launching") is throttled

    refused = CloudProviderError("no more servers", code="Quota", condition_reason="not this one")
    failed = launcher.as_create_error(refused, "launching")

    assert isinstance(failed, CreateError)
    assert failed.condition_reason == "QuotaExceeded"
    assert failed.message == "launching: request a higher quota: no more servers"
    assert failed.context["code"] == "Quota"
    assert failed.__cause__ is refused
