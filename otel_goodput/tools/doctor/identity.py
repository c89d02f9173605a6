"""Checks the credentials that a job would use for Google: their source, their owner, and whether they yield a token."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import Any, Final

from otel_goodput.disruption.metadata import metadata_host
from otel_goodput.envvars import OTEL_GOODPUT_GCP_ENDPOINT
from otel_goodput.exporters.google.connection import TRACE, Connection
from otel_goodput.exporters.google.delivery import cure, short
from otel_goodput.text.quantities import format_duration
from otel_goodput.tools.doctor.attempts import within
from otel_goodput.tools.doctor.credentials import EMAIL, PROJECT, USER, advice, find
from otel_goodput.tools.doctor.findings import OK, PROBLEM, WARNING, Finding

ABOUT: Final = "credentials"
QUOTA: Final = "quota project"
_BRIEF: Final = "the credentials cannot be used"
NO_MACHINE: Final = "this machine does not appear to run on Google Cloud"
_QUOTA_ROLE: Final = "roles/serviceusage.serviceUsageConsumer"
# Google's libraries write these words before they quote an answer, or give advice that does not apply here.
_BEFORE: Final = ("Response:", "Response details:", "metadata service: ", " To set up")
_HTML: Final = re.compile(r"<(!doctype )?html", re.IGNORECASE)


class Identity:
    """The credentials that a job would have.

    Args:
        environ: environment of the job.
        connection: the connection to Google.
        timeout_s: seconds for each answer.
    """

    def __init__(self, environ: Mapping[str, str], connection: Connection, timeout_s: float) -> None:
        self._connection = connection
        self._patience_s = 2 * timeout_s + 1  # twice, to allow for imports or a retry
        self._metadata = metadata_host(environ) is not None
        self.file = None if connection.plaintext else find(environ)
        self.owner = "" if self.file is None else self.file.owner
        self.hidden = [] if self.file is None else list(self.file.hidden)
        self.good = connection.plaintext

    def known(self) -> Finding:
        """Return what is known about the credentials without sending any request."""
        if self._connection.plaintext:
            what = f"none are needed: {OTEL_GOODPUT_GCP_ENDPOINT.name} is plaintext"
            return Finding(OK, ABOUT, what)
        if self.file is not None and self.file.wrong:
            return Finding(PROBLEM, ABOUT, f"{self.file.where}: {self.file.wrong}", self.file.do, _BRIEF)
        if self.file is not None or self._metadata:
            return Finding(OK, ABOUT, self._whose())
        return Finding(WARNING, ABOUT, f"there is no credentials file, and {NO_MACHINE}", cure(ABOUT, TRACE, "", ""))

    def check(self, project: str) -> Iterator[Finding]:
        """Load the credentials and request a token; `good` then tells whether that succeeded.

        `project` is named in the advice on a missing quota project.
        """
        known = self.known()
        if self._connection.plaintext or known.level == PROBLEM:
            yield known
            return
        try:
            credentials = within(self._patience_s, self._connection.credentials)
        except TimeoutError:
            yield self._bad(f"the search for them has not ended after {self._patience_s:g} s")
        except Exception as error:
            yield self._bad(_words(error))
        else:
            yield self._refresh(credentials)
            yield from self._quota(credentials, project)

    def _refresh(self, credentials: Any) -> Finding:
        """Request a token, as an exporter would."""
        began = time.monotonic()
        try:
            within(self._patience_s, lambda: credentials.refresh(self._connection.token_request()))
        except Exception as error:
            return self._bad(f"no token is issued: {_words(error)}")
        took = time.monotonic() - began
        self.good = True
        self.hidden += filter(None, (str(getattr(credentials, name, None) or "") for name in ("token", "id_token")))
        owner = str(getattr(credentials, "service_account_email", None) or "")
        self.owner = owner if EMAIL.fullmatch(owner) else self.owner
        what = f"{self._whose()}: a token was issued in {took * 1000:.0f} ms"
        expiry = getattr(credentials, "expiry", None)
        if isinstance(expiry, datetime):
            left = (expiry.replace(tzinfo=timezone.utc) - datetime.now(timezone.utc)).total_seconds()
            what += f", good for {format_duration(left)}"
        return Finding(OK, ABOUT, what)

    def _quota(self, credentials: Any, project: str) -> Iterator[Finding]:
        """Report the project whose quota is used, if the credentials name one, or a user's credentials name none."""
        found = str(getattr(credentials, "quota_project_id", None) or "")
        if found:
            shown = found if PROJECT.fullmatch(found) else "a project with an invalid id"
            what = f"requests count against {shown}, where {self.owner or 'the job'} needs {_QUOTA_ROLE}"
            yield Finding(OK, QUOTA, what)
        elif self.file is not None and self.file.type in USER:
            what = "no quota project is set; some services refuse user credentials without one"
            yield Finding(WARNING, QUOTA, what, cure(QUOTA, TRACE, "", project or "PROJECT"))

    def _bad(self, why: str) -> Finding:
        return Finding(PROBLEM, ABOUT, f"{self._whose()}: {why}", advice(why) or cure(ABOUT, TRACE, "", ""), _BRIEF)

    def _whose(self) -> str:
        if self.file is not None:
            return str(self.file)
        if self._metadata:
            return f"those of the machine or pod{f', {self.owner}' if self.owner else ''}, from the metadata server"
        return f"there is no credentials file, and {NO_MACHINE}"


def _words(error: Exception) -> str:
    """Return the message of an error without the server's answer that it may quote, which may contain a token."""
    text = str(error.args[0] if error.args else "")
    for words in _BEFORE:
        text = text.partition(words)[0]
    if _HTML.search(text):
        return "the answer is an HTML page, perhaps from a proxy"
    return short(text.strip() or type(error).__name__)
