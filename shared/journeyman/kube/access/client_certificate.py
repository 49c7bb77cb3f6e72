"""A client certificate that a cloud issues for a limited time, renewed when a third of its lifetime is left."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct

from journeyman.errors import CloudUnavailableError
from journeyman.kube.connection_pool import Connection, SharedTlsContext
from journeyman.ports import Clock

_RENEWAL_SHARE: Final = 1 / 3  # of the lifetime left
_RETRY_AFTER: Final = timedelta(minutes=1)


class IssuedCertificate(Struct, frozen=True, kw_only=True):
    """The cluster's URL, a TLS context with the client certificate, and the certificate's expiry."""

    server: str
    context: SharedTlsContext
    expires: datetime
    assert_hostname: str = ""


class ClientCertificate:
    """The current client certificate; safe to use from several threads.

    Args:
        issue: Requests a new certificate from the cloud.
        clock: Decides when the certificate is renewed.
    """

    def __init__(self, issue: Callable[[], IssuedCertificate], clock: Clock) -> None:
        self._issue = issue
        self._clock = clock
        self._lock = threading.Lock()
        self._current: IssuedCertificate | None = None
        self._renew_at: datetime | None = None

    def current(self) -> IssuedCertificate:
        """Return the certificate to use now.

        If the cloud does not answer, the earlier certificate is used until it expires, and renewal is tried again each minute.

        Raises:
            ConfigurationError: The cloud refuses to issue a certificate.
            CloudUnavailableError: The cloud does not answer, and there is no valid earlier certificate.
        """
        with self._lock:
            now = self._clock.now()
            if self._current is None or self._renew_at is None or now >= self._renew_at:
                self._renew(now)
            assert self._current is not None  # noqa: S101 - `_renew` raises otherwise
            return self._current

    def context(self) -> SharedTlsContext:
        """Return the TLS context with the current certificate. Raises as `current` does."""
        return self.current().context

    def connection(self) -> Connection:
        """Return a connection that always uses the current certificate. Raises as `current` does."""
        first = self.current()
        return Connection(
            server=first.server,
            ssl_context=first.context,
            assert_hostname=first.assert_hostname,
            current_ssl_context=self.context,
            explain_refusal=self.explain_refusal,
        )

    def explain_refusal(self, status: int, message: str) -> str:
        """Return what to do when the cluster refuses the certificate, and after a 401 forget it, so that a new one is issued."""
        if status == 401:
            with self._lock:
                self._current = None
            return "the certificate is no longer valid (it may be revoked): the next run requests a new one"
        user = message.partition('User "')[2].partition('"')[0] or "<the user in the message>"
        return (
            "bind the certificate's user to the ClusterRoles of the steps: helm upgrade journeyman infra/chart --reuse-values "
            f"--set access.everyStep[0].kind=User --set access.everyStep[0].name={user}"
        )

    def _renew(self, now: datetime) -> None:
        try:
            self._current = issued = self._issue()
        except CloudUnavailableError:
            if self._current is None or now >= self._current.expires:
                raise
            self._renew_at = min(now + _RETRY_AFTER, self._current.expires)
            return
        self._renew_at = issued.expires - (issued.expires - now) * _RENEWAL_SHARE
