"""How the account is written, read again and copied: each class declares its fields once, with their kinds.

From that follow the plain form of an object (JSON, and raw bytes for what is large), how it is read again from a file
that anybody can have written, and what a copy must not share. What depends on several fields, `State.loaded` checks.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, ClassVar, Final, Generic, TypeAlias, TypeVar

from otel_goodput.semconv import PHASES

BLOCK: Final = 64

T = TypeVar("T")


class SharedList(Generic[T]):
    """A list that grows and shrinks at its end. Copies share its elements, which must be replaced, never changed."""

    __slots__ = ("_blocks", "_rest")

    def __init__(self, elements: Iterable[T] = ()) -> None:
        self._blocks: list[tuple[T, ...]] = []
        self._rest: list[T] = []  # fewer than two blocks, so that the newest elements are cheap to replace
        for element in elements:
            self.append(element)

    def copy(self) -> SharedList[T]:
        twin: SharedList[T] = SharedList.__new__(SharedList)
        twin._blocks, twin._rest = self._blocks.copy(), self._rest.copy()
        return twin

    def __len__(self) -> int:
        return len(self._blocks) * BLOCK + len(self._rest)

    def _within(self, at: int) -> tuple[int, int]:
        """Block and place in it; the blocks' number stands for the rest."""
        blocks = len(self._blocks)
        at += len(self) if at < 0 else 0
        return (at // BLOCK, at % BLOCK) if at < blocks * BLOCK else (blocks, at - blocks * BLOCK)

    def __getitem__(self, at: int) -> T:
        block, place = self._within(at)
        return self._blocks[block][place] if block < len(self._blocks) else self._rest[place]

    def __setitem__(self, at: int, element: T) -> None:
        block, place = self._within(at)
        if block == len(self._blocks):
            self._rest[place] = element
        else:
            held = self._blocks[block]
            self._blocks[block] = (*held[:place], element, *held[place + 1 :])

    def __iter__(self) -> Iterator[T]:
        return chain(chain.from_iterable(self._blocks), self._rest)

    def __reversed__(self) -> Iterator[T]:
        return chain(reversed(self._rest), chain.from_iterable(map(reversed, reversed(self._blocks))))

    def append(self, element: T) -> None:
        self._rest.append(element)
        if len(self._rest) == 2 * BLOCK:
            self._blocks.append(tuple(self._rest[:BLOCK]))
            del self._rest[:BLOCK]

    def pop(self) -> T:
        """Remove the last element and return it. Raises IndexError if there is none."""
        if not self._rest and self._blocks:
            self._rest = list(self._blocks.pop())
        return self._rest.pop()

    def since(self, at: int) -> SharedList[T]:
        """Return a list of the elements from `at` on."""
        return SharedList(islice(self, at, None))


FEW: Final = 256  # elements whose plain forms may be made at once
_FIELD: Final = 1 << 63  # numbers of the journal fit a signed field of 64 bits
_LONGEST: Final = 1 << 16  # characters of a text
_MOST: Final = 1 << 24  # elements of a collection that has no bound of its own


Blob: TypeAlias = "array[int] | bytes"


class Blobs:
    """Raw bytes beside the plain data: written in some order, and taken back in the same.

    With `later`, plain data may have lists that are made when they are read, see :class:`Later`.
    """

    def __init__(self, data: bytes = b"", *, later: bool = False) -> None:
        self.written: list[Blob] = []
        self.later = later
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes. Raises ValueError if there are not as many."""
        begin, self._at = self._at, self._at + size
        if not 0 <= size <= len(self._data) - begin:
            raise ValueError("the snapshot is cut short")
        return self._data[begin : self._at]

    def over(self) -> None:
        """Raise ValueError if there are more bytes than were taken."""
        if self._at != len(self._data):
            raise ValueError("the snapshot is longer than it says")


class Kind:
    """What a field may hold. By default that is written as it is, and a copy shares it."""

    shared = True  # whether `copy` returns the same object
    plain = True  # whether the plain form is the value itself, and nothing can change that

    def dump(self, value: Any, blobs: Blobs) -> Any:
        """Return the plain form of `value`, which stays as it is whatever becomes of the object."""
        return value

    def load(self, plain: Any, blobs: Blobs) -> Any:
        """Return the value of which `plain` is the plain form. Raises ValueError if it is of none."""
        [value] = self.load_all([plain], blobs)
        return value

    def load_all(self, plain: Sequence[Any], blobs: Blobs) -> Sequence[Any]:
        """The same for many of them at once, which is faster."""
        return [self.load(one, blobs) for one in plain]

    def copy(self, value: Any) -> Any:
        return value


class Whole(Kind):
    """An integer from `least` up to, not including, `below`; no bool."""

    def __init__(self, least: int = -_FIELD, below: int = _FIELD) -> None:
        self.least, self.below = least, below

    def load_all(self, plain: Sequence[Any], blobs: Blobs) -> Sequence[Any]:
        if plain and (set(map(type, plain)) != {int} or min(plain) < self.least or max(plain) >= self.below):
            raise ValueError(f"{plain!r:.40} instead of a whole number from {self.least} up to {self.below}")
        return plain


class Flag(Kind):
    """True or false."""

    def load_all(self, plain: Sequence[Any], blobs: Blobs) -> Sequence[Any]:
        if plain and set(map(type, plain)) != {bool}:
            raise ValueError(f"{plain!r:.40} instead of true or false")
        return plain


class Weight(Kind):
    """A share or a weighted time; JSON does not distinguish 1 and 1.0."""

    def load(self, plain: Any, blobs: Blobs) -> Any:
        if isinstance(plain, bool) or not isinstance(plain, (int, float)) or not 0 <= plain < _FIELD:
            raise ValueError(f"{plain!r:.40} instead of a number from 0 on")
        return plain


class Text(Kind):
    """A text, or one of some."""

    def __init__(self, *known: str) -> None:
        self.known = frozenset(known)

    def load_all(self, plain: Sequence[Any], blobs: Blobs) -> Sequence[Any]:
        if plain and (set(map(type, plain)) != {str} or max(map(len, plain)) > _LONGEST):
            raise ValueError(f"{plain!r:.40} instead of a text")
        if self.known and not self.known.issuperset(plain):
            raise ValueError(f"{plain!r:.40} instead of one of {', '.join(sorted(self.known))}")
        return plain


class Optional(Kind):
    """`inner`, or None."""

    def __init__(self, inner: Kind) -> None:
        self.inner, self.shared, self.plain = inner, inner.shared, inner.plain

    def dump(self, value: Any, blobs: Blobs) -> Any:
        return None if value is None else self.inner.dump(value, blobs)

    def load_all(self, plain: Sequence[Any], blobs: Blobs) -> Sequence[Any]:
        known = [one for one in plain if one is not None]
        loaded = self.inner.load_all(known, blobs)
        values = iter(loaded)
        return plain if loaded is known else [None if one is None else next(values) for one in plain]

    def copy(self, value: Any) -> Any:
        return None if value is None else self.inner.copy(value)


class Row(Kind):
    """A tuple with exactly these, or what `make` makes of it."""

    def __init__(self, *inner: Kind, make: Callable[[Iterable[Any]], Any] = tuple) -> None:
        self.inner, self._make = inner, make
        self.shared = make is not list
        self.plain = self.shared and all(one.plain for one in inner)

    def dump(self, value: Any, blobs: Blobs) -> Any:
        if self.plain:
            return value
        return [kind.dump(one, blobs) for kind, one in zip(self.inner, value, strict=True)]

    def load_all(self, plain: Sequence[Any], blobs: Blobs) -> Sequence[Any]:
        if not plain:
            return plain
        # A value that has not been through JSON has tuples.
        if not {list, tuple}.issuperset(map(type, plain)) or set(map(len, plain)) != {len(self.inner)}:
            raise ValueError(f"{plain!r:.40} instead of lists of {len(self.inner)}")
        columns = [kind.load_all(column, blobs) for kind, column in zip(self.inner, zip(*plain), strict=True)]  # noqa: B905
        return list(map(self._make, zip(*columns)))  # noqa: B905

    def copy(self, value: Any) -> Any:
        return value if self.shared else value.copy()


class Each(Kind):
    """At most `most` times `inner`, in a list or what `make` makes of one."""

    def __init__(self, inner: Kind, most: int = _MOST, make: Callable[[Iterable[Any]], Any] = list) -> None:
        self.inner, self._most, self._make = inner, most, make
        self.shared = make in (tuple, frozenset)
        self.plain = make is tuple and inner.plain

    def dump(self, value: Any, blobs: Blobs) -> Any:
        if self.plain:
            return value
        return list(value) if self.inner.plain else [self.inner.dump(one, blobs) for one in value]

    def load(self, plain: Any, blobs: Blobs) -> Any:
        if not isinstance(plain, (list, tuple)) or len(plain) > self._most:
            raise ValueError(f"{plain!r:.40} instead of a list of at most {self._most}")
        return self._make(self.inner.load_all(plain, blobs))

    def copy(self, value: Any) -> Any:
        if self.shared:
            return value
        return self._make(value if self.inner.shared else map(self.inner.copy, value))


class Shared(Each):
    """At most `most` times `inner` in a :class:`SharedList`, whose elements are replaced, never changed."""

    def __init__(self, inner: Kind, most: int = _MOST) -> None:
        super().__init__(inner, most, SharedList)

    def dump(self, value: Any, blobs: Blobs) -> Any:
        inner = self.inner
        if blobs.later and isinstance(inner, Pairs) and inner.lasting and len(value) > FEW:
            return Later(value.copy(), lambda one: inner.dump(one, blobs))
        return super().dump(value, blobs)

    def copy(self, value: Any) -> Any:
        return value.copy()


class Later(Sequence[Any]):
    """Plain forms that are made when they are read, because those of all elements at once take far more memory."""

    def __init__(self, elements: SharedList[Any], dump: Callable[[Any], Any]) -> None:
        self._elements, self._dump = elements, dump

    def __len__(self) -> int:
        return len(self._elements)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self._dump(self._elements[each]) for each in range(*at.indices(len(self)))]
        return self._dump(self._elements[at])


class Pairs(Each):
    """A dictionary of at most `most` elements, as a list of pairs; copies share it if it is `replaced`, not changed."""

    def __init__(self, key: Kind, inner: Kind, most: int = _MOST, *, replaced: bool = False) -> None:
        super().__init__(Row(key, inner), most)
        self._values, self.shared = inner, replaced
        self.lasting = replaced and inner.plain  # later, the plain form of a dictionary is the same, and has no blobs

    def dump(self, value: Any, blobs: Blobs) -> Any:
        return super().dump(value.items(), blobs)

    def load(self, plain: Any, blobs: Blobs) -> Any:
        pairs = dict(super().load(plain, blobs))
        if len(pairs) != len(plain):
            raise ValueError("one key several times")
        return pairs

    def copy(self, value: Any) -> Any:
        if self.shared or self._values.shared:
            return value if self.shared else value.copy()
        return {key: self._values.copy(one) for key, one in value.items()}


class Part(Kind):
    """An object of the class that `of` returns. Copies share it if it is `replaced`, never changed."""

    plain = False

    def __init__(self, of: Callable[[], type[State]], *, replaced: bool = False) -> None:
        self.of, self.shared = of, replaced

    def dump(self, value: Any, blobs: Blobs) -> Any:
        return value.to_plain(blobs)

    def load(self, plain: Any, blobs: Blobs) -> Any:
        return self.of().from_plain(plain, blobs)

    def copy(self, value: Any) -> Any:
        return value if self.shared else value.clone()


NUMBER: Final = Whole()
COUNT: Final = Whole(0)
KEY: Final = Whole(0, 1 << 64)
PHASE: Final = Whole(0, len(PHASES))
MASK: Final = Whole(0, 1 << 32)  # of windows
FLAG: Final = Flag()
TEXT: Final = Text()
BY_CATEGORY: Final = Pairs(COUNT, NUMBER)
PARTS: Final = Each(Row(NUMBER, COUNT), make=tuple)  # (place of a bucket, ns)


class _Field:
    def __init__(
        self, kind: Kind, default: Any, make: Callable[[], Any] | None, key: str | None, absent: Any = ...
    ) -> None:
        self.kind, self.default, self.make, self.key, self.absent = kind, default, make, key, absent


def field(
    kind: Kind,
    default: Any = None,
    *,
    make: Callable[[], Any] | None = None,
    key: str | None = None,
    absent: Any = ...,
) -> Any:
    """Declare a field of a :class:`State`, which at first holds `default`, or what `make` makes if that can change.

    `key` is its name in the plain form; by default that of the attribute. `absent`: the plain form of what older plain
    forms stand for that do not have it; by default they must have it.
    """
    return _Field(kind, default, make, key, absent)


S = TypeVar("S", bound="State")


class State:
    """An object that is stored: all its fields are declared with :func:`field`, and those of the classes it extends.

    :meth:`loaded` sets what follows from them.
    """

    _fields: ClassVar[dict[str, _Field]] = {}
    _defaults: ClassVar[dict[str, Any]] = {}
    _made: ClassVar[list[tuple[str, Callable[[], Any]]]] = []
    _copied: ClassVar[list[tuple[str, Callable[[Any], Any]]]] = []

    def __init_subclass__(cls) -> None:
        own = {name: value for name, value in vars(cls).items() if isinstance(value, _Field)}
        cls._fields = {**cls._fields, **own}
        for name, one in own.items():
            one.key = one.key or name.strip("_")
            setattr(cls, name, one.default)
        cls._defaults = {name: one.default for name, one in cls._fields.items() if one.make is None}
        cls._made = [(name, one.make) for name, one in cls._fields.items() if one.make is not None]
        cls._copied = [(name, one.kind.copy) for name, one in cls._fields.items() if not one.kind.shared]

    def __init__(self) -> None:
        self.__dict__.update(self._defaults)
        for name, make in self._made:
            self.__dict__[name] = make()

    def clone(self: S) -> S:
        """Return an independent copy: it shares only what never changes."""
        twin = object.__new__(type(self))
        held = twin.__dict__
        held.update(self.__dict__)
        for name, copy in self._copied:
            if name in held:
                held[name] = copy(held[name])
        return twin

    def to_plain(self, blobs: Blobs) -> dict[str, Any]:
        """Return the plain form. Nothing that happens to the object later changes it."""
        return {one.key or name: one.kind.dump(getattr(self, name), blobs) for name, one in self._fields.items()}

    @classmethod
    def from_plain(cls: type[S], plain: Any, blobs: Blobs) -> S:
        """Rebuild an object from its plain form, which anybody may have written.

        Raises:
            ValueError: it is not one of such an object, or contradicts itself.
        """
        if not isinstance(plain, dict):
            raise ValueError(f"{plain!r:.40} instead of an object")
        self = object.__new__(cls)
        for name, one in cls._fields.items():
            if one.key not in plain and one.absent is ...:
                raise ValueError(f"{one.key} is missing")
            try:
                self.__dict__[name] = one.kind.load(plain.get(one.key, one.absent), blobs)
            except ValueError as error:
                raise ValueError(f"{one.key}: {error}") from None
        self.loaded()
        return self

    def loaded(self) -> None:
        """Set what follows from the fields. Raises ValueError if they contradict each other."""
