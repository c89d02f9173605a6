"""What an attempt ran on and with, in a small file: its resource, versions, settings and hyperparameters.

People read it and send it to others, so it holds no secret: values are redacted by their form and by their name.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from importlib import import_module
from math import isfinite
from pathlib import PurePath
from typing import Any, Final, NamedTuple, Protocol

from otel_goodput import semconv
from otel_goodput._accounting.codec import COUNT, Row
from otel_goodput._journal.rundir import FACTS, RunDirectory
from otel_goodput._journal.sidecars import FIGURE, SCALAR, WORDS, Members, Named, Sidecar, kept
from otel_goodput._runtime.guard import contain
from otel_goodput._settings.config import Config
from otel_goodput._settings.devices import local_devices
from otel_goodput._settings.options import Settings
from otel_goodput._text.durations import NS
from otel_goodput._text.redact import HIDDEN, encodable, names_secret, redact, secrets, shown
from otel_goodput.semconv import SCHEDULING_STAGES, SchedulingStage
from otel_goodput.version import __version__

Value = str | int | float | bool | None

LONGEST: Final = 1024  # characters of a value
LONGEST_NAME: Final = 256
_LOOKED_AT: Final = 2 * LONGEST  # characters in which secrets are looked for: what is cut may not end inside of one
_DEEPEST: Final = 16
_SHORT_LIST: Final = 64  # scalars: a list of so few is one value
_LARGEST: Final = 1 << 63

# Names of attributes that hold the whole command line, which may hold anything.
_COMMAND: Final = re.compile(r"(?:^|\.)(?:command|command_line|command_args)$")


def flat(given: Mapping[Any, Any], most: int) -> tuple[dict[str, Value], int]:
    """The values of a mapping by names: those of nested mappings, lists, data classes and namespaces joined by dots.

    Values that are neither text nor number are described in a few words; that of an array does not wait for its
    device. Returns at most `most` entries, and how many more there were, as far as they were counted.
    """
    values: dict[str, Value] = {}
    left_out = 0
    waiting: list[tuple[str, Any, int]] = [("", given, 0)]
    while waiting:
        name, value, depth = waiting.pop()
        inner = _inner(value) if depth < _DEEPEST else None
        if inner is None or (not inner and name):
            if len(values) < most:
                values[_name(name)] = _plain(value)
            else:
                left_out += 1
            continue
        room = 2 * most - len(waiting) - len(values)
        left_out += max(0, len(inner) - max(0, room))
        entries = [(f"{name}.{key}" if name else str(key), one, depth + 1) for key, one in inner[: max(0, room)]]
        waiting += reversed(entries)
    return values, left_out


def _name(name: str) -> str:
    name = shown(encodable(name))
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"


def _inner(value: Any) -> list[tuple[Any, Any]] | None:
    """What a value consists of, by name; None if it stands for itself."""
    if isinstance(value, Mapping):
        return list(value.items())
    argparse = sys.modules.get("argparse")
    if argparse is not None and isinstance(value, argparse.Namespace):
        return list(vars(value).items())
    if is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name, None)) for field in fields(value)]
    if isinstance(value, (list, tuple)) and not all(map(_scalar, value)):
        return list(enumerate(value))
    return None


def _scalar(value: Any) -> bool:
    return value is None or type(value) in (str, int, float, bool)


def _plain(value: Any) -> Value:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value) if abs(value) < _LARGEST else f"an integer of {value.bit_length()} bits"
    if isinstance(value, float):
        return float(value) if isfinite(value) else str(float(value))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"{len(value)} bytes"
    if isinstance(value, (list, tuple)) and all(map(_scalar, value)):
        more = f", … ({len(value)} in all)" if len(value) > _SHORT_LIST else ""
        return f"[{', '.join(map(repr, value[:_SHORT_LIST]))}{more}]"
    shape, kind = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is not None and kind is not None:
        if type(value).__module__ == "numpy" and shape == ():
            return _plain(value.item())
        return f"{type(value).__name__} {kind} {shape}"  # its contents may be on a device
    if isinstance(value, type) or callable(value):
        return str(getattr(value, "__qualname__", None) or type(value).__qualname__)
    return repr(value)


def safe(name: str, value: Value, hidden: Collection[str] = ()) -> Value:
    """A value without secrets, not too long; `hidden` are texts that are secret wherever they stand."""
    if value is None or value == "":
        return value
    if any(names_secret(part, value) for part in name.split(".")) or _COMMAND.search(name):
        return HIDDEN
    if not isinstance(value, str):
        return value
    text = redact(encodable(value[:_LOOKED_AT]), hidden)
    return text if max(len(text), len(value)) <= LONGEST else f"{text[:LONGEST]}… ({len(value)} characters)"


MOST: Final = 2000  # entries of one mapping
# What reading the versions of libraries imports: since Python 3.13 the adapters too, only then.
_ADAPTERS: Final = ("importlib.metadata._adapters",) if sys.version_info >= (3, 13) else ()
NEEDED: Final = ("importlib.metadata", "email.parser", *_ADAPTERS)
DETECTED_S: Final = 2.0  # for the resource to be detected before the first file is written
# When to look for more facts, in seconds since the first file; after the last, at that interval, and at the end.
AGAIN_S: Final = (10.0, 60.0, 600.0)

# Libraries whose versions are recorded if the program has imported them: the module, and its distribution.
_MODULES: Final = (
    "opentelemetry opentelemetry.sdk jax jaxlib flax optax orbax.checkpoint equinox haiku chex grain tensorstore numpy "
    "scipy torch torchvision lightning accelerate deepspeed transformers datasets keras tensorflow"
)
_DISTRIBUTIONS: Final = {"opentelemetry": "opentelemetry-api", "haiku": "dm-haiku"}  # named otherwise
_installed: Final[dict[str, str]] = {}  # versions that were read from files of distributions, for it takes a while
LIBRARIES: Final = {name: _DISTRIBUTIONS.get(name, name.replace(".", "-")) for name in _MODULES.split()}


class Resource(Protocol):
    """What is known of the process: OpenTelemetry's resource."""

    @property
    def attributes(self) -> Mapping[str, Any]: ...


class Facts(NamedTuple):
    """What an attempt ran on and with."""

    attempt: int
    process: int
    started_at: int  # when the recorder was made, ns
    program: str  # base name of the script
    resource: dict[str, Value]
    versions: dict[str, str]  # of Python, this package and libraries in use, by name of the distribution
    settings: dict[str, tuple[str, str]]  # value, and ``configure()``, ``environment`` or ``default``, by variable
    hyperparameters: dict[str, Value]  # as given, nested names joined by dots
    dropped: dict[str, int]  # how many entries had to be left out, by mapping
    exporters: dict[str, str]  # the project of Google Cloud that spans go to, else empty, by name
    scheduling: dict[str, float]  # s that the attempt waited before its program ran, by stage, as far as known
    compile_cache: dict[str, float]  # ``CACHE`` of jax's compilation cache; empty if that is not in use
    devices: int = 0  # that the process computes with; 0 if that is not known

    @property
    def role(self) -> str:
        """What the process does in a job of several roles; empty if it was not given."""
        return self.settings.get(Settings.role.variable, ("", ""))[0]


_MAPPING: Final = Named(SCALAR)
SIDECAR: Final = Sidecar(
    "facts of an attempt",
    Members(
        {
            "started_at": COUNT,
            "program": WORDS,
            "resource": _MAPPING,
            "versions": Named(WORDS),
            "settings": Named(Row(WORDS, WORDS)),
            "hyperparameters": _MAPPING,
            "dropped": Named(COUNT),
            "exporters": Named(WORDS),
            "scheduling": Named(FIGURE),
            "compile_cache": Named(FIGURE),
            "devices": COUNT,
        },
        absent={"devices": 0},
    ),
    FACTS,
)


class FactSheet:
    """Gathers the facts of this process, and writes them once they are known, and again if they grow.

    Attributes:
        projects: the exporters that were opened, each with what returns the project that its spans go to, or nothing.
    """

    def __init__(self, config: Config, attempt: int, started_at: int) -> None:
        # On the caller's thread: a child forked while another thread imports a module can never import it itself.
        for module in NEEDED:
            import_module(module)
        self._resource: Resource | None = None
        self._complete: Callable[[], bool] = lambda: self._resource is not None
        self._config = config
        self._attempt = attempt
        self._started_at = started_at
        self._hyperparameters: dict[str, Value] = {}
        self.projects: Mapping[str, Callable[[], str]] = {}
        self._waits: Callable[[], Mapping[str, int]] = dict
        self._scheduled: Mapping[str, int] = {}
        self._cache: Callable[[], Mapping[str, float]] = dict
        self._compiled: Mapping[str, float] = {}
        self._devices = 0
        self._left_out = 0
        self._adding = threading.Lock()
        self._made = time.monotonic()
        self._due = 0.0  # when to look next, s since it was made
        self._looks = 0
        self._written = b""
        self._earlier: tuple[Facts, ...] | None = None if attempt else ()  # of earlier attempts; None: not read yet

    @property
    def described(self) -> bool:
        """Whether the resource is known."""
        return self._resource is not None

    def describe(self, resource: Resource, complete: Callable[[], bool] = lambda: True) -> None:
        """Tell the resource of this process; `complete` returns whether all of it has been detected."""
        self._resource, self._complete = resource, complete

    def move(self, attempt: int) -> None:
        """Tell that this is the attempt `attempt`, of another run: the file is written again there."""
        self._attempt, self._written, self._due = attempt, b"", 0.0
        self._earlier = None if attempt else ()

    def watch(self, waits: Callable[[], Mapping[str, int]], cache: Callable[[], Mapping[str, float]] = dict) -> None:
        """Tell what returns how long the attempt waited before its program ran, ns by stage, as far as known.

        And what returns ``CACHE`` of the compilation cache; empty while it is not in use.
        """
        self._waits, self._cache = waits, cache

    def add(self, hyperparameters: Mapping[str, Any]) -> None:
        """Add hyperparameters; a later value replaces an earlier one. It does not raise, whatever they are."""
        try:
            values, left_out = flat(hyperparameters, MOST)
        except Exception as error:  # a third-party object can raise anything when it is described
            contain("hyperparameters", error)
            return
        with self._adding:
            self._hyperparameters |= values
            self._left_out += left_out
            self._due = min(self._due, time.monotonic() - self._made)

    def keep(self, run: RunDirectory, *, last: bool = False) -> None:
        """Write the file if it is time to look for more, or the `last` time, and there is more.

        An error is reported once; the next call in time tries again. The first call reads those of earlier attempts.
        """
        process = self._config.process_index
        if self._earlier is None:
            numbers = [number for number in run.attempts(process) if number < self._attempt]
            known = [facts_of(run, number, process) for number in numbers]
            self._earlier = tuple(one for one in known if one is not None)
        age = time.monotonic() - self._made
        if (waits := self._waits()) != self._scheduled:  # known some seconds after the start
            self._scheduled, self._due = waits, min(self._due, age)
        if (cache := self._cache()) != self._compiled:  # written soon, but not after each function
            self._compiled, self._due = cache, min(self._due, age + AGAIN_S[0])
        if (devices := local_devices() or self._devices) != self._devices:
            self._devices, self._due = devices, min(self._due, age)
        if not last and (age < self._due or (not self._looks and age < DETECTED_S and not self._complete())):
            return
        self._due = age + AGAIN_S[min(self._looks, len(AGAIN_S) - 1)]
        self._looks += 1
        data = encode(self.gathered())
        trouble = "the facts about this attempt's machine and settings cannot be saved (will retry): %s"
        if data != self._written and kept(run.file("facts", self._attempt, process), data, "facts", trouble):
            self._written = data

    def all_attempts(self) -> tuple[Facts, ...]:
        """The facts of all attempts, this one last; none until those of earlier attempts have been read."""
        earlier = self._earlier
        return () if earlier is None else (*earlier, self.gathered())

    def labels(self) -> tuple[Mapping[str, Any], ...]:
        """The attributes of the resource, and the hyperparameters, as they are known now."""
        with self._adding:
            return {} if self._resource is None else self._resource.attributes, dict(self._hyperparameters)

    def gathered(self) -> Facts:
        """The facts as they are known now."""
        hidden = secrets(os.environ)
        attributes = {} if self._resource is None else self._resource.attributes
        resource, dropped = flat({key: _listed(value) for key, value in attributes.items()}, MOST)
        settings = {
            name: (str(safe(name, setting.value, hidden)), setting.source)
            for name, setting in self._config.settings.items()
        }
        with self._adding:
            given, left_out = dict(self._hyperparameters), self._left_out
        projects = dict.fromkeys(self.projects, "")
        for name, project in self.projects.items():
            try:
                projects[name] = str(safe("project", str(project()), hidden))
            except Exception as error:  # code of another package
                contain("project of an exporter", error)
        return Facts(
            self._attempt,
            self._config.process_index,
            self._started_at,
            str(safe("program", PurePath(sys.argv[0]).name if sys.argv else "", hidden)),
            {key: safe(key, value, hidden) for key, value in resource.items()},
            versions(),
            settings,
            {key: safe(key, value, hidden) for key, value in given.items()},
            {name: count for name, count in (("resource", dropped), ("hyperparameters", left_out)) if count},
            projects,
            {stage: duration / NS for stage, duration in self._waits().items()},
            dict(self._cache()),
            local_devices() or self._devices,
        )


def _listed(value: Any) -> Any:
    """A list in an attribute as one text: nobody looks for its elements."""
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else value


def versions() -> dict[str, str]:
    """Versions of Python, this package and the libraries that are in use, found without importing anything."""
    from importlib import metadata  # imported already, see NEEDED; by the package itself it would cost every import

    known = {"python": platform.python_version(), "otel_goodput": __version__}
    for module, distribution in LIBRARIES.items():
        if module not in sys.modules:
            continue
        # By its dictionary: reading an attribute that a module does not have yet may make it import others.
        version = getattr(sys.modules[module], "__dict__", {}).get("__version__")
        if not isinstance(version, str):
            try:
                version = _installed.get(distribution) or metadata.version(distribution)
            except Exception:  # it is there under another name, or its files are no longer there
                continue
            _installed[distribution] = version
        known[distribution] = encodable(version)[:100]
    return known


def encode(facts: Facts) -> bytes:
    """The file of the facts. What does not fit is left out from the end of the largest mapping, and counted."""
    members = {**facts._asdict(), "dropped": dict(facts.dropped)}
    while len(data := SIDECAR.encode(**members)) > FACTS:
        largest = max(("resource", "settings", "hyperparameters"), key=lambda name: len(str(members[name])))
        entries = list(members[largest].items())
        keep = len(entries) // 2
        members[largest] = dict(entries[:keep])
        members["dropped"][largest] = members["dropped"].get(largest, 0) + len(entries) - keep
    return data


def read_facts(run: RunDirectory, attempt: int, process: int) -> Facts:
    """Read the facts of an attempt of a process. Raises as :meth:`Sidecar.read`."""
    members = SIDECAR.read(run.file("facts", attempt, process), attempt=attempt, process=process)
    return Facts(attempt=attempt, process=process, **members)


def facts_of(run: RunDirectory, attempt: int, process: int) -> Facts | None:
    """Read the facts of an attempt of a process; None if it left none that can be read."""
    try:
        return read_facts(run, attempt, process)
    except (OSError, ValueError):
        return None


# Attributes that distinguish two pods, the surest first: a new pod may have the name of the one before.
_POD: Final = (semconv.K8S_POD_UID, semconv.K8S_POD_NAME, semconv.K8S_NODE_NAME)
CACHE: Final = ("hits", "misses", "saved_s")  # of the facts' `compile_cache`


@dataclass(frozen=True)
class Startups:
    """What is known of all attempts of one process together."""

    # Attempts placed again, in another pod than the one before; None if no pod is known.
    reschedules: int | None = None
    first: dict[str, float] = field(default_factory=dict)  # s that the first attempt waited, by stage
    later: dict[str, float] = field(default_factory=dict)  # the same of all later attempts together
    cache: dict[str, float] = field(default_factory=dict)  # ``CACHE``; empty if it was not in use

    def to_json(self) -> dict[str, Any]:
        """Return the fields of a report; empty if nothing is known."""
        answer: dict[str, Any] = {}
        if self.reschedules is not None or self.first or self.later:
            answer["scheduling"] = {"reschedules": self.reschedules, "first_s": self.first, "later_s": self.later}
        if self.cache:
            hits, misses, saved = (self.cache[name] for name in CACHE)
            answer["compile_cache"] = {"hits": int(hits), "misses": int(misses), "saved_s": saved}
        return answer


def summed(attempts: Iterable[Facts]) -> Startups:
    """Return the sums over the facts of attempts, given in order."""
    reschedules: int | None = None
    waits: tuple[dict[str, float], dict[str, float]] = {}, {}  # of the first attempt, of later ones
    cache: dict[str, float] = {}
    before: Facts | None = None
    for facts in attempts:
        if facts.scheduling or any(name in facts.resource for name in _POD):
            again = before is not None and _anew(before, facts)
            reschedules = (reschedules or 0) + again
            before = facts
        _add(waits[facts.attempt > 0], facts.scheduling, SCHEDULING_STAGES)
        if all(name in facts.compile_cache for name in CACHE):
            _add(cache, facts.compile_cache, CACHE)
    return Startups(reschedules, *waits, cache)


def _anew(before: Facts, facts: Facts) -> bool:
    """Whether an attempt ran in another pod than the one before it."""
    for name in _POD:
        one, other = before.resource.get(name), facts.resource.get(name)
        if one is not None and other is not None and (one != other or name == semconv.K8S_POD_UID):
            return one != other
    # Only the first container of a pod has waited for a node: this is a new pod of the same name.
    return SchedulingStage.QUEUED in facts.scheduling


def _add(sums: dict[str, float], more: Mapping[str, float], names: Iterable[str]) -> None:
    for name in names:
        if name in more:
            sums[name] = sums.get(name, 0.0) + more[name]
