"""Who may send events: read from the environment. What becomes of them is tested on a real API server, in `tests/e2e`."""

import pytest

from journeyman.errors import ConfigurationError
from journeyman.runtime.receiver import read_sender


def test_the_sender_is_one_service_account_with_tokens_for_one_audience():
    """As Kubernetes names it."""
    sender = read_sender({"FORWARDER_SERVICE_ACCOUNT": "journeyman/forwarder", "FORWARDER_AUDIENCE": "us"})

    assert (sender.user, sender.audience) == ("system:serviceaccount:journeyman:forwarder", "us")


def test_by_default_nobody_may_send():
    """The route is open to the internet; it has to be asked for."""
    assert read_sender({}).service_account == ""
    assert read_sender({}).audience == "journeyman"


@pytest.mark.parametrize("account", ["forwarder", "journeyman/", "/forwarder"])
def test_an_account_without_its_namespace_is_refused(account):
    """Every namespace may have a service account of that name."""
    with pytest.raises(ConfigurationError, match="FORWARDER_SERVICE_ACCOUNT does not parse"):
        read_sender({"FORWARDER_SERVICE_ACCOUNT": account})
