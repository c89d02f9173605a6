"""The options of ``configure()``: each one defined once, with its type, default, variable, meaning and parser.

Arguments, their help, ``otel-goodput env``, the README's table, the reading and the check of variables are derived from
it.
"""

# No `from __future__ import annotations`: the annotations are evaluated at run time.
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypedDict, TypeVar, get_args

from opentelemetry.util import types

from otel_goodput import envvars
from otel_goodput.envvars import EnvVar
from otel_goodput.text.durations import NS, parse_duration, parse_moment

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import MetricReader
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

F = TypeVar("F", bound=Callable[..., object])

FEWEST_SPANS: Final = 100  # lowest limit for a trace
MOST_PROCESSES: Final = 1 << 16  # in a job


def parse_windows(text: str) -> tuple[int, ...]:
    """Lengths of rolling windows, ns. Raises ValueError or OverflowError."""
    spans = tuple(parse_duration(part) for part in text.split(",") if part.strip())
    if spans and min(spans) < NS:
        raise ValueError(f"a rolling window must be at least one second: {text!r}")
    return spans


def _sampling(text: str) -> int:
    every = int(text)
    if not 1 <= every < 1_000_000_000:
        raise ValueError(f"step sampling must be between 1 (every step) and 999,999,999, not {every}")
    return every


def _spans(text: str) -> int:
    most = int(text)
    if most and not FEWEST_SPANS <= most < 1_000_000_000:
        raise ValueError(f"spans per trace must be at least {FEWEST_SPANS}, or 0 for no limit, not {most}")
    return most


def _traces(text: str) -> bool:
    if text not in (choices := envvars.OTEL_GOODPUT_STEP_TRACES.choices):
        raise ValueError(f"step traces must be {' or '.join(choices)}, not {text!r}")
    return text == "own"


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


def _limit(text: str) -> int | None:
    return parse_duration(text) if text.strip() else None


def _processes(text: str) -> str:
    if text in ("leader", "all"):
        return text
    parts = [part.strip() for part in text.split(",")]
    if all(part.isascii() and part.isdigit() and len(part) < 16 for part in parts):
        return ",".join(str(int(part)) for part in parts)
    raise ValueError(f"processes must be leader, all, or indices such as 0,4, not {text!r}")


def _index(text: str) -> int:
    index = int(text)
    if not 0 <= index < MOST_PROCESSES:
        raise ValueError(f"a process index must be between 0 and {MOST_PROCESSES - 1}, not {index}")
    return index


def _count(text: str) -> int:
    count = int(text)
    if not 1 <= count <= MOST_PROCESSES:
        raise ValueError(f"a process count must be between 1 and {MOST_PROCESSES}, not {count}")
    return count


def _device_clock(text: str) -> str:
    if (mode := text.lower()) not in (choices := envvars.OTEL_GOODPUT_DEVICE_CLOCK.choices):
        raise ValueError(f"the device clock must be one of {', '.join(choices)}, not {text!r}")
    return mode


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _integrations(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(_names(text.lower())))
    if unknown := [name for name in names if name not in (*envvars.INTEGRATIONS, "auto", "none")]:
        raise ValueError(
            f"integrations must be auto, none, or some of {', '.join(envvars.INTEGRATIONS)}, not {unknown[0]!r}"
        )
    if "none" in names and len(names) > 1:
        raise ValueError("integrations: none cannot be combined with others")
    return () if "none" in names else envvars.INTEGRATIONS if "auto" in names else names


class Option(NamedTuple):
    """One option.

    Attributes:
        brief: its meaning; empty to use the description of its variable.
        variable: its environment variable, if it has one.
        default: the default of the argument.
        parse: returns the value of a text, for options with a variable; raises ValueError or OverflowError.
    """

    brief: str = ""
    variable: EnvVar | None = None
    default: Any = None
    parse: Callable[[str], Any] = str.strip

    @property
    def meaning(self) -> str:
        """The description of the option, one line of reStructuredText."""
        if self.variable is None:
            return self.brief
        default = f"={self.variable.default}" if self.variable.default else ""
        return f"{self.brief or self.variable.brief} (``{self.variable.name}{default}``)"


class Options(TypedDict, total=False):
    """Keyword arguments of ``configure()``, ``Recorder`` and ``config.read()``."""

    run_id: Annotated[str | None, Option(variable=envvars.OTEL_GOODPUT_RUN_ID)]
    directory: Annotated[str | Path | None, Option(variable=envvars.OTEL_GOODPUT_DIR, parse=str)]
    exporters: Annotated[str | Sequence[str] | None, Option(variable=envvars.OTEL_GOODPUT_EXPORTERS, parse=_names)]
    processes: Annotated[str | None, Option(variable=envvars.OTEL_GOODPUT_PROCESSES, parse=_processes)]
    step_sampling: Annotated[int | None, Option(variable=envvars.OTEL_GOODPUT_STEP_SAMPLING, parse=_sampling)]
    step_traces: Annotated[str | None, Option(variable=envvars.OTEL_GOODPUT_STEP_TRACES, parse=_traces)]
    trace_spans: Annotated[int | None, Option(variable=envvars.OTEL_GOODPUT_TRACE_SPANS, parse=_spans)]
    windows: Annotated[str | Sequence[str] | None, Option(variable=envvars.OTEL_GOODPUT_WINDOWS, parse=parse_windows)]
    integrations: Annotated[
        str | Sequence[str] | None, Option(variable=envvars.OTEL_GOODPUT_INTEGRATIONS, parse=_integrations)
    ]
    device_clock: Annotated[str | None, Option(variable=envvars.OTEL_GOODPUT_DEVICE_CLOCK, parse=_device_clock)]
    stalled_after: Annotated[float | str | None, Option(variable=envvars.OTEL_GOODPUT_STALLED_AFTER, parse=_limit)]
    grace_period: Annotated[float | None, Option(variable=envvars.OTEL_GOODPUT_GRACE_PERIOD, parse=_grace)]
    usage_interval: Annotated[float | str | None, Option(variable=envvars.OTEL_GOODPUT_USAGE_INTERVAL, parse=_interval)]
    submitted_at: Annotated[float | str | None, Option(variable=envvars.OTEL_GOODPUT_SUBMITTED_AT, parse=parse_moment)]
    process_index: Annotated[int | None, Option(variable=envvars.OTEL_GOODPUT_PROCESS_INDEX, parse=_index)]
    process_count: Annotated[int | None, Option(variable=envvars.OTEL_GOODPUT_PROCESS_COUNT, parse=_count)]
    leader: Annotated[int, Option("index of the process whose phases make up the account", default=0)]
    ideal_step_time: Annotated[float | None, Option("in seconds, instead of the estimate")]
    flops_per_step: Annotated[
        float | None,
        Option("floating-point operations of the model per step; with the peak, they give the program goodput (MFU)"),
    ]
    peak_flops: Annotated[
        float | None, Option("peak floating-point operations per second of all chips; by default that of jax's devices")
    ]
    resource_attributes: Annotated[
        Mapping[str, types.AttributeValue] | None, Option("further attributes of the resource")
    ]
    hyperparameters: Annotated[
        Mapping[str, Any] | None,
        Option("of the model and its training, stored and shown with the run; secrets in them are hidden"),
    ]
    tracer_provider: Annotated[
        "TracerProvider | None", Option("your own provider, used instead of the default one; shut it down yourself")
    ]
    meter_provider: Annotated[
        "MeterProvider | None", Option("your own provider, used instead of the default one; shut it down yourself")
    ]
    span_processors: Annotated[
        "Sequence[SpanProcessor]", Option("further span processors, shut down together with the recorder", default=())
    ]
    metric_readers: Annotated[
        "Sequence[MetricReader]", Option("further metric readers, shut down together with the recorder", default=())
    ]


OPTIONS: Final[Mapping[str, Option]] = {
    name: get_args(annotation)[1] for name, annotation in Options.__annotations__.items()
}

# The option of each environment variable, by the variable's name.
OF_VARIABLE: Final[Mapping[str, str]] = {
    option.variable.name: name for name, option in OPTIONS.items() if option.variable is not None
}


def check(called: str, given: Mapping[str, object]) -> None:
    """Raise TypeError, as Python does for unexpected arguments of the function `called`, if a name is not an option."""
    for name in given:
        if name not in OPTIONS:
            raise TypeError(f"{called}() got an unexpected keyword argument {name!r}")


def taking_options(function: F) -> F:
    """Decorator: list every option in the function's signature instead of ``**options``, and in its docstring."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    own = [each for each in inspect.signature(function).parameters.values() if each.kind is not each.VAR_KEYWORD]
    ours = [
        inspect.Parameter(name, keyword, default=option.default, annotation=_type_of(name))
        for name, option in OPTIONS.items()
    ]
    placed = [each for each in own if each.kind is not keyword]
    function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [*placed, *ours, *(each for each in own if each.kind is keyword)],
        return_annotation=inspect.signature(function).return_annotation,
    )
    function.__doc__ = described(function.__doc__ or "")
    return function


def _type_of(name: str) -> Any:
    found = get_args(Options.__annotations__[name])[0]
    return getattr(found, "__forward_arg__", found)


def described(text: str) -> str:
    """Return `text` with its line ``{options}`` replaced by the meanings of the options, one per line."""
    lines = [f"{name}: {option.meaning}." for name, option in OPTIONS.items()]
    return "\n".join(
        "\n".join(line.replace("{options}", each) for each in lines) if line.strip() == "{options}" else line
        for line in text.split("\n")
    )
