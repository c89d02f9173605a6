"""One place opens files: nothing else in the package does, for what lies where a file should be may be anybody's."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .test_layers import FILES, imports, tree

# Names that open, make, move or remove, by what they are called on.
CALLS = {
    "": {"open"},
    "os": {
        "open", "fdopen", "mkdir", "makedirs", "unlink", "remove", "rmdir", "rename", "renames", "replace", "link",
        "symlink", "mkfifo", "mknod", "truncate", "chmod", "chown", "listdir", "scandir",
    },
    "io": {"open", "FileIO", "open_code"},
    "gzip": {"open", "GzipFile", "decompress"},
    "zlib": {"decompress"},
    "bz2": {"open", "decompress"},
    "lzma": {"open", "decompress"},
    "shutil": {"rmtree", "move", "copy", "copy2", "copyfile", "copyfileobj", "copytree", "chown"},
    "json": {"load"},
}  # fmt: skip
METHODS = {
    "read_text", "read_bytes", "write_text", "write_bytes", "mkdir", "unlink", "rmdir", "touch", "rename",
    "symlink_to", "hardlink_to", "link_to", "lchmod",
}  # fmt: skip
# Spans and exporters are opened too, and a library's opener is no file's.
NO_FILES = {
    ("_runtime.installation", "read_text"),  # of its own metadata, by Python's reader
    ("_recording.step_loop", "open"),
    ("_recording.fast_span", "open"),
    ("_recording.loading", "open"),
    ("_integrations.torch_data", "open"),
    ("_integrations.trainer_loop", "open"),
    ("_viewer.watch", "open"),
    ("exporters.registry", "open"),
    *((module, "open") for module in ("_tools.report", "_tools.export", "_viewer.page", "_viewer.watch")),  # sessions
}
MODULES = {"tempfile", "zipfile", "tarfile"}


def _calls(module: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name) and called.id in CALLS[""]:
                yield node.lineno, called.id
            elif isinstance(called, ast.Attribute):
                owner = called.value.id if isinstance(called.value, ast.Name) else "?"
                if (module, called.attr) in NO_FILES:
                    continue
                if called.attr in CALLS.get(owner, set()) or called.attr in METHODS:
                    yield node.lineno, f"{owner}.{called.attr}"
                elif called.attr == "open":
                    yield node.lineno, f"{owner}.open"
        elif isinstance(node, ast.ImportFrom) and node.module in CALLS:
            for alias in node.names:
                if alias.name in CALLS[node.module]:
                    yield node.lineno, f"{node.module}.{alias.name}"


def test_nothing_else_opens_files() -> None:
    others = [module for module in FILES if module != "_runtime.files"]
    calls = [f"{module}:{line}: {call}" for module in others for line, call in _calls(module)]
    calls += [f"{module}: {name}" for module in others for name in imports(module) if name.partition(".")[0] in MODULES]
    assert not calls, "it is otel_goodput._runtime.files that opens: " + ", ".join(calls)


def test_what_opens_is_seen() -> None:
    """The search finds what it looks for."""
    assert {"os.open", "os.mkdir", "os.unlink", "os.replace", "path.open"} <= {
        call for _, call in _calls("_runtime.files")
    }


def _trusting(module: str) -> Iterator[int]:
    """Lines where `make_folders` gets one folder twice: then it trusts whoever owns it, as if the user had named it."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("make_folders"):
            path, of = node.args[:2]
            if ast.dump(path) == ast.dump(of):
                yield node.lineno


def test_no_folder_vouches_for_itself() -> None:
    """A run's folder may be somebody else's: who makes it says which directory above it the user has named."""
    trusting = [f"{module}:{line}" for module in FILES for line in _trusting(module)]
    assert not trusting, "its owner is not checked: " + ", ".join(trusting)
