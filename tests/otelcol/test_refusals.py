"""What becomes of what a backend refuses, by its code; and that all of it is in the spool, to be sent later."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tools.commands import goodput, succeeded
from waits import until

from . import flood
from .outcomes import REFUSED, RETRIED
from .sidecars import Sidecar

THROTTLED = "RESOURCE_EXHAUSTED with `RetryInfo`"
METHODS = {"gcp-sidecar": "OtlpTraces", "gcp-sidecar-classic": "BatchWriteSpans"}
PERMANENT = "not retryable error"

pytestmark = [pytest.mark.crash, pytest.mark.timeout(240)]


def opened(directory: Path, config: str) -> Sidecar:
    settings = ["processors::resource_detection::detectors: [env]"]
    name = "behind" if config.endswith("classic") else "google"
    settings.append(f"exporters::otlp_grpc/{name}::retry_on_failure: {{initial_interval: 100ms, max_interval: 500ms}}")
    environ = {"OTELCOL_GOODPUT_SPOOL": str(directory / "spool")}
    return Sidecar(directory, config, over=["overlays/spool.yaml"], settings=settings, more=environ)


def send_again(sidecar: Sidecar, directory: Path) -> None:
    succeeded(goodput("send", directory / "spool", "--endpoint", f"http://{sidecar.collector.grpc}"))


@pytest.mark.parametrize("config", METHODS)
def test_each_code_does_what_the_readme_says_and_what_is_refused_is_sent_later(config: str, tmp_path: Path) -> None:
    method, everything = METHODS[config], set[str]()
    with opened(tmp_path, config) as sidecar:
        google = sidecar.google

        def outcome(code: str, retry_after_s: float | None = None) -> bool:
            """Whether what met this code once or twice arrived by itself."""
            dropped = sidecar.collector.log.count(PERMANENT)
            google.fail(method, code, 2, retry_after_s=retry_after_s)
            names = flood.send_spans(sidecar.collector.grpc, requests=1).accepted
            assert names
            everything.update(names)
            arrived = lambda: not flood.missing(google, names)  # noqa: E731
            until(lambda: arrived() or sidecar.collector.log.count(PERMANENT) > dropped, 30.0, lambda: code)
            google.heal()
            return arrived()

        outcomes = {code: outcome(code) for code in (*RETRIED, *REFUSED)}
        outcomes[THROTTLED] = outcome("RESOURCE_EXHAUSTED", 0.1)
        assert {code for code, arrived in outcomes.items() if arrived} == {*RETRIED, THROTTLED}
        before = len(flood.missing(google, everything))
        assert before == len(REFUSED) * flood.SPANS
        send_again(sidecar, tmp_path)
        until(lambda: not flood.missing(google, everything), 60.0, lambda: sidecar.collector.log[-3000:])
        lines = sum(len(path.read_bytes().splitlines()) for path in (tmp_path / "spool").glob("*.json"))
        send_again(sidecar, tmp_path)  # and what was sent from there has not come there again
        assert lines == len(outcomes)


@pytest.mark.parametrize("code", ["INTERNAL", "PERMISSION_DENIED", "UNAUTHENTICATED", "RESOURCE_EXHAUSTED"])
def test_a_job_whose_spans_are_all_refused_is_at_google_after_send(code: str, tmp_path: Path) -> None:
    """Its last values, too."""
    with opened(tmp_path, "gcp-sidecar") as sidecar, sidecar.job() as job:
        sidecar.google.fail("*", code, None)
        account = job.end().account
        until(lambda: sidecar.collector.log.count(PERMANENT) >= 2)  # spans and metrics
        assert not sidecar.google.otlp_spans and not sidecar.google.otlp_series
        sidecar.google.heal()
        send_again(sidecar, tmp_path)
        sidecar.complete(account)
        assert max(Counter(span.span_id for span in sidecar.google.otlp_spans).values()) == 1
