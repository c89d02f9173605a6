"""Objects of the account as plain values: a class names the fields that a snapshot stores once, in their order."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

S = TypeVar("S", bound="Stateful")

_OWN = frozenset({dict, list, set})  # what a clone must not share


class Stateful:
    """Something with slots that can be cloned, stored and restored field by field.

    Attributes:
        STORED: names of the fields that a snapshot holds, in its order. Dictionaries become lists of pairs and sets
            lists, since JSON has neither.
    """

    STORED: ClassVar[tuple[str, ...]]

    __slots__ = ()

    def clone(self: S) -> S:
        """Return a copy that shares no dictionary, list or set with this one."""
        twin = type(self).__new__(type(self))
        names: tuple[str, ...] = tuple(type(self).__slots__)
        for name in names:
            value = getattr(self, name)
            setattr(twin, name, value.copy() if value.__class__ in _OWN else value)
        return twin

    def to_state(self) -> list[Any]:
        """The stored fields."""
        return [_plain(getattr(self, name)) for name in self.STORED]

    def restore(self, state: list[Any]) -> None:
        """Take the stored fields; a value gets the type that the field has.

        Raises:
            ValueError: there are more or fewer fields.
            TypeError: a value is no list, although the field is a collection.
        """
        for name, value in zip(self.STORED, state, strict=True):
            setattr(self, name, _of_kind(type(getattr(self, name)), value))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return list(value.items())
    return sorted(value) if isinstance(value, (set, frozenset)) else value


def _of_kind(kind: type, value: Any) -> Any:
    if not issubclass(kind, (dict, list, set, frozenset, tuple)):
        return value
    # JSON made lists of the pairs.
    return kind(tuple(one) if isinstance(one, list) else one for one in value)
