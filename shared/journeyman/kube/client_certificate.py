"""A client certificate that a cloud issues for a time: kept while it is good, replaced well before it runs out."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct

from journeyman.errors import CloudUnavailableError
from journeyman.kube.connection import Connection
from journeyman.ports import Clock

_RENEWED_WITH: Final = 1 / 3  # of its lifetime left
_TRIED_AGAIN_AFTER: Final = timedelta(minutes=1)


class Certified(Struct, frozen=True, kw_only=True):
    """Where the cluster is, a TLS context with a client certificate in it, and when that runs out."""

    server: str
    context: ssl.SSLContext
    expires: datetime
    assert_hostname: str = ""


class ClientCertificate:
    """The certificate to use now; safe to use from several threads.

    Args:
        issue: Has a new one issued.
        clock: Decides when that is due.
    """

    def __init__(self, issue: Callable[[], Certified], clock: Clock) -> None:
        self._issue = issue
        self._clock = clock
        self._lock = threading.Lock()
        self._current: Certified | None = None
        self._renew_at: datetime | None = None

    def current(self) -> Certified:
        """The one to use now.

        A cloud that does not answer is no harm while the old one is good: it is asked again a minute later.

        Raises:
            ConfigurationError: The cloud will not issue one.
            CloudUnavailableError: It does not answer, and the old one has run out, or there was none.
        """
        with self._lock:
            now = self._clock.now()
            if self._current is None or self._renew_at is None or now >= self._renew_at:
                self._renew(now)
            assert self._current is not None  # noqa: S101 - `_renew` raises otherwise
            return self._current

    def context(self) -> ssl.SSLContext:
        """The TLS context of the one to use now. Raises as `current` does."""
        return self.current().context

    def connection(self) -> Connection:
        """The cluster, reached with this certificate as long as it is used. Raises as `current` does."""
        first = self.current()
        return Connection(
            server=first.server,
            ssl_context=first.context,
            assert_hostname=first.assert_hostname,
            renewed_context=self.context,
            refused=self.refused,
        )

    def refused(self, status: int, message: str) -> str:
        """What to do when the cluster refuses it: 401, and the next run gets a new one; 403, a person binds its user."""
        if status == 401:
            with self._lock:
                self._current = None
            return "the certificate is no longer good (revoked, perhaps): a new one is issued to the next run"
        user = message.partition('User "')[2].partition('"')[0] or "<the user in the message>"
        return (
            "bind the user of the certificate to the rights of the steps: helm upgrade journeyman infra/chart --reuse-values "
            f"--set access.everyStep[0].kind=User --set access.everyStep[0].name={user}"
        )

    def _renew(self, now: datetime) -> None:
        try:
            self._current = issued = self._issue()
        except CloudUnavailableError:
            if self._current is None or now >= self._current.expires:
                raise
            self._renew_at = min(now + _TRIED_AGAIN_AFTER, self._current.expires)
            return
        self._renew_at = issued.expires - (issued.expires - now) * _RENEWED_WITH
