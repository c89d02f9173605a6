"""The page of the functions and classes: what their signatures and docstrings say, as Markdown."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from opentelemetry.util.types import AttributeValue

import otel_goodput
from otel_goodput import errors, testing
from otel_goodput._recording.fast_span import FastSpan
from otel_goodput._recording.phases import Phases
from otel_goodput._recording.tracer import Save
from otel_goodput._settings.options import OPTIONS
from otel_goodput.reports.report import Report

# What stands under each heading of the page. A test sees to it that no public name is missing.
RECORDING = ("configure", "on_preemption", "count_flops", "checkpoint_logger", "flush", "shutdown")
PHASES = (
    "job", "accelerator_init", "training_prep", "steps", "step", "observe", "current_step", "part", "traced_step",
    "data_loading", "loading", "checkpoint_save", "checkpoint_restore", "custom", "elastic_wait", "elastic_reinit",
    "exclusion", "slice_counts",
)  # fmt: skip
FIGURES = ("report", "totals", "open_run", "open_runs")
CLASSES = ("Recorder", "GoodputSpanProcessor", "Run")
ERRORS = ("GoodputError", "ConfigurationError", "JournalError", "PhaseError")
# What phases yield and functions return, and users call: the name in a reader's code, the class, its methods.
GIVEN = (
    ("span", FastSpan, ("observe",)),
    ("save", Save, ("durable",)),
    ("report", Report, ("to_json", "html", "damaged")),
)
# What stands in place of the table of arguments.
INSTEAD: dict[Any, str] = {
    otel_goodput.Recorder: "It takes the arguments of `configure()`, but for `set_global`.\n\n",
    otel_goodput.Run: "",  # no reader makes one
    testing.Recording: "",  # nor one of these
}


class Docstring(NamedTuple):
    """What a docstring says: its text, and by the name of a section, the names explained there."""

    text: str
    sections: Mapping[str, Mapping[str, str]]

    def arguments(self) -> dict[str, str]:
        """The meanings of arguments, also of those that several functions take."""
        return {
            name: what
            for title, explained in self.sections.items()
            if title.startswith("Args")
            for name, what in explained.items()
        }


def parsed(text: str) -> Docstring:
    """Parse the docstring `text`."""
    lines = inspect.cleandoc(text).split("\n")
    parts: dict[str, list[str]] = {"": []}
    title = ""
    for line in lines:
        if re.fullmatch(r"(Args[\w ]*|Raises|Attributes):", line):
            title = line.rstrip(":")
        elif title and line and not line.startswith(" "):
            title = ""
        parts.setdefault(title, []).append(line)
    return Docstring("\n".join(parts.pop("")).strip(), {title: _explained(part[1:]) for title, part in parts.items()})


def _explained(lines: Iterable[str]) -> dict[str, str]:
    """The names that a section explains; several names may share a line."""
    whole = re.sub(r"\n +(?=\S)", " ", textwrap.dedent("\n".join(lines)))
    rows = re.findall(r"^\*{0,2}([\w, ]+): (.*)$", whole, re.MULTILINE)
    return {name.strip(): what for names, what in rows for name in names.split(",")}


def markdown(text: str) -> str:
    """A docstring's reStructuredText as Markdown. Code becomes a block that is not run: it needs a training loop."""
    text = re.sub(r":(?:meth|func):`~?(?:[\w.]*\.)?(\w+)`", r"`\1()`", text)
    text = re.sub(r":class:`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", text)
    text = re.sub(r" \(rule R\d\)", "", text.replace("``", "`"))
    return re.sub(r"^::\n\n((?: {4}.*\n?|\n(?= {4}))+)", _block, text, flags=re.MULTILINE)


def _block(match: re.Match[str]) -> str:
    return f"```text\n{textwrap.dedent(match[1]).strip()}\n```\n"


def row(*cells: str) -> str:
    return f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in cells)} |\n"


def _type(annotation: Any) -> str:
    if annotation is inspect.Parameter.empty:
        return ""
    name = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    name = name.replace(inspect.formatannotation(AttributeValue), "AttributeValue")  # another one in every version
    return f"`{re.sub(r'(?:collections.abc|pathlib|typing|metrics_api)[.]', '', name).replace(' | ', ' or ')}`"


def _default(parameter: inspect.Parameter) -> str:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        return ""
    return "required" if parameter.default is parameter.empty else f"`{parameter.default!r}`"


def signature(owner: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(owner)
    except (TypeError, ValueError):
        return None


def explained(owner: Any) -> dict[str, str]:
    """The meaning of each argument of `owner`, by its name."""
    of_phases = parsed(Phases.__doc__ or "").arguments()
    return {**of_phases, **parsed(owner.__doc__ or "").arguments()}


def arguments(owner: Any) -> str:
    """The table of the arguments of `owner`; empty if there are none."""
    taken, meanings = signature(owner), explained(owner)
    parameters = [] if taken is None else [one for one in taken.parameters.values() if one.name != "self"]
    if not parameters:
        return ""
    rows = [
        row(f"`{_stars(one)}{one.name}`", _type(one.annotation), _default(one), markdown(meanings.get(one.name, "")))
        for one in parameters
    ]
    return row("argument", "type", "default", "") + row(*["---"] * 4) + "".join(rows) + "\n"


def _stars(parameter: inspect.Parameter) -> str:
    return {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")


def entry(title: str, owner: Any, level: int = 3) -> str:
    """One function, method or class: its text, arguments, result and errors."""
    docstring, taken = parsed(owner.__doc__ or ""), signature(owner)
    text = f"{'#' * level} {title}\n\n{markdown(docstring.text)}\n\n"
    text += INSTEAD[owner] if owner in INSTEAD else arguments(owner)
    result = "" if taken is None or inspect.isclass(owner) else _type(taken.return_annotation)
    if result not in ("", "`None`", "`C`"):  # C: the argument itself
        text += f"Returns {result}.\n\n"
    if attributes := docstring.sections.get("Attributes"):
        text += row("attribute", "") + row("---", "---")
        text += "".join(row(f"`{name}`", markdown(what)) for name, what in attributes.items()) + "\n"
    for name, what in docstring.sections.get("Raises", {}).items():
        text += f"Raises `{name}`: {markdown(what)}\n\n"
    return text


def group(names: Sequence[str]) -> str:
    return "".join(entry(f"{name}()", getattr(otel_goodput, name)) for name in names)


def members(owner: Any) -> list[tuple[str, Any]]:
    """What `owner` itself defines for its users, in the order of its source."""
    return [(name, one) for name, one in vars(owner).items() if not name.startswith("_") and name not in SDK]


# What OpenTelemetry's SDK calls.
SDK = ("on_start", "on_end", "force_flush")


def classes() -> str:
    classes = {name: getattr(otel_goodput, name) for name in CLASSES}
    return "".join(entry(name, owner) + _methods(name, owner) for name, owner in classes.items())


def of_tests() -> str:
    """What `otel_goodput.testing` has."""
    text = ""
    for name in testing.__all__:
        one = getattr(testing, name)
        text += entry(name if inspect.isclass(one) else f"{name}()", one)
        text += "".join(_member(name, called, each) for called, each in members(one)) if inspect.isclass(one) else ""
    return text


def _methods(name: str, owner: Any) -> str:
    """The methods of `owner` and its properties, without those whose functions stand on the page."""
    functions, text = {*RECORDING, *PHASES, *FIGURES} if name == "Recorder" else set(), ""
    for called, one in members(owner):
        if called not in functions and (one.__doc__ if isinstance(one, property) else callable(one)):
            text += _member(name, called, one)
    if functions:
        text += (
            f"Every function above except `{'()`, `'.join(_only_functions())}()` is also a method of a recorder.\n\n"
        )
    return text


def _only_functions() -> list[str]:
    return [name for name in (*RECORDING, *PHASES, *FIGURES) if not hasattr(otel_goodput.Recorder, name)]


def _member(owner: str, name: str, one: Any) -> str:
    if isinstance(one, property):
        return f"#### {owner}.{name}\n\n{markdown(inspect.cleandoc(one.__doc__ or ''))}\n\n"
    return entry(f"{owner}.{name}()", one, 4)


def given() -> str:
    return "".join(_member(called, name, vars(owner)[name]) for called, owner, names in GIVEN for name in names)


def of_errors() -> str:
    rows = (row(f"`{name}`", *_error(getattr(errors, name))) for name in ERRORS)
    return row("error", "is also a", "") + row(*["---"] * 3) + "".join(rows)


def _error(one: type) -> tuple[str, str]:
    bases = ", ".join(
        f"`{base.__name__}`" for base in one.__mro__[1:] if base not in (Exception, BaseException, object)
    )
    return bases, markdown(parsed(one.__doc__ or "").text)


def unexplained() -> list[str]:
    """Arguments on the page that nothing is said of."""
    functions = [(name, getattr(otel_goodput, name)) for name in (*RECORDING, *PHASES, *FIGURES, *CLASSES[:2])]
    functions += [(name, getattr(testing, name)) for name in testing.__all__]
    functions += [(f"{name}.{called}", one) for name in CLASSES for called, one in members(getattr(otel_goodput, name))]
    return [
        f"{name}({argument})"
        for name, owner in functions
        if callable(owner) and (taken := signature(owner)) is not None
        for argument in taken.parameters
        if argument != "self" and argument not in OPTIONS and argument not in explained(owner)
    ]
