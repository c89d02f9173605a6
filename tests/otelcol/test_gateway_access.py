"""Who may send to a gateway: with certificates or a token only those who have them, and never in plain text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
import trustme
from emulators.google import GoogleEmulator
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub
from ports import kept_address
from waits import until

from . import flood
from .collector import CONFIGS, OVERLAYS, Collector
from .fleet import DECISION_S, GRPC, NO_CLOUD, QUICK

TOKEN = "a-token-of-this-test"
GATEWAY = "127.0.0.1"
WAYS = ("mtls", "token")
EXTENSIONS = "service::extensions: [health_check, file_storage, bearertokenauth]"  # no credentials for Google here

pytestmark = pytest.mark.timeout(180)


class Keys:
    """An authority, and the files that a gateway or a sidecar is given by it."""

    def __init__(self) -> None:
        self._authority = trustme.CA()

    def given(self, directory: Path, name: str, token: str = TOKEN) -> Mapping[str, str]:
        directory.mkdir()
        certificate = self._authority.issue_cert(name)
        certificate.private_key_pem.write_to_path(str(directory / "tls.key"))
        certificate.cert_chain_pems[0].write_to_path(str(directory / "tls.crt"))
        self._authority.cert_pem.write_to_path(str(directory / "ca.crt"))
        (directory / "token").write_text(f"{token}\n")
        return {"OTELCOL_GOODPUT_TLS": str(directory), "OTELCOL_GOODPUT_TOKEN": str(directory / "token")}

    def secure(self) -> grpc.ChannelCredentials:
        """Of a client that trusts it and shows nothing of its own."""
        return grpc.ssl_channel_credentials(self._authority.cert_pem.bytes())


@pytest.fixture
def exits() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def google(exits: ExitStack) -> GoogleEmulator:
    return exits.enter_context(GoogleEmulator())


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Fleet:
    """A gateway that is guarded one way, and sidecars of all kinds."""

    def __init__(self, exits: ExitStack, directory: Path, google: GoogleEmulator, way: str) -> None:
        self._exits, self._directory, self._way = exits, directory, way
        self._google = google
        self.keys = Keys()
        self.gateway = self._opened(
            "gateway",
            [CONFIGS / "gateway.yaml", OVERLAYS / f"gateway-{way}.yaml"],
            self.keys.given(directory / "gateway-keys", GATEWAY),
            [f"processors::tail_sampling::decision_wait: {DECISION_S}s"],
        )

    def sidecar(self, name: str, keys: Keys | None, token: str = TOKEN) -> Collector:
        """With files of an authority; None: as the base is, in plain text."""
        configs = [CONFIGS / "fleet-sidecar.yaml"]
        environ: Mapping[str, str] = {}
        if keys is not None:
            configs.append(OVERLAYS / f"fleet-{self._way}.yaml")
            environ = keys.given(self._directory / f"{name}-keys", "trainer", token)
        host, _, port = self.gateway.grpc.partition(":")
        where = {"OTELCOL_GOODPUT_GATEWAY": host, "OTELCOL_GOODPUT_GATEWAY_PORT": port}
        lasting = "exporters::load_balancing::protocol::otlp::retry_on_failure::max_elapsed_time: 2s"
        return self._opened(name, configs, {**environ, **where}, [NO_CLOUD, lasting])

    def _opened(self, name: str, configs: list[Path], environ: Mapping[str, str], settings: list[str]) -> Collector:
        asks = self._way == "token" and len(configs) > 1
        collector = Collector(
            self._directory / name,
            *configs,
            OVERLAYS / "emulator.yaml",
            environ={"GOOGLE_EMULATOR": self._google.endpoint.removeprefix("http://"), **environ},
            settings=[*settings, *QUICK, *([EXTENSIONS] if asks else [])],
            addresses={GRPC: kept_address()},
        )
        return self._exits.enter_context(collector)


def refused(channel: grpc.Channel) -> grpc.StatusCode:
    with channel, pytest.raises(grpc.RpcError) as failure:
        TraceServiceStub(channel).Export(flood.spans(1)[0], timeout=5)
    return failure.value.code()


def test_those_who_have_what_it_takes_send_and_no_others(
    exits: ExitStack, google: GoogleEmulator, way: str, tmp_path: Path
) -> None:
    fleet = Fleet(exits, tmp_path, google, way)
    mine = fleet.sidecar("mine", fleet.keys)
    others = [fleet.sidecar("plain", None)]
    others += [fleet.sidecar("stranger", Keys())] if way == "mtls" else [fleet.sidecar("guesser", fleet.keys, "guess")]
    secret = [flood.send_spans(each.grpc, requests=1).accepted for each in others]
    assert all(secret)  # taken by those sidecars
    sent = flood.send_spans(mine.grpc, requests=2).accepted
    until(lambda: not flood.missing(google, sent), lacking=lambda: fleet.gateway.log[-3000:] + mine.log[-3000:])
    refusals = ("Will retry the request", "no more retries left", "not retryable error")
    until(lambda: all(any(words in each.log for words in refusals) for each in others))
    for names in secret:
        assert flood.missing(google, names) == names
    assert refused(grpc.insecure_channel(fleet.gateway.grpc)) == grpc.StatusCode.UNAVAILABLE
    bare = refused(grpc.secure_channel(fleet.gateway.grpc, fleet.keys.secure()))
    assert bare == (grpc.StatusCode.UNAVAILABLE if way == "mtls" else grpc.StatusCode.UNAUTHENTICATED)
