"""The `tensorboard` exporter: the figures of a run as TensorBoard's scalars, over the highest step that is kept.

TensorBoard's ``EventFileWriter`` is not used: where TensorFlow is installed it imports that into the job, and its
thread ends at the first error, with what it held.
"""

from __future__ import annotations

import io
import math
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData, NumberDataPoint

from otel_goodput import semconv
from otel_goodput._journal.mirror import open_filesystem
from otel_goodput._runtime import files
from otel_goodput._runtime.guard import report_once
from otel_goodput._runtime.installation import install_command
from otel_goodput._settings.envvars import OTEL_GOODPUT_TENSORBOARD_DIR
from otel_goodput._text.durations import NS
from otel_goodput._text.redact import encodable, without_credentials
from otel_goodput.errors import JournalError
from otel_goodput.exporters import spec
from otel_goodput.exporters.fitting import own_metrics
from otel_goodput.semconv import Metric

# An object in a bucket cannot be appended to: a file is uploaded whole each time, so another one is begun at this size.
# TensorBoard reads the files of a folder one after the other.
LARGEST: Final = 1 << 20
# Bytes that are kept while they cannot be written: about a week of the figures of a run.
MOST_KEPT: Final = 16 << 20

OURS: Final = ".goodput"  # what the name of a file of ours ends with

_number = count()


class ScalarWriter:
    """Writes scalars to an event file of its own in `directory`, a path or fsspec URL, which is made. Thread-safe.

    It has no thread. `lost` counts the values that were given up, because they could not be written for too long. With
    `shared`, others may read the files, as far as the umask allows, as those of TensorBoard's own writers. `of` is the
    directory that the user named, above a path (by default the path): what is below it is used only if its owner is
    trusted, and the last part of a path may not be a link.

    Raises ExporterUnavailable if a package is missing, OSError if the folder cannot be written to.
    """

    def __init__(self, directory: str, *, shared: bool = False, of: Path | None = None) -> None:
        self._event, self._summary, self._writer, self._start = _tensorboard()
        self._lock = threading.Lock()
        self._kept: deque[bytes] = deque()
        self._bytes = 0  # of what is kept
        self.lost = 0
        self._step: int | None = None  # of the latest value
        bucket = "://" in directory
        self._place = _Bucket(directory, self._head) if bucket else _Folder(directory, self._head, shared, of)

    @property
    def unwritten(self) -> int:
        """How many values wait to be written."""
        return len(self._kept)

    def write(self, tag: str, value: float, step: int, wall_time: float) -> None:
        """Take a value, which :meth:`flush` writes; `wall_time` is in seconds since the epoch."""
        record = self._record(wall_time=wall_time, step=step, summary=self._summary(encodable(tag), value))
        if (self._step is None or step < self._step) and self._alone():
            # The steps from here on are done again: TensorBoard drops the values that it has of them. It would drop
            # those of other writers too.
            record = self._record(wall_time=time.time(), step=step, session_log=self._start) + record
        self._step = step
        with self._lock:
            self._kept.append(record)
            self._bytes += len(record)
            while self._bytes > MOST_KEPT:
                self._bytes -= len(self._kept.popleft())
                self.lost += 1

    def flush(self) -> None:
        """Write what it was given. Raises OSError if that is not possible; it is kept for the next time."""
        with self._lock:
            if self._kept:
                self._place.append(b"".join(self._kept))
                self._kept.clear()
                self._bytes = 0

    def close(self) -> None:
        """Flush, and close the file. Raises OSError if what is left could not be written."""
        try:
            self.flush()
        finally:
            self._place.close()

    def _alone(self) -> bool:
        """Whether it is known that no other writer has event files here."""
        try:
            return all(name.endswith(OURS) for name in self._place.names() if "tfevents" in name)
        except FileNotFoundError:
            return True
        except Exception:  # each fsspec filesystem raises its own errors
            return False

    def _head(self) -> bytes:
        return self._record(wall_time=time.time(), file_version="brain.Event:2")

    def _record(self, **event: Any) -> bytes:
        stream = io.BytesIO()
        self._writer(stream).write(self._event(**event).SerializeToString())
        return stream.getvalue()


def _tensorboard() -> tuple[Any, Any, Any, Any]:
    """Return what encodes events, scalars and records, and the event of a session's start."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.plugins.scalar.summary_v2 import scalar_pb
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError as error:
        raise spec.ExporterUnavailable("tensorboard", str(error), install_command("tensorboard")) from error
    return Event, scalar_pb, RecordWriter, SessionLog(status=SessionLog.START)


def _name() -> str:
    """The name of a new file: TensorBoard looks for ``tfevents``, and reads in the order of the names."""
    now = int(time.time())
    return f"events.out.tfevents.{now:010d}.{socket.gethostname()}.{os.getpid()}.{next(_number):06d}{OURS}"


class _Folder:
    def __init__(self, directory: str, head: Callable[[], bytes], shared: bool, of: Path | None) -> None:
        place = Path(directory)
        self._path = files.named(place.parent) / place.name
        self._of = self._path if of is None else of
        self._head = head
        self._shared = shared
        self._fd: int | None = self._begin()

    def append(self, data: bytes) -> None:
        """Append the whole of `data`, or nothing. Raises OSError."""
        try:
            # A file without links has been deleted while open: what is written to it would be lost.
            if self._fd is None or os.fstat(self._fd).st_nlink == 0:
                self.close()
                self._fd = self._begin()
            files.append_whole(self._fd, data)
        except OSError as error:
            self.close()  # another file may do better, such as after a mount has come back
            raise OSError(error.errno, error.strerror, str(self._path)) from error

    def names(self) -> Iterable[str]:
        return files.names(self._path)

    def _begin(self) -> int:
        files.make_folders(self._path, self._of, shared=self._shared)
        path = self._path / _name()
        fd = files.descriptor(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, shared=self._shared)
        try:
            files.append_whole(fd, self._head())
        except BaseException:
            os.close(fd)
            with suppress(OSError):  # each try on a full disk would leave an empty file
                files.remove(path)
            raise
        return fd

    def close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


class _Bucket:
    """A file at a URL, uploaded whole each time."""

    def __init__(self, url: str, head: Callable[[], bytes]) -> None:
        self._url = without_credentials(url)
        try:
            self._filesystem, self._path = open_filesystem(url, "log directory")
        except JournalError as error:
            raise spec.ExporterUnavailable("tensorboard", str(error)) from error
        except Exception as error:  # some connect already here
            raise self._failed(error) from error
        self._head = head
        self._name = ""
        self._there = b""  # what the file holds

    def append(self, data: bytes) -> None:
        name, there = self._name, self._there
        if not there or len(there) >= LARGEST:
            name, there = _name(), self._head()
        whole = there + data
        try:
            self._filesystem.makedirs(self._path, exist_ok=True)
            self._filesystem.pipe_file(f"{self._path}/{name}", whole)
        except Exception as error:  # each fsspec filesystem raises its own errors
            raise self._failed(error) from error
        self._name, self._there = name, whole

    def names(self) -> Iterable[str]:
        """Return the names of what is there. Raises what it likes if they are not known."""
        return map(str, self._filesystem.ls(self._path, detail=False))

    def close(self) -> None:
        """Do nothing: what was appended is there."""

    def _failed(self, error: Exception) -> OSError:
        return OSError(f"{self._url}: {type(error).__name__}: {without_credentials(str(error))}")


FOLDER: Final = "tensorboard"  # in the run's folder

Attributes = Mapping[str, Any]


def _window(group: str, attributes: Attributes) -> str:
    """Return the group of a window's figures: that of the run has the plain name."""
    window = attributes.get(semconv.GOODPUT_WINDOW, semconv.WINDOW_RUN)
    return group if window == semconv.WINDOW_RUN else f"{group}_{window}"


def _category(attributes: Attributes) -> str:
    name = attributes.get(semconv.GOODPUT_CUSTOM_NAME)
    category = str(attributes[semconv.GOODPUT_CATEGORY])
    return f"{category}/{name}" if name else category


# What a figure of a metric is called, from its attributes. Units are in the name: TensorBoard knows none.
TAGS: Final[Mapping[Metric, Callable[[Attributes], str]]] = {
    semconv.RATIO: lambda a: f"{_window('goodput', a)}/ratio",
    semconv.BADPUT_RATIO: lambda a: f"{_window('badput', a)}/{_category(a)}",
    semconv.TIME: lambda a: f"seconds/{_category(a)}",
    semconv.STEP_COUNT: lambda a: f"steps/{a[semconv.GOODPUT_STEP_STATE]}",
    semconv.STEP_IDEAL: lambda _: "step_time/ideal_s",
    semconv.STEP_DEVIATION: lambda _: "step_time/deviation_s",
    semconv.AT_RISK: lambda _: "checkpoint/at_risk_s",
    semconv.STRAGGLER: lambda _: "processes/straggler_ratio",
    semconv.RANK_WAIT: lambda a: f"rank_waits/{a[semconv.GOODPUT_RANK]}/{a[semconv.GOODPUT_CATEGORY]}_s",
    semconv.RANK_OWN: lambda a: f"rank_own_time/{a[semconv.GOODPUT_RANK]}_s",
    semconv.DISRUPTIONS: lambda a: f"disruptions/{a[semconv.GOODPUT_DISRUPTION_REASON]}",
    semconv.FIRST_STEP: lambda _: "disruptions/first_step_s",
    semconv.REGAINED: lambda _: "disruptions/regained_s",
    semconv.SLICE_EFFICIENCY: lambda a: f"slices/{a[semconv.GOODPUT_SLICE_STATE]}",
    semconv.SCHEDULING_RATIO: lambda _: "goodput/scheduling",
    semconv.PROGRAM_RATIO: lambda _: "goodput/program",
    semconv.PRODUCTIVITY: lambda _: "goodput/productivity",
    semconv.QUEUE_DEPTH: lambda _: "loading/queue_depth",
}
MEAN_STEP_TIME: Final = "step_time/mean_s"  # of the steps since the export before
_BY_NAME: Final = {metric.name: tag for metric, tag in TAGS.items()}


class TensorBoardExporter(MetricExporter):
    """Writes scalars. What was always 0 is not drawn: that a reason or a category exists is no news."""

    def __init__(self, directory: str, *, shared: bool = False, of: Path | None = None) -> None:
        super().__init__()
        self._directory = directory
        self._open = partial(ScalarWriter, directory, shared=shared, of=of)
        self._writer: ScalarWriter | None = None
        self._lost = 0
        self._drawn: set[str] = set()
        self._counted = 0, 0.0  # steps, and their seconds, that the histogram had at the latest export

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: object) -> MetricExportResult:
        metrics = list(own_metrics(metrics_data))
        points = [
            (metric.name, point)
            for metric in metrics
            for point in metric.data.data_points
            if isinstance(point, NumberDataPoint)
        ]
        if not points:
            return MetricExportResult.SUCCESS
        step = max((int(point.value) for name, point in points if name == semconv.STEP_MAX.name), default=0)
        try:
            self._writer = self._writer or self._open()
            for tag, value, wall_time in self._scalars(points, metrics):
                self._writer.write(tag, value, step, wall_time)
            self._writer.flush()
        except (OSError, spec.ExporterUnavailable) as error:
            if self._writer is None:
                self._lost += len(points)
            self._report(error)
            return MetricExportResult.FAILURE
        return MetricExportResult.SUCCESS

    @property
    def dropped(self) -> int:
        """Number of figures that were given up; those that wait for the folder to be writable again are not."""
        return self._lost + (self._writer.lost if self._writer is not None else 0)

    def _report(self, error: Exception) -> None:
        text = "exporter tensorboard cannot write its scalars, will keep trying: %s"
        report_once(f"tensorboard {self._directory}", text, error)

    def _scalars(
        self, points: list[tuple[str, NumberDataPoint]], metrics: list[Any]
    ) -> Iterator[tuple[str, float, float]]:
        """Yield tag, value, and seconds since the epoch."""
        for name, point in points:
            if name not in _BY_NAME or not math.isfinite(point.value):
                continue
            tag = _BY_NAME[name](point.attributes or {})
            if point.value or tag in self._drawn:
                self._drawn.add(tag)
                yield tag, float(point.value), point.time_unix_nano / NS
        timed = [
            each for metric in metrics if metric.name == semconv.STEP_DURATION.name for each in metric.data.data_points
        ]
        count, total = sum(each.count for each in timed), sum(each.sum for each in timed)
        before, seconds = self._counted
        if count > before:
            self._counted = count, total
            yield MEAN_STEP_TIME, (total - seconds) / (count - before), points[0][1].time_unix_nano / NS

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: object) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            return
        try:
            writer.close()
        except OSError as error:
            self._report(error)
        self._lost += writer.lost + writer.unwritten


def _named(environ: Mapping[str, str]) -> str:
    return environ.get(OTEL_GOODPUT_TENSORBOARD_DIR.name, "").strip()


def _directory_of(context: spec.ExporterContext) -> str:
    """Where scalars go: what the variable says, else into the run's folder; empty if neither is known."""
    folder = context.directory
    return _named(context.environ) or (str(folder / FOLDER) if folder else "")


def open_tensorboard(context: spec.ExporterContext) -> spec.Exporters:
    """Open the exporter; the first export creates a file. Raises ExporterUnavailable if no directory is known."""
    directory = _directory_of(context)
    if not directory:
        hint = f"set {OTEL_GOODPUT_TENSORBOARD_DIR.name} to a path or URL"
        raise spec.ExporterUnavailable("tensorboard", "no directory is known", hint)
    chosen = bool(_named(context.environ))
    if chosen and "://" not in directory:
        directory = str(files.named(directory))  # what the user names may be a link
    # The run's folder is closed to others. A folder of the user's own is often read by another user's TensorBoard.
    of = None if chosen or context.directory is None else context.directory.parent
    return spec.Exporters("tensorboard", None, TensorBoardExporter(directory, shared=chosen, of=of))


def describe(context: spec.ExporterContext) -> list[spec.Destination]:
    return [spec.Destination(spec.METRICS, _directory_of(context) or "nowhere")]


def auto(situation: spec.Situation) -> str:
    return f"{OTEL_GOODPUT_TENSORBOARD_DIR.name} names a directory" if _named(situation.environ) else ""


TENSORBOARD: Final = spec.ExporterSpec(
    "tensorboard",
    "TensorBoard scalars, in the run's folder or in `OTEL_GOODPUT_TENSORBOARD_DIR`",
    open_tensorboard,
    describe,
    (spec.METRICS,),
    extra="tensorboard",
    packages=lambda _: ("tensorboard",),
    auto=auto,
    number=38,
)
