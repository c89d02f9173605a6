"""The settings: one row for each, with its type, default, environment variable, parser and meaning.

The arguments of ``configure()``, ``Recorder`` and ``GoodputSpanProcessor`` with their help, the reading and the check
of variables, ``otel-goodput env``, the command's help and the reference are derived from these rows. The two types at
the end, which type checkers need, are written by ``python docs/tables.py``.

Longer than other files: one table, so that a setting costs one edit.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypedDict, TypeVar, cast, overload

from opentelemetry.util import types

from otel_goodput._runtime.guard import report_once
from otel_goodput._settings import envvars
from otel_goodput._settings.envvars import EnvVar
from otel_goodput._text.durations import NS, parse_duration, parse_moment, window_name
from otel_goodput._text.redact import encodable, without_address
from otel_goodput.errors import ConfigurationError

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import MetricReader
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from typing_extensions import Self

F = TypeVar("F", bound=Callable[..., object])
V = TypeVar("V")

FEWEST_SPANS: Final = 100  # lowest limit for a trace
MOST_PROCESSES: Final = 1 << 16  # in a job
LONGEST_ROLE: Final = 64  # characters

# What watches a job besides its phases: libraries, and what announces or describes the end.
INTEGRATIONS: Final = (
    "jax",
    "torch",
    "torch_flops",
    "torch_save",
    "torch_checkpoint",
    "safetensors",
    "torch_loader",
    "grain_loader",
    "orbax",
    "ray",
    "signals",
    "maintenance",
    "kubernetes",
)
# What records steps and loads that nobody opens: only if it is named, or for `all`, as under `otel-goodput run`.
TRAINERS: Final[tuple[str, ...]] = (
    "transformers",
    "accelerate",
    "torchtitan",
    "torch_data",
    "keras",
    "lightning",
    "pytorch_lightning",
)
DIRECTORY: Final = "goodput"  # of the runs, in the working directory
OWN: Final = "own"  # each step has a trace of its own
STEP_TRACES: Final = ("shared", OWN)
DEVICE_CLOCKS: Final = ("auto", "observe", "host")
# Rolling windows that alerts about an objective go by, ns: https://sre.google/workbook/alerting-on-slos/, table 5-8.
OBJECTIVE_WINDOWS: Final = tuple(map(parse_duration, ("5m", "30m", "1h", "6h", "3d")))

_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S")
_NEXT_ADDRESS: Final = re.compile(rf"[\s,]+(?={_ADDRESS.pattern})")  # an address may contain commas
PROFILE_AUTO: Final = "auto"
PROFILE_TRACE: Final = "trace"
PROFILE_REQUEST: Final = "request"
PROFILE_OFF: Final = "off"
PROFILES: Final = (PROFILE_AUTO, PROFILE_TRACE, PROFILE_REQUEST, PROFILE_OFF)
AUTO: Final = "auto"
OFF: Final = "off"
GIL: Final = "gil"
START: Final = "start="


# --- parsers: of the text of a variable or an argument; they raise ValueError or OverflowError ------------------------


def parse_windows(text: str) -> tuple[int, ...]:
    """Lengths of rolling windows, ns. Raises ValueError or OverflowError."""
    spans = tuple(parse_duration(part) for part in text.split(",") if part.strip())
    if spans and min(spans) < NS:
        raise ValueError(f"a rolling window must be at least one second: {text!r}")
    return spans


def _whole(what: str, least: int, most: int, note: str = "", *, off: int | None = None) -> Callable[[str], int]:
    """Return a parser of a whole number from `least` to `most`, or the number `off`; errors end with `note`."""

    def parse(text: str) -> int:
        number = int(text)
        if number != off and not least <= number <= most:
            raise ValueError(f"{what} must be between {least:,} and {most:,}{note}, not {number}")
        return number

    return parse


def _one_of(what: str, choices: Sequence[str]) -> Callable[[str], str]:
    """Return a parser of one of `choices`, in any case."""

    def parse(text: str) -> str:
        if (choice := text.lower()) not in choices:
            raise ValueError(f"{what} must be one of {', '.join(choices)}, not {text!r}")
        return choice

    return parse


def _grace(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < 1e6:
        raise ValueError(f"not a number of seconds: {text!r}")
    return seconds


def _interval(text: str) -> int | None:
    if text.strip().lower() in ("", "0", "none"):
        return None
    length = parse_duration(text)
    if not NS <= length <= 86_400 * NS:
        raise ValueError(f"usage is sampled once a second at most and once a day at least, not every {text!r}")
    return length


def _incidents(text: str) -> int | None:
    if text.strip().lower() in ("off", "0", "none"):
        return None
    length = parse_duration(text)
    if not NS // 10 <= length <= 3600 * NS:
        raise ValueError(f"incidents are looked for every 0.1 s to 1 h, not every {text!r}; off: never")
    return length


def _limit(text: str) -> int | None:
    return parse_duration(text) if text.strip() else None


class Watch(NamedTuple):
    """How training is watched: `limit` in ns, 0: by what is usual; `timer`: also by the interpreter's.

    `start`: the limit before the first step, and in a phase that was not seen before, ns; 0: the usual one.
    """

    on: bool = True
    limit: int = 0
    timer: bool = False
    start: int = 0


def _watchdog(text: str) -> Watch:
    words = _names(text.lower())
    starts = [word.removeprefix(START) for word in words if word.startswith(START)]
    limit, *others = [word for word in words if word != GIL and not word.startswith(START)] or [AUTO]
    if others or len(starts) > 1 or (limit == OFF and GIL in words):
        raise ValueError(f"the watchdog is {AUTO}, {OFF} or a duration, perhaps with {START}10m or {GIL}, not {text!r}")
    lengths = [0 if word in (AUTO, OFF) else parse_duration(word) for word in (limit, *starts)]
    if any(length and not NS <= length <= 7 * 86_400 * NS for length in lengths):
        raise ValueError(f"the watchdog's limits must be between a second and a week, not {text!r}")
    return Watch(limit != OFF, lengths[0], GIL in words, *lengths[1:])


def _processes(text: str) -> str:
    if text in ("leader", "all"):
        return text
    parts = [part.strip() for part in text.split(",")]
    if all(part.isascii() and part.isdigit() and len(part) < 16 for part in parts):
        return ",".join(str(int(part)) for part in parts)
    raise ValueError(f"processes must be leader, all, or indices such as 0,4, not {text!r}")


def _role(text: str) -> str:
    role = encodable(text.strip())
    if len(role) > LONGEST_ROLE or not role.isprintable():
        raise ValueError(f"a role is up to {LONGEST_ROLE} printable characters, not {role[: 2 * LONGEST_ROLE]!r}")
    return role


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _integrations(text: str) -> tuple[str, ...]:
    names, known = _names(text.lower()), (*INTEGRATIONS, *TRAINERS)
    groups = {"auto": INTEGRATIONS, "all": known, "none": ()}
    if unknown := [name for name in names if name.removeprefix("-") not in known and name not in groups]:
        raise ValueError(f"integrations must be auto, all, none, or some of {', '.join(known)}, not {unknown[0]!r}")
    if "none" in names and len(names) > 1:
        raise ValueError("integrations: none cannot be combined with others")
    without = {name[1:] for name in names if name.startswith("-")}
    wanted = [name for name in names if not name.startswith("-")] or ["auto"] * bool(names)
    chosen = [one for name in wanted for one in groups.get(name, (name,))]
    return tuple(one for one in dict.fromkeys(chosen) if one not in without)


def parse_share(text: str) -> float:
    """A share such as ``95%`` or ``0.95``. Raises ValueError."""
    percent = text.strip().endswith("%")
    share = float(text.strip().removesuffix("%")) / (100 if percent else 1)
    if not 0 < share < 1:
        raise ValueError(f"an objective is a share between 0 and 1, such as 95% or 0.95, not {text!r}")
    return share


def with_objective(windows: Sequence[int], objective: float | None) -> tuple[int, ...]:
    """Return rolling windows (ns) with those that alerts about an objective go by, if there is one."""
    return tuple(windows) if objective is None else tuple(dict.fromkeys((*windows, *OBJECTIVE_WINDOWS)))


def _addresses(text: str) -> tuple[str, ...]:
    addresses = tuple(_NEXT_ADDRESS.split(text.strip()))
    if any(not _ADDRESS.match(address) for address in addresses):
        raise ValueError("where to notify is a URL such as slack://… or json://…; this one, not shown here, is none")
    return addresses


# --- checks of arguments that have no variable; they raise ValueError -------------------------------------------------


def _ideal(seconds: float) -> float | None:
    if not 0 < seconds < 1e9:
        raise ValueError(f"ideal_step_time must be above 0 and below 1e9 seconds, not {seconds!r}")
    return seconds


def _flops(name: str, flops: float) -> float | None:
    if not 0 < flops < float("inf"):
        raise ValueError(f"{name} must be a finite number above 0, not {flops!r}")
    return flops


def _hyperparameters(given: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise ValueError(f"hyperparameters must be a mapping of names to values, not {type(given).__name__}")
    return given


# --- rows -------------------------------------------------------------------------------------------------------------


class Setting(NamedTuple):
    """A value in force, as text, and its source: ``configure()``, ``environment`` or ``default``."""

    value: str
    source: str


class Argument(Generic[V]):
    """A setting that only an argument gives. As an attribute of :class:`Settings` it is the row, of a config its value.

    The argument `takes` a type; `brief` is its meaning, and `meaning` that with the variable. `parse` returns its value
    or raises ValueError or OverflowError. `processor`: ``GoodputSpanProcessor`` takes it, too.
    """

    name: str

    def __init__(
        self,
        takes: str,
        brief: str,
        parse: Callable[[Any], V] = lambda given: cast("V", given),
        default: Any = None,
        *,
        processor: bool = False,
    ) -> None:
        self.takes, self.brief, self.parse, self.default, self.processor = takes, brief, parse, default, processor
        self.meaning = brief

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, config: None, owner: type) -> Self: ...
    @overload
    def __get__(self, config: Settings, owner: type) -> V: ...
    def __get__(self, config: Settings | None, owner: type) -> Self | V:
        return self if config is None else cast("V", config.values[self.name])

    def read(self, given: object, environ: Mapping[str, str]) -> tuple[V | None, Setting | None]:
        """Return the value in force, and its source. A wrong argument raises ConfigurationError."""
        return (cast("V", self.default) if given is None else self._parsed(given)), None

    def _parsed(self, given: object) -> V:
        try:
            return self.parse(given)
        except (ValueError, OverflowError) as error:
            raise ConfigurationError(f"configure(): {error}") from error


class Option(Argument[V]):
    """A setting that an environment variable gives, if no argument does.

    Its text has the type that `kind` describes and the default `usual`. `variable` is the end of its name, if that is
    not the argument's, and as an attribute its whole name. `secret`: of the URLs in it only the schemes are shown.
    """

    envvar: EnvVar

    def __init__(
        self,
        takes: str,
        kind: str,
        usual: str,
        brief: str,
        parse: Callable[[str], V],
        *,
        variable: str = "",
        processor: bool = False,
        secret: bool = False,
    ) -> None:
        super().__init__(takes, brief, parse, processor=processor)
        self.kind, self.usual, self.variable, self.secret = kind, usual, variable, secret

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name
        self.variable = envvars.PREFIX + (self.variable or name.upper())
        self.envvar = EnvVar(self.variable, self.kind, self.usual, self.brief)
        self.meaning = f"{self.brief} (``{self.variable}{f'={self.usual}' if self.usual else ''}``)"

    def read(self, given: object, environ: Mapping[str, str]) -> tuple[V | None, Setting]:
        """Return the value in force and its source. A wrong variable is reported and ignored."""
        if given is not None:
            text = ",".join(map(str, given)) if isinstance(given, (list, tuple)) else str(given)
            return self._parsed(text), Setting(self._shown(text), "configure()")
        if text := environ.get(self.variable, "").strip():
            shown = self._shown(text)
            try:
                return self.parse(text), Setting(shown, "environment")
            except (ValueError, OverflowError) as error:
                ignored = "%s=%r is ignored, %r is used: %s"
                report_once(f"environment {self.variable}", ignored, self.variable, shown, self.usual, error)
        return (self.parse(self.usual) if self.usual else None), Setting(self.usual, "default")

    def _shown(self, text: str) -> str:
        return without_address(text) if self.secret else text


class Settings:
    """The table; `values` are those in force, by the names of the settings."""

    values: Mapping[str, Any]

    run_id = Option(
        "str | None",
        "string",
        "",
        "id of the run across restarts; by default the JobSet's name, else the job's name",
        str.strip,
        processor=True,
    )
    directory = Option(
        "str | Path | None",
        "path or URL",
        "",
        f"local directory or fsspec URL of the journal; empty: ./{DIRECTORY}",
        str,
        variable="DIR",
        processor=True,
    )
    exporters = Option(
        "str | Sequence[str] | None",
        "list",
        "auto",
        "names of exporters, separated by commas; or none; or auto, which depends on the environment",
        _names,
    )
    processes = Option("str | None", "leader | all | list", "all", "which processes export their spans", _processes)
    step_sampling = Option(
        "int | None",
        "int",
        "100",
        "after the first 100 steps, export one step in this many (1: every step)",
        _whole("step sampling", 1, 999_999_999, " (1: every step)"),
    )
    step_traces = Option(
        "str | None",
        " | ".join(STEP_TRACES),
        STEP_TRACES[0],
        "`own` puts each step and its load into a separate trace, linked to the job span",
        _one_of("step traces", STEP_TRACES),
    )
    trace_spans = Option(
        "int | None",
        "int",
        "5000",
        "maximum number of this package's spans in one trace, over all processes; further spans go to another trace "
        "(0: no limit)",
        _whole("spans per trace", FEWEST_SPANS, 999_999_999, " (0: no limit)", off=0),
    )
    windows = Option(
        "str | Sequence[str] | None",
        "list of durations",
        "1h,24h",
        "rolling windows, such as 10m,1h,24h",
        parse_windows,
        processor=True,
    )
    integrations = Option(
        "str | Sequence[str] | None",
        "list",
        "auto",
        f"some of {', '.join((*INTEGRATIONS, *TRAINERS))}; `auto`, those that do not record steps of trainers; `all`; "
        "`none`; `-NAME` leaves one out",
        _integrations,
    )
    device_clock = Option(
        "str | None",
        " | ".join(DEVICE_CLOCKS),
        DEVICE_CLOCKS[0],
        "how the end of a step on the device is detected: `auto` uses marks, `observe` only `goodput.observe()`; "
        "`host` asserts that steps wait for their results",
        _one_of("the device clock", DEVICE_CLOCKS),
    )
    stalled_after = Option(
        "float | str | None",
        "duration",
        "",
        "how long a step may take before the rest of its time is `stalled`, such as 5m; empty: 10 times the usual "
        "step, and at least 10 s more",
        _limit,
    )
    watchdog = Option(
        "float | str | None",
        f"{AUTO} | {OFF} | duration, {START}duration, {GIL}",
        AUTO,
        "how long training may stand still before the stacks of all threads are written to the run's folder; `auto`: "
        f"10 times the usual step, and at least 30 s. With `,{START}20m` 20 minutes before the first step, also for "
        f"incidents. With `,{GIL}` also if a call of C holds Python's lock",
        _watchdog,
    )
    grace_period = Option(
        "float | None", "seconds", "10", "time limit for shutdown: one deadline for traces, metrics and journal", _grace
    )
    usage_interval = Option(
        "float | str | None",
        "duration",
        "",
        "how often CPU, memory and accelerators are sampled, for the page and for metrics, such as 10s; empty: never",
        _interval,
    )
    objective = Option(
        "float | str | None",
        "share",
        "",
        "the goodput that the run should have, such as 95%: a metric, and how much of the error budget is used; alerts "
        f"need it, and the rolling windows {', '.join(map(window_name, OBJECTIVE_WINDOWS))}, which it adds",
        parse_share,
    )
    notify = Option(
        "str | Sequence[str] | None",
        "list of URLs",
        "",
        "where incidents are reported straight from the job, by `apprise`, such as slack://… (never printed)",
        _addresses,
        secret=True,
    )
    notify_only = Option(
        "str | Sequence[str] | None",
        "key=value list",
        "",
        "report only the incidents of runs with all these resource attributes or hyperparameters, such as team=prod; "
        "a key alone takes any value",
        _names,
    )
    profile = Option(
        "str | None",
        " | ".join(PROFILES),
        PROFILE_AUTO,
        "when steps are profiled: `auto`: by a sampler of Python stacks when an incident begins, and on request; "
        "`trace`: then also by jax's or PyTorch's profiler; `request`: only on request; `off`: never",
        _one_of("profiles", PROFILES),
    )
    incidents = Option(
        "float | str | None",
        "duration",
        "5s",
        "how often the account is searched for incidents (a hang, a slowdown, attempts without progress); a step hangs "
        "after 6 times that, and 10 times the usual step; off: never",
        _incidents,
    )
    submitted_at = Option(
        "float | str | None",
        "unix seconds or RFC 3339",
        "",
        "when the job was submitted, for scheduling goodput",
        cast("Callable[[str], int | None]", parse_moment),
    )
    process_index = Option(
        "int | None",
        "int",
        "",
        "index of this process, from 0; by default the launcher's value",
        _whole("a process index", 0, MOST_PROCESSES - 1),
    )
    process_count = Option(
        "int | None",
        "int",
        "",
        "number of processes; by default the launcher's value",
        _whole("a process count", 1, MOST_PROCESSES),
    )
    role = Option(
        "str | None",
        "string",
        "",
        "what this process does, such as actor or learner, if a job has processes that do different things: each role "
        "is accounted by itself, and the job is their sum, weighted by devices",
        _role,
    )
    leader = Argument[int](
        "int",
        "index of the process that chooses the run, makes the account of all ranks, and exports metrics",
        default=0,
    )
    ideal_step_time = Argument("float | None", "in seconds, instead of the estimate", _ideal)
    flops_per_step = Argument(
        "float | None",
        "floating-point operations of the model per step; with the peak, they give the program goodput (MFU)",
        partial(_flops, "flops_per_step"),
    )
    peak_flops = Argument(
        "float | None",
        "peak floating-point operations per second of all chips; by default that of jax's devices",
        partial(_flops, "peak_flops"),
    )
    resource_attributes = Argument["Mapping[str, types.AttributeValue] | None"](
        "Mapping[str, types.AttributeValue] | None", "further attributes of the resource"
    )
    hyperparameters = Argument(
        "Mapping[str, Any] | None",
        "of the model and its training, stored and shown with the run; secrets in them are hidden",
        _hyperparameters,
    )
    tracer_provider = Argument["TracerProvider | None"](
        "TracerProvider | None", "your own provider, used instead of the default one; shut it down yourself"
    )
    meter_provider = Argument["MeterProvider | None"](
        "MeterProvider | None",
        "your own provider, used instead of the default one; shut it down yourself",
        processor=True,
    )
    span_processors = Argument["Sequence[SpanProcessor]"](
        "Sequence[SpanProcessor]", "further span processors, shut down together with the recorder", default=()
    )
    metric_readers = Argument["Sequence[MetricReader]"](
        "Sequence[MetricReader]", "further metric readers, shut down together with the recorder", default=()
    )


OPTIONS: Final[Mapping[str, Argument[Any]]] = {
    name: row for name, row in vars(Settings).items() if isinstance(row, Argument)
}
_WITH_VARIABLE: Final = {name: row for name, row in OPTIONS.items() if isinstance(row, Option)}
# This package's variables: those of settings, and others.
ENVVARS: Final = (*(row.envvar for row in _WITH_VARIABLE.values()), *envvars.OTHERS)
# The setting of each environment variable, by the variable's name.
OF_VARIABLE: Final[Mapping[str, str]] = {row.variable: name for name, row in _WITH_VARIABLE.items()}


def check_names(called: str, given: Mapping[str, Any], *, processor: bool = False) -> None:
    """Raise TypeError, as Python does for unexpected arguments of the function `called`, if a name is not a setting."""
    for name in given:
        if name not in OPTIONS or (processor and not OPTIONS[name].processor):
            raise TypeError(f"{called}() got an unexpected keyword argument {name!r}")


def read(
    called: str, given: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, Setting]]:
    """Return the values in force by the names of the settings, and the settings by the names of their variables.

    `given` are the arguments of the function `called`. Raises ConfigurationError if one is wrong, TypeError if one is
    unknown.
    """
    check_names(called, given)
    values, settings = {}, {}
    for name, row in OPTIONS.items():
        values[name], setting = row.read(given.get(name), environ)
        if isinstance(row, Option) and setting is not None:
            settings[row.variable] = setting
    return values, settings


# --- arguments --------------------------------------------------------------------------------------------------------


def taking_options(taker: F, *, processor: bool = False) -> F:
    """Decorator for a function or a class: list the arguments instead of ``**options`` in its signature and docstring.

    `taker` has ``**options``, and a line ``{options}`` in its docstring. `processor`: only those that
    ``GoodputSpanProcessor`` takes.
    """
    chosen = [row for row in OPTIONS.values() if row.processor or not processor]
    function: Any = taker.__init__ if inspect.isclass(taker) else taker
    keyword, signature = inspect.Parameter.KEYWORD_ONLY, inspect.signature(function)
    own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    taken = [inspect.Parameter(row.name, keyword, default=row.default, annotation=row.takes) for row in chosen]
    placed = [each for each in own if each.kind is not keyword]
    ordered = [*placed, *taken, *(each for each in own if each.kind is keyword)]
    function.__signature__ = inspect.Signature(ordered, return_annotation=signature.return_annotation)
    lines = [f"{row.name}: {row.meaning}." for row in chosen]
    taker.__doc__ = "\n".join(
        "\n".join(line.replace("{options}", each) for each in lines) if line.strip() == "{options}" else line
        for line in (taker.__doc__ or "").split("\n")
    )
    return taker


# --- written by `python docs/tables.py`: change the rows above, and run it --------------------------------------------
# begin: options
class Options(TypedDict, total=False):
    """Keyword arguments of ``configure()`` and ``Recorder``."""

    run_id: str | None
    directory: str | Path | None
    exporters: str | Sequence[str] | None
    processes: str | None
    step_sampling: int | None
    step_traces: str | None
    trace_spans: int | None
    windows: str | Sequence[str] | None
    integrations: str | Sequence[str] | None
    device_clock: str | None
    stalled_after: float | str | None
    watchdog: float | str | None
    grace_period: float | None
    usage_interval: float | str | None
    objective: float | str | None
    notify: str | Sequence[str] | None
    notify_only: str | Sequence[str] | None
    profile: str | None
    incidents: float | str | None
    submitted_at: float | str | None
    process_index: int | None
    process_count: int | None
    role: str | None
    leader: int
    ideal_step_time: float | None
    flops_per_step: float | None
    peak_flops: float | None
    resource_attributes: Mapping[str, types.AttributeValue] | None
    hyperparameters: Mapping[str, Any] | None
    tracer_provider: TracerProvider | None
    meter_provider: MeterProvider | None
    span_processors: Sequence[SpanProcessor]
    metric_readers: Sequence[MetricReader]


class ProcessorOptions(TypedDict, total=False):
    """Those of ``GoodputSpanProcessor``."""

    run_id: str | None
    directory: str | Path | None
    windows: str | Sequence[str] | None
    meter_provider: MeterProvider | None


# end: options
