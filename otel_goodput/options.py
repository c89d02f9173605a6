"""The options of ``configure()``: each one defined once, with its type, default, variable and meaning.

Arguments, their help, ``otel-goodput env``, the README's table and the check of variables are derived from it.
"""

# No `from __future__ import annotations`: the annotations are evaluated at run time.
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypedDict, TypeVar, get_args

from opentelemetry.util import types

from otel_goodput import envvars
from otel_goodput.envvars import EnvVar

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import MetricReader
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

F = TypeVar("F", bound=Callable[..., object])


class Option(NamedTuple):
    """One option.

    Attributes:
        brief: its meaning; empty to use the description of its variable.
        variable: its environment variable, if it has one.
        default: the default of the argument.
    """

    brief: str = ""
    variable: EnvVar | None = None
    default: Any = None

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
    directory: Annotated[str | Path | None, Option(variable=envvars.OTEL_GOODPUT_DIR)]
    exporters: Annotated[str | Sequence[str] | None, Option(variable=envvars.OTEL_GOODPUT_EXPORTERS)]
    processes: Annotated[str | None, Option(variable=envvars.OTEL_GOODPUT_PROCESSES)]
    step_sampling: Annotated[int | None, Option(variable=envvars.OTEL_GOODPUT_STEP_SAMPLING)]
    step_traces: Annotated[str | None, Option(variable=envvars.OTEL_GOODPUT_STEP_TRACES)]
    trace_spans: Annotated[int | None, Option(variable=envvars.OTEL_GOODPUT_TRACE_SPANS)]
    windows: Annotated[str | Sequence[str] | None, Option(variable=envvars.OTEL_GOODPUT_WINDOWS)]
    integrations: Annotated[str | Sequence[str] | None, Option(variable=envvars.OTEL_GOODPUT_INTEGRATIONS)]
    device_clock: Annotated[str | None, Option(variable=envvars.OTEL_GOODPUT_DEVICE_CLOCK)]
    grace_period: Annotated[float | None, Option(variable=envvars.OTEL_GOODPUT_GRACE_PERIOD)]
    submitted_at: Annotated[float | str | None, Option(variable=envvars.OTEL_GOODPUT_SUBMITTED_AT)]
    process_index: Annotated[int | None, Option("index of this process, from 0; by default set by the launcher")]
    process_count: Annotated[int | None, Option("number of processes; by default set by the launcher")]
    leader: Annotated[int, Option("index of the process whose phases are accounted", default=0)]
    ideal_step_time: Annotated[float | None, Option("in seconds, instead of the estimate")]
    flops_per_step: Annotated[
        float | None,
        Option(
            "floating-point operations of the model in one step; with the peak too, the program goodput (MFU) is known"
        ),
    ]
    peak_flops: Annotated[
        float | None, Option("floating-point operations per second of all chips together; by default jax's devices'")
    ]
    resource_attributes: Annotated[
        Mapping[str, types.AttributeValue] | None, Option("further attributes of the resource")
    ]
    hyperparameters: Annotated[
        Mapping[str, Any] | None,
        Option("of the model and its training, kept with the run and shown beside it; secrets in them are hidden"),
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
