"""Run a Python program in this process exactly as the interpreter would.

The program becomes ``__main__``: what it pickles, and what spawned processes import, is its own module. Errors pass
through unchanged; of their tracebacks, the frames of this package are not shown.
"""

from __future__ import annotations

import pkgutil
import runpy
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any, Final

from otel_goodput._runtime import files

UNREADABLE: Final = 2  # exit status of the interpreter if there is no such program
PACKAGE: Final = str(Path(__file__).parents[1])
COMPILED: Final = ".pyc"


class MainModule:
    """A program: a script, a folder or zip file with a ``__main__.py``, or a module.

    Args:
        program: the path, or the name of the module.
        arguments: of the program.
        module: whether it is the name of a module.
    """

    def __init__(self, program: str, arguments: Sequence[str], *, module: bool) -> None:
        self._program, self._arguments, self._module = program, arguments, module

    @property
    def name(self) -> str:
        """A name for it: that of the file or the module, without its place."""
        if self._module:
            return self._program.removesuffix(".__main__").rpartition(".")[2]
        return Path(self._program).stem

    def run(self, before: Callable[[], object], after: Callable[[BaseException | None], object]) -> None:
        """Call `before`, run the program, and call `after` with what it raised. What it raises is raised.

        If there is no such program, or it is no Python, neither of them is called.
        """
        try:
            runs = self._prepared()
            before()
            try:
                runs()
            except BaseException as error:
                after(error)
                raise
            after(None)
        except BaseException:
            _hide_our_frames()
            raise

    def _prepared(self) -> Callable[[], object]:
        """Return what runs the program, whose arguments and path are in place."""
        if self._module:
            _become("-m", self._arguments, str(Path.cwd()))
            if find_spec(self._program.partition(".")[0]) is None:
                self._run_module()  # ends with the interpreter's message
            return self._run_module
        path = self._program if Path(self._program).is_absolute() else f"{Path.cwd()}/{self._program}"
        if pkgutil.get_importer(path) is not None:
            _become(self._program, self._arguments, path, safe=False)
            return self._run_folder
        code = self._compiled(path)
        _become(self._program, self._arguments, str(Path(path).resolve().parent))
        return lambda: self._run_script(path, code)

    def _compiled(self, path: str) -> CodeType:
        try:
            with files.open_given(Path(path)) as file:
                source = file.read()
        except OSError as error:
            what = f"{sys.orig_argv[0]}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}"
            print(what, file=sys.stderr)
            sys.exit(UNREADABLE)
        if path.endswith(COMPILED):
            return SourcelessFileLoader("__main__", path).get_code("__main__")  # type: ignore[return-value]
        return compile(source, path, "exec", dont_inherit=True)

    def _run_script(self, path: str, code: CodeType) -> None:
        loader = (SourcelessFileLoader if path.endswith(COMPILED) else SourceFileLoader)("__main__", path)
        main = _new_main(__file__=path, __loader__=loader, __cached__=None)
        exec(code, vars(main))

    def _run_module(self) -> None:
        _new_main()
        runpy._run_module_as_main(self._program)  # type: ignore[attr-defined]  # what the interpreter calls

    def _run_folder(self) -> None:
        _new_main()
        runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]


def _become(shown: str, arguments: Sequence[str], folder: str, *, safe: bool = True) -> None:
    """Set ``sys.argv``, and the first entry of ``sys.path``: what is there is that of the command."""
    sys.argv[:] = [shown, *arguments]
    if not (safe and getattr(sys.flags, "safe_path", False)):
        if getattr(sys.flags, "safe_path", False):
            sys.path.insert(0, folder)
        else:
            sys.path[0] = folder


def _new_main(**members: Any) -> ModuleType:
    main = ModuleType("__main__")
    vars(main).update(__builtins__=sys.modules["builtins"], **members)
    if sys.version_info < (3, 14):
        main.__annotations__ = {}
    sys.modules["__main__"] = main
    return main


def _hide_our_frames() -> None:
    """Have the error that ends the program shown as the interpreter shows it, whatever shows errors."""
    show = sys.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        sys.excepthook = show
        inner = _inner(traceback)
        sys.last_traceback = inner
        show(kind, error.with_traceback(inner), inner)

    sys.excepthook = excepthook


def _inner(traceback: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback that is the program's: not what runs it, nor our handler of signals in it."""
    first, last, at = traceback, None, traceback
    while at is not None:
        file = at.tb_frame.f_code.co_filename
        if file == __file__:
            first = at.tb_next
        if not file.startswith(PACKAGE):
            last = at
        at = at.tb_next
    if first is not None and last is not None:
        last.tb_next = None
    return first
