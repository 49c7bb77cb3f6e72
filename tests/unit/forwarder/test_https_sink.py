"""The HTTPS sink; the receiver is tested in `tests/e2e`."""

import pytest

from infra.forwarder.forwarder import SendError
from infra.forwarder.https_sink import HttpsSink
from infra.forwarder.notifications import NotifiedStep

NOWHERE = "https://127.0.0.1:9/clusters/dev/events"


@pytest.fixture
def token(tmp_path):
    file = tmp_path / "token"
    file.write_text("t")
    return file


def send_error(token, monkeypatch, **variables):
    """Return the error of a failed send with these environment variables."""
    for name in ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SendError) as failed:
        HttpsSink(NOWHERE, token).send(NotifiedStep.PROVISION, "{}", "id")
    return str(failed.value)


def test_unreachable_receiver_is_named(token, monkeypatch):
    """The error names it, and the message is kept."""
    assert f"{NOWHERE} cannot be reached" in send_error(token, monkeypatch)


def test_proxy_of_the_environment_is_used_unless_no_proxy_has_the_host(token, monkeypatch):
    """Other programs do the same."""
    proxy = "http://127.0.0.1:10"

    assert "proxy" in send_error(token, monkeypatch, HTTPS_PROXY=proxy).lower()
    assert "proxy" not in send_error(token, monkeypatch, HTTPS_PROXY=proxy, NO_PROXY="127.0.0.1").lower()


def test_missing_token_file_is_named(token, monkeypatch):
    """Its volume is missing from the pod."""
    token.unlink()

    assert str(token) in send_error(token, monkeypatch)
