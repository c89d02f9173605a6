"""Where a collector can run, and the configuration for each of these targets."""

from __future__ import annotations

from typing import Final, NamedTuple

from otel_goodput._runtime import files

SOURCES: Final = ("otel_goodput._tools.collector", "sources")
PROJECT: Final = "${env:GOOGLE_CLOUD_PROJECT}"
QUEUE: Final = "/var/lib/otelcol-goodput"
SPOOL: Final = f"{QUEUE}/spool"


class Target(NamedTuple):
    """Where a collector runs.

    Attributes:
        brief: for the head of the file, and for ``--help``.
        roles: what the account needs on Google Cloud.
        options: those of :class:`Choices` that can be given here.
        notes: what to set in the jobs, or in the other collectors; one sentence a line.
    """

    brief: str
    roles: tuple[str, ...]
    options: frozenset[str]
    notes: tuple[str, ...]


_JOBS: Final = "Jobs need OTEL_GOODPUT_EXPORTERS=otlp and OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4317."
_FLEET: Final = "They also need OTEL_GOODPUT_STEP_TRACES=own and OTEL_GOODPUT_STEP_SAMPLING=1: the gateway samples."
TARGETS: Final[dict[str, Target]] = {
    "local": Target(
        "On one machine, without a cloud: to the log, to a file, and to Prometheus.", (), frozenset(), (_JOBS,)
    ),
    "sidecar": Target(
        "Next to a job on Google Cloud: spans and metrics go to the Telemetry API.",
        ("roles/telemetry.writer",),
        frozenset({"project", "queue_dir", "spool"}),
        (_JOBS,),
    ),
    "classic": Target(
        "As sidecar, but metrics have the names used by our dashboards and alerts for Cloud Monitoring.",
        ("roles/telemetry.writer", "roles/monitoring.metricWriter"),
        frozenset({"project", "queue_dir", "spool"}),
        (_JOBS,),
    ),
    "fleet": Target(
        "Next to each process of a job on many hosts: metrics as with classic, spans to the gateway.",
        ("roles/telemetry.writer", "roles/monitoring.metricWriter"),
        frozenset({"project", "queue_dir", "spool", "gateway", "tls"}),
        (_JOBS, _FLEET),
    ),
    "gateway": Target(
        "One per fleet: keeps the steps that are slow, failed or compiling on any host, and 1 % of the others.",
        ("roles/telemetry.writer",),
        frozenset({"project", "queue_dir", "listen", "tls"}),
        ("The collectors beside the jobs have the configuration fleet, with --gateway naming this host.",),
    ),
}


class Choices(NamedTuple):
    """What can be chosen; None or an empty string leaves the default.

    Attributes:
        project: Google Cloud's project, in place of the variable GOOGLE_CLOUD_PROJECT.
        queue_dir: the directory for the queue on disk, in place of the variable OTELCOL_GOODPUT_STATE.
        spool: the directory for all that jobs send, kept in files too; the default one if it is empty.
        gateway: where a fleet's collectors find the gateway, ``host`` or ``host:port``.
        listen: where the gateway listens for OTLP, ``host:port``.
        tls: what the gateway requires of its clients: ``mtls`` or ``token``.
    """

    project: str | None = None
    queue_dir: str | None = None
    spool: str | None = None
    gateway: str | None = None
    listen: str | None = None
    tls: str | None = None


def source(*path: str) -> str:
    """Return the text of a file under ``sources``. Raises OSError: the installation is not whole."""
    package, folder = SOURCES
    return files.resource(package, folder, *path)


def configuration(name: str, chosen: Choices) -> str:
    """Return the configuration for a target as one text, without a head.

    Raises:
        OSError: the installation is not whole.
    """
    parts = (name, chosen.tls, None if chosen.spool is None else "spool")
    text = source("configs", f"{'-'.join(filter(None, parts))}.yaml")
    for default, given in _replaced(chosen):
        text = text.replace(default, given)
    return text


def _replaced(chosen: Choices) -> list[tuple[str, str]]:
    """Return the texts to replace in a configuration, each with what takes its place."""
    pairs: list[tuple[str, str]] = []
    if chosen.listen:
        pairs.append(('endpoint: "localhost:4317"', f'endpoint: "{chosen.listen}"'))
    if chosen.project:
        pairs.append((PROJECT, chosen.project))
    queue, spool = (chosen.queue_dir or "").rstrip("/"), (chosen.spool or "").rstrip("/")
    if queue:
        pairs.append((f"${{env:OTELCOL_GOODPUT_STATE:-{QUEUE}}}", queue))
    if spool or (chosen.spool is not None and queue):
        pairs.append((f"${{env:OTELCOL_GOODPUT_SPOOL:-{SPOOL}}}", spool or f"{queue}/spool"))
    if chosen.gateway:
        # Quoted: the collector wants strings here, even if they are numbers.
        host, _, port = chosen.gateway.partition(":")
        pairs.append(("${env:OTELCOL_GOODPUT_GATEWAY:-otelcol-gateway}", f'"{host}"'))
        if port:
            pairs.append(("${env:OTELCOL_GOODPUT_GATEWAY_PORT:-4317}", f'"{port}"'))
    return pairs


def head(name: str, command: str, chosen: Choices) -> str:
    """Return the comment at the head of a configuration: what it is, how it is run, what it needs."""
    target = TARGETS[name]
    lines = [target.brief, f"Written by: {command}", ""]
    lines += ["Try it, then run it:", "  otelcol-contrib validate --config=config.yaml"]
    lines += ["  otelcol-contrib --config=config.yaml", "", *target.notes]
    if target.roles:
        lines.append(f"The account needs {' and '.join(target.roles)}.")
        if not chosen.project:
            lines.append("The environment variable GOOGLE_CLOUD_PROJECT names the project.")
        lines.append(f"Requests wait on disk in {chosen.queue_dir or QUEUE}, through outages and restarts.")
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)
