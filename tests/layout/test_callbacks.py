"""Callbacks are given to a constructor or registered by a method: nobody assigns another object's."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

from .test_layers import FILES, tree


def _targets(node: ast.AST) -> Iterator[ast.Attribute]:
    """The attributes that a statement assigns."""
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    for target in targets if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) else ():
        for each in ast.walk(target) if target is not None else ():
            if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store):
                yield each
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setattr":
        owner, name, *_ = node.args
        if isinstance(name, ast.Constant):
            yield ast.Attribute(owner, name.value, lineno=node.lineno)


def _annotated(module: str) -> Iterator[tuple[str, ast.expr]]:
    """The names that a module annotates as attributes, in a class or on ``self``, with their annotations."""
    for owner in ast.walk(tree(module)):
        if not isinstance(owner, ast.ClassDef) or _frozen(owner):
            continue
        for node in owner.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield node.target.id, node.annotation
        for inner in ast.walk(owner):
            if isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Attribute):
                yield inner.target.attr, inner.annotation


def _frozen(owner: ast.ClassDef) -> bool:
    """Whether nothing can be assigned: the fields of such a class do not count."""
    decorators = " ".join(map(ast.unparse, owner.decorator_list))
    return "frozen=True" in decorators or any(ast.unparse(base) == "NamedTuple" for base in owner.bases)


@cache
def _aliases() -> frozenset[str]:
    """The names that stand for a type of callables, such as ``Work = Callable[[], None]``."""
    return frozenset(
        node.targets[0].id
        for module in FILES
        for node in tree(module).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        if isinstance(node.value, ast.Subscript) and ast.unparse(node.value.value) == "Callable"
    )


@cache
def slots() -> frozenset[str]:
    """The names of attributes that hold callables, or None."""
    kinds = {"Callable", *_aliases()}
    return frozenset(
        name
        for module in FILES
        for name, annotation in _annotated(module)
        if any(ast.unparse(part).partition("[")[0] in kinds for part in _alternatives(annotation))
    )


def _alternatives(annotation: ast.expr) -> Iterator[ast.expr]:
    """`annotation`, or the parts of ``A | B``."""
    if isinstance(annotation, ast.BinOp):
        yield from _alternatives(annotation.left)
        yield from _alternatives(annotation.right)
    else:
        yield annotation


def _assigned(module: str) -> Iterator[ast.Attribute]:
    for node in ast.walk(tree(module)):
        for target in _targets(node):
            if not (isinstance(target.value, ast.Name) and target.value.id in ("self", "cls")):
                yield target


def test_no_callback_is_assigned_from_outside() -> None:
    registrations = [
        f"{module}:{at.lineno}: {ast.unparse(at)}" for module in FILES for at in _assigned(module) if at.attr in slots()
    ]
    assert not registrations, "give it to the constructor, or register it by a method: " + ", ".join(registrations)


def test_what_is_assigned_is_seen() -> None:
    """The search finds what it looks for."""
    assert {"before_phase", "settle", "on_events"} <= slots()
    line = ast.parse("a.look, self.x = f, 1\nsetattr(a.b, 'steps', g)\na.b.c += 1")
    assert {target.attr for node in ast.walk(line) for target in _targets(node)} == {"look", "x", "steps", "c"}
