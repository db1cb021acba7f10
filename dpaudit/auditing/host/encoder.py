"""Turns releases into arrays of numbers, by a layout or a vocabulary learned only from the pilot's releases.

Releases that are numbers or arrays of one shape keep their types, including float64 and 64-bit integers. Any others
become a vector: how often each item of a vocabulary occurs in them, and their numbers by name. The vocabulary holds
the items and numbers that best distinguish the two worlds in the pilot, and some that are merely common. Arrays have
such a vector beside them where their types vary, or where they are long lists of whole numbers.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from dpaudit.auditing.host import chunks, kinds, places
from dpaudit.auditing.host.chunks import Stacked
from dpaudit.auditing.host.places import Place
from dpaudit.auditing.host.plain import plain
from dpaudit.auditing.host.reader import LEADING, Item, Read, Unreadable, read

TELLING, COMMON = 48, 16  # number of items, and of numbers, that are kept for each of the two reasons
WHOLE = {"f": (np.float32, np.float64), "i": (np.int32, np.int64), "u": (np.uint32, np.uint64), "b": (np.bool_,)}


class Leaf(NamedTuple):
    """An array in every release: its path, shape and type."""

    path: str
    shape: tuple[int, ...]
    kind: str


class Encoder(NamedTuple):
    """Turns releases into arrays.

    Attributes:
      layout: the arrays that every release consists of; None if releases are read by the vocabulary alone.
      items: of the vocabulary, each with its description.
      numbers: of the vocabulary, by name.
      own: how many numbers the user's function returns for a release; 0 without one.
      places: of the vocabulary, in texts and lists.
      zeros: which arrays of the layout hold negative zeros, whose sign is read beside them.
      unread: a part of the releases that is not read; empty if there is none.
    """

    layout: tuple[Leaf, ...] | None
    items: tuple[tuple[Item, str], ...] = ()
    numbers: tuple[str, ...] = ()
    own: int = 0
    places: tuple[Place, ...] = ()
    zeros: tuple[int, ...] = ()
    unread: str = ""

    def encode(self, releases: list[Any] | Stacked, features: Callable[[Any], Any] | None) -> list[np.ndarray]:
        """Returns the arrays [n, *shape] of n releases; a release of another form becomes missing numbers.

        Raises:
          Unreadable: a release that has no content to read.
        """
        found = [] if self.layout is None else _by_layout(self.layout, releases)
        found += [np.signbit(found[i]) & (found[i] == 0) for i in self.zeros]
        if self._vocabulary is not None:
            found.append(self._by_vocabulary(chunks.one_by_one(releases)))
        if features is not None:
            rows = [_own(features, release, self.own) for release in chunks.one_by_one(releases)]
            found.append(np.array(rows, np.float64).reshape(len(rows), self.own))
        return found

    @property
    def _vocabulary(self) -> int | None:
        """Returns the length of the vocabulary's vector, or None without one."""
        size = len(self.items) + len(self.numbers) + len(self.places)
        return size if size or self.layout is None else None

    @property
    def shapes(self) -> list[tuple[tuple[int, ...], np.dtype]]:
        """Returns shape and type of each array of a release."""
        layout = self.layout or ()
        found = [(leaf.shape, np.dtype(leaf.kind)) for leaf in layout]
        found += [(layout[i].shape, np.dtype(bool)) for i in self.zeros]
        if self._vocabulary is not None:
            found.append(((self._vocabulary,), np.dtype(np.float64)))
        return [*found, ((self.own,), np.dtype(np.float64))] if self.own else found

    @property
    def names(self) -> list[str]:
        """Names each number of :attr:`shapes`; a name is empty if the place suffices."""
        layout, found = self.layout or (), []
        for leaf in layout:
            found += [f"{leaf.path}{place}" if leaf.path else "" for place in _places_of(leaf)]
        for leaf in (layout[i] for i in self.zeros):
            found += [f"{leaf.path}{place} is -0.0".strip() for place in _places_of(leaf)]
        found += [*(words for _, words in self.items), *self.numbers, *map(places.name, self.places)]
        return [*found, *(f"own feature {i}" for i in range(self.own))]

    def _by_vocabulary(self, releases: list[Any]) -> np.ndarray:
        found = np.full((len(releases), self._vocabulary or 0), np.nan)
        typed = [relation == kinds.TYPE for (_, relation, _), _ in self.items]
        alone = all(typed) and not self.numbers and not self.places
        numbers = len(self.items) + len(self.numbers)
        for row, release in zip(found, releases, strict=True):
            seen = BLANK if alone else read(release)
            types = kinds.kinds(release) if any(typed) else seen.items
            pairs = zip(self.items, typed, strict=True)
            row[: len(self.items)] = [(types if of_type else seen.items).get(item, 0) for (item, _), of_type in pairs]
            row[len(self.items) : numbers] = [seen.numbers.get(name, np.nan) for name in self.numbers]
            row[numbers:] = [places.number(seen, place) for place in self.places]
        return found


BLANK = Read(Counter(), {}, None, {}, [])


def learn(worlds: tuple[list[Any], list[Any]], features: Callable[[Any], Any] | None) -> Encoder:
    """Learns an encoder from the pilot's releases of both worlds.

    Raises:
      Unreadable: a release that has no content to read.
      ValueError: features that are not numbers.
    """
    both = [*worlds[0], *worlds[1]]
    own = 0 if features is None else np.size(np.asarray(features(both[0]), np.float64))
    layout = _layout(both)
    if layout is None or _holds_long_list(both[0]):
        seen = [[read(release, in_words=True) for release in releases] for releases in worlds]
    else:
        seen = [[BLANK._replace(items=Counter(), words={}) for _ in releases] for releases in worlds]
    _add_kinds(worlds, seen)
    items = _items(seen)
    if layout is not None:
        return Encoder(layout, items, own=own, zeros=_negative_zeros(layout, both))
    values, sizes = _values(seen), [max(1, len(world)) for world in seen]
    found = Encoder(None, items, _numbers(values, sizes), own, places.chosen(seen, set(values)))
    if not any(found[1:5]):
        kind = type(both[0]).__name__
        raise Unreadable(f"expected a value that can be read, got a {kind} that repeats nothing and holds no numbers")
    return found._replace(unread=places.unread(seen))


def restored(told: dict[str, Any]) -> Encoder:
    """Restores an encoder from the JSON of :meth:`Encoder._asdict`."""
    layout = told["layout"]
    leaves = None if layout is None else tuple(Leaf(path, tuple(shape), kind) for path, shape, kind in layout)
    items = tuple(((path, relation, name), words) for (path, relation, name), words in told["items"])
    chosen = tuple((where, i) for where, i in told.get("places", ()))  # older files have none
    zeros, unread = tuple(told.get("zeros", ())), told.get("unread", "")
    return Encoder(leaves, items, tuple(told["numbers"]), told["own"], chosen, zeros, unread)


def _places_of(leaf: Leaf) -> list[str]:
    return [""] if not leaf.shape else [str(list(place)) for place in np.ndindex(*leaf.shape)]


def _add_kinds(worlds: tuple[list[Any], list[Any]], seen: list[list[Read]]) -> None:
    """Adds the types of the pilot's releases to what was read of them, if there are several."""
    found = [[kinds.kinds(release) for release in releases] for releases in worlds]
    every = [own for types in found for own in types]
    items = {item for own in every for item in own}
    at = Counter(path for path, _, _ in items)
    several = {item for item in items if at[item[0]] > 1 and len({own[item] for own in every}) > 1}
    for one, own in ((one, own) for pair in zip(seen, found, strict=True) for one, own in zip(*pair, strict=True)):
        for item in several & own.keys():
            one.items[item] = own[item]
            if one.words is not None:
                one.words[item] = kinds.words(item)


def _holds_long_list(release: Any) -> bool:
    """Tells whether a release holds a list of whole numbers that is longer than what is read place by place."""
    if isinstance(release, Mapping):
        return any(map(_holds_long_list, release.values()))
    if not isinstance(release, (list, tuple)):
        return False
    if len(release) > LEADING:
        return all(isinstance(one, (int, np.integer)) for one in release)
    return any(map(_holds_long_list, release))


def _negative_zeros(layout: tuple[Leaf, ...], releases: list[Any]) -> tuple[int, ...]:
    """Returns the numbers of the arrays that hold negative zeros."""
    arrays = _by_layout(layout, releases)
    return tuple(i for i, own in enumerate(arrays) if own.dtype.kind == "f" and (np.signbit(own) & (own == 0)).any())


def _own(features: Callable[[Any], Any], release: Any, size: int) -> np.ndarray:
    found = np.asarray(features(release), np.float64).reshape(-1)
    if len(found) != size:
        raise ValueError(f"features: expected {size} numbers of every release, got {len(found)}")
    return found


def _layout(releases: list[Any]) -> tuple[Leaf, ...] | None:
    """Returns the arrays that all releases consist of; None if their forms differ."""
    kinds: dict[tuple[str, tuple[int, ...]], set[np.dtype]] = defaultdict(set)
    first = None
    for release in releases:
        parts = _arrays(release)
        if parts is None:
            return None
        form = [(path, array.shape) for path, array in parts]
        first = form if first is None else first
        if form != first:
            return None
        for place, (_, array) in zip(form, parts, strict=True):
            kinds[place].add(array.dtype)
    found = []
    for path, shape in first or ():
        kind = np.result_type(*kinds[path, shape])
        lossy = kind.kind == "f" and any(one.kind in "iu" and one.itemsize == 8 for one in kinds[path, shape])
        if lossy and not any(one.kind == "f" for one in kinds[path, shape]):
            return None  # signed and unsigned 64-bit integers
        kind = np.dtype(np.float64) if kind.itemsize > 8 else kind
        found.append(Leaf(path, shape, kind.name))
    return tuple(found) or None


def _arrays(release: Any, path: str = "") -> list[tuple[str, np.ndarray]] | None:
    """Returns the arrays of numbers that a release consists of, in order; None if it holds anything else."""
    release = plain(release) if isinstance(release, np.ma.MaskedArray) else release
    if isinstance(release, Mapping):
        parts = [(f"{path}[{plain(name)!r}]", one) for name, one in release.items()]
    elif isinstance(release, (list, tuple)):
        if 1 < len(release) <= LEADING and all(isinstance(one, (bool, int, np.integer)) for one in release):
            return None  # as items and as numbers
        parts = [(f"{path}[{i}]", one) for i, one in enumerate(release)]
    else:
        if isinstance(release, int) and not -(1 << 63) <= release < 1 << 63:
            return None
        if not isinstance(release, (bool, int, float, complex, np.number, np.bool_)) and not hasattr(
            release, "__array__"
        ):
            return None
        if hasattr(release, "columns") or hasattr(release, "to_dict"):
            return None
        array = np.asarray(release)
        if array.dtype.kind == "c":
            return [(f"{path}.real", np.real(array)), (f"{path}.imag", np.imag(array))]
        return [(path, array)] if array.dtype.kind in "biuf" else None
    found = []
    for name, one in parts:
        arrays = _arrays(one, name)
        if arrays is None:
            return None
        found += arrays
    return found or None


def _by_layout(layout: tuple[Leaf, ...], releases: list[Any] | Stacked) -> list[np.ndarray]:
    if isinstance(releases, Stacked):
        found = _stacked(layout, releases.tree)
        if found is not None:
            return found
        releases = chunks.one_by_one(releases)
    if len(layout) == 1 and not layout[0].path:
        found = _fitting(layout[0], _quietly_stacked(releases), len(releases))
        if found is not None:
            return [found]
    elif layout[-1].path == f"[{len(layout) - 1}]" and all(map(_is_list, releases)):  # of numbers, or nothing fits
        whole = Leaf("", (len(layout),), layout[0].kind)
        found = _fitting(whole, _quietly_stacked(releases), len(releases))
        if found is not None and all(leaf == Leaf(leaf.path, (), whole.kind) for leaf in layout):
            return [np.ascontiguousarray(column) for column in found.T]
    blank = [_missing(leaf) for leaf in layout]
    rows = [_row(layout, release) or blank for release in releases]
    return [np.stack(column) for column in zip(*rows, strict=True)]


def _stacked(layout: tuple[Leaf, ...], tree: Any) -> list[np.ndarray] | None:
    """Returns the arrays of stacked releases without a loop over them; None if they have another form."""
    parts = _arrays(tree)
    if parts is None or [path for path, _ in parts] != [leaf.path for leaf in layout]:
        return None
    found = [_fitting(leaf, array, len(array)) for leaf, (_, array) in zip(layout, parts, strict=True)]
    return None if any(array is None for array in found) else [array for array in found if array is not None]


def _is_list(release: Any) -> bool:
    return isinstance(release, (list, tuple))


def _quietly_stacked(releases: list[Any]) -> np.ndarray | None:
    try:
        return np.array(releases)
    except (ValueError, TypeError, OverflowError):  # of several shapes
        return None


def _fitting(leaf: Leaf, array: np.ndarray | None, n: int) -> np.ndarray | None:
    """Returns an array of n releases in the type of the leaf; None if it does not fit."""
    if array is None or array.shape != (n, *leaf.shape) or array.dtype.kind not in "biuf":
        return None
    if array.dtype.kind == "f" and leaf.kind[0] != "f":
        return None
    if array.dtype.kind == "u" and leaf.kind[0] == "i" and array.dtype.itemsize == 8:
        return None
    return np.ascontiguousarray(array.astype(leaf.kind, copy=False))


def _row(layout: tuple[Leaf, ...], release: Any) -> list[np.ndarray] | None:
    parts = _arrays(release)
    if parts is None or [(path, array.shape) for path, array in parts] != [(leaf.path, leaf.shape) for leaf in layout]:
        return None
    found = [_fitting(leaf, array[None], 1) for leaf, (_, array) in zip(layout, parts, strict=True)]
    return None if any(array is None for array in found) else [array[0] for array in found if array is not None]


def _missing(leaf: Leaf) -> np.ndarray:
    kind = np.dtype(leaf.kind)
    value = np.nan if kind.kind == "f" else False if kind.kind == "b" else np.iinfo(kind).min
    return np.full(leaf.shape, value, kind)


def _items(seen: list[list[Read]]) -> tuple[tuple[Item, str], ...]:
    """Chooses the items of the vocabulary."""
    shares = [Counter(item for one in world for item in one.items) for world in seen]
    words = {item: text for world in seen for one in world for item, text in (one.words or {}).items()}
    sizes = [max(1, len(world)) for world in seen]

    def apart(item: Item) -> float:
        rates = [share[item] / size for share, size in zip(shares, sizes, strict=True)]
        middle = sum(rates) / 2
        return abs(rates[1] - rates[0]) / (middle * (1 - middle) + 1 / min(sizes)) ** 0.5

    def common(item: Item) -> float:
        return -abs(sum(share[item] / size for share, size in zip(shares, sizes, strict=True)) / 2 - 0.5)

    often = sorted(item for item in words if shares[0][item] + shares[1][item] > 1)
    return tuple((item, words[item]) for item in _kept(often, apart, common))


def _values(seen: list[list[Read]]) -> dict[str, tuple[list[float], list[float]]]:
    """Returns the numbers of both worlds' releases by name."""
    found: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for world, reads in enumerate(seen):
        for one in reads:
            for name, number in one.numbers.items():
                found[name][world].append(number)
    return found


def _numbers(values: dict[str, tuple[list[float], list[float]]], sizes: list[int]) -> tuple[str, ...]:
    """Chooses the numbers of the vocabulary, for releases of these numbers in both worlds."""

    def apart(name: str) -> float:
        own = [known[np.isfinite(known)] for known in map(np.array, values[name])]
        there = abs(len(own[0]) / sizes[0] - len(own[1]) / sizes[1])
        if min(map(len, own)) < 2:
            return there
        ranks = np.argsort(np.argsort(np.concatenate(own), kind="stable")) / sum(map(len, own))  # of any scale
        one, other = ranks[: len(own[0])], ranks[len(own[0]) :]
        tails = [np.abs(part - 0.5).mean() for part in (one, other)]
        return there + abs(other.mean() - one.mean()) + abs(tails[1] - tails[0])

    def common(name: str) -> float:
        return float(sum(map(len, values[name])))

    return tuple(_kept(sorted(values), apart, common))


def _kept(names: list[Any], apart: Callable[[Any], float], common: Callable[[Any], float]) -> Iterable[Any]:
    """Returns the names that best distinguish the worlds, then those that are common."""
    telling = sorted(names, key=apart, reverse=True)[:TELLING]
    rest = sorted(set(names) - set(telling))
    return [*telling, *sorted(rest, key=common, reverse=True)[:COMMON]]
