"""Reads any Python value as counted items and named numbers, and computes its token, a hash of 16 letters.

Equal values have equal tokens in every process; the order of sets is ignored, that of dictionaries and lists is not.
"""

import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from functools import reduce
from hashlib import blake2b
from itertools import pairwise
from operator import xor
from typing import Any, NamedTuple

import numpy as np

from dpaudit.auditing.host.plain import plain

LEADING, LAST = 48, 4  # numbers at the start and end of a sequence that are read one by one
PLACES, SERIES = 4096, 256  # most places of one text or list, and most texts and lists, that are looked at
CHARACTERS, WORDS = 4096, 1024  # most parts of a text that are counted
DEEPEST = 6
DEEPER = f"what is nested more than {DEEPEST} deep"
EXACT, LOW = 1 << 53, 24  # integers that float64 represents exactly; low bits read of larger ones
NORM_STEPS = 1 << 15  # from 0 to a power of two
RESIDUE = 24  # modulus of integers, as in :mod:`dpaudit.auditing.attacks.features`
SIMPLE = (str, int, bool, type(None), bytes)
NUMBERS = (int, float, np.number, Decimal, Fraction)
OPEN = (*NUMBERS, complex, type(None), bytearray, np.ndarray, set, frozenset, Mapping, Sequence)
ALONE = {bool, int, float}  # types of numbers that are read as they are
MOST_KNOWN = 1 << 16

Item = tuple[str, str, str]  # path, relation and token
_known: dict[tuple[type, Any], str] = {}


class Unreadable(ValueError):
    """Raised for a value without readable content, such as an iterator."""


class Read(NamedTuple):
    """The items and numbers read from a value.

    Attributes:
      items: how often it contains each item: ``(where, relation, token)``.
      numbers: by name; each may be missing in other values.
      words: a description of each item, for tables; None if not asked for.
      places: texts, bytes, lists and digits, of which :mod:`places` reads what stands where.
      unread: the parts of the value that are not read.
    """

    items: Counter[Item]
    numbers: dict[str, float]
    words: dict[Item, str] | None
    places: dict[str, Sequence[Any]]
    unread: list[str]


def token(value: Any) -> str:
    """Returns a hash of type and value, which two different values share with probability 2^-64.

    Raises:
      Unreadable: an iterator, a function and the like.
    """
    if type(value) in SIMPLE:
        key = (type(value), value)
        found = _known.get(key)
        if found is None:
            if len(_known) >= MOST_KNOWN:
                _known.clear()
            found = _known[key] = blake2b(_spelled(value), digest_size=8).hexdigest()
        return found
    return blake2b(_spelled(value), digest_size=8).hexdigest()


def _spelled(value: Any) -> bytes:
    """Returns bytes that determine the value."""
    value = plain(value)
    if value is None or isinstance(value, (bool, int, Decimal, Fraction, complex)):
        return f"{type(value).__name__} {value}".encode()
    if isinstance(value, float):
        return f"float {value.hex()}".encode()
    if isinstance(value, (str, bytes, bytearray)):
        text = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else bytes(value)
        return type(value).__name__.encode() + b" " + text
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "OV":
            return f"array {value.dtype} {value.shape} ".encode() + np.ascontiguousarray(value).tobytes()
        value = value.tolist()
    if isinstance(value, (set, frozenset)):
        return b"set" + b"".join(sorted(token(one).encode() for one in value))
    if isinstance(value, Mapping):
        return b"dict" + b"".join(token(name).encode() + token(one).encode() for name, one in value.items())
    if isinstance(value, Sequence):
        kind = b"list" if isinstance(value, list) else b"tuple"
        return kind + b"".join(token(one).encode() for one in value)
    with suppress(Exception):
        if not callable(value) and not hasattr(value, "__next__"):
            return type(value).__name__.encode() + pickle.dumps(value)
    kind = f"class, {value.__name__}" if isinstance(value, type) else type(value).__name__
    raise Unreadable(f"expected a value that can be read, got a {kind}")


def read(value: Any, *, in_words: bool = False) -> Read:
    """Reads a value, with descriptions of its items if asked for.

    Raises:
      Unreadable: an iterator, a function and the like.
    """
    found = Read(Counter(), {}, {} if in_words else None, {}, [])
    _note(found, "", "the whole is", value)
    _read(found, plain(value), "", DEEPEST)
    return found


def _note(found: Read, path: str, relation: str, value: Any, times: int = 1) -> None:
    item = (path, relation, token(value))
    if found.words is not None and item not in found.words:
        found.words[item] = f"{path} {relation} {_short(value)}".strip()
    found.items[item] += times


def _short(value: Any) -> str:
    text = _in_words(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _in_words(value: Any) -> str:
    """Returns a value as text, with sets in an order that does not depend on the process."""
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(map(_in_words, value))) + "}"
    if type(value) in (list, tuple):
        return "({})".format(", ".join(map(_in_words, value)))
    with suppress(Exception):
        return repr(value.item() if isinstance(value, np.generic) else value)
    return type(value).__name__


def _read(found: Read, value: Any, path: str, depth: int) -> None:
    """Adds the items and numbers of a nested value."""
    if path:
        _note(found, path, "is", value)
    if isinstance(value, (bool, int, float, Decimal, Fraction, complex)):
        _number(found, value, path)
    elif isinstance(value, (str, bytes, bytearray)):
        _text(found, value, path)
    elif value is None:
        return
    elif depth == 0:
        found.unread.append(DEEPER)
    elif isinstance(value, np.ndarray):
        _array(found, value, path, depth)
    elif isinstance(value, (set, frozenset)):
        found.numbers[f"{path} size".strip()] = len(value)
        own = [plain(one) for one in sorted(value, key=token)]  # an order that does not depend on the process
        _members(found, value, path)
        _summary(found, own, path, ordered=False)
        _tell_closed(found, own)
    elif isinstance(value, Mapping):
        _mapping(found, value, path, depth)
    elif isinstance(value, Sequence):
        _sequence(found, value, path, depth)
    else:
        _tell_closed(found, [value])


def _tell_closed(found: Read, values: Iterable[Any]) -> None:
    """Notes objects among plain values that are read as a whole or not at all."""
    closed = [kind.__name__ for kind in set(map(type, values)) if not issubclass(kind, OPEN)]
    found.unread.extend(f"the content of the type {name}" for name in sorted(closed))


def _number(found: Read, value: Any, path: str) -> None:
    name = path or "the number"
    if isinstance(value, complex):
        found.numbers[f"{name}, real part"], found.numbers[f"{name}, imaginary part"] = value.real, value.imag
        return
    found.numbers[name] = as_float(value)
    if isinstance(value, Fraction):
        _number(found, value.numerator, f"{name}, numerator")
        _number(found, value.denominator, f"{name}, denominator")
    elif isinstance(value, Decimal):
        exponent = value.as_tuple().exponent
        found.numbers[f"{name}, exponent"] = float(exponent) if isinstance(exponent, int) else np.nan
        found.numbers[f"{name}, last digit"] = value.as_tuple().digits[-1] if value.is_finite() else np.nan
        found.places[f"{name}, digit from the end "] = value.as_tuple().digits[::-1]
    elif isinstance(value, int) and abs(value) > RESIDUE:
        found.numbers[f"{name} modulo {RESIDUE}"] = value % RESIDUE
        if abs(value) > EXACT:
            found.numbers[f"{name}, last {LOW} bits"] = value % (1 << LOW)
            found.numbers[f"{name}, length in bits"] = value.bit_length()
            found.places[f"{name}, bit "] = f"{abs(value):b}"[::-1]


def as_float(value: Any) -> float:
    """Returns a number in float64, infinite if it is too large."""
    try:
        return float(value)
    except OverflowError:
        return np.inf if value > 0 else -np.inf
    except ValueError:
        return np.nan


def _text(found: Read, value: Any, path: str) -> None:
    found.numbers[f"{path} length".strip()] = len(value)
    if not len(value):
        return
    _places(found, value, path)
    few = value[:CHARACTERS]
    for character, times in Counter(few).items():
        _note(found, path, "holds the character" if isinstance(value, str) else "holds the byte", character, times)
    _note(found, path, "begins with", value[:1])
    _note(found, path, "ends with", value[-1:])
    if isinstance(value, str):
        for word, times in Counter(_words(value)).items():
            _note(found, path, "holds the word", word, times)
        with suppress(ValueError):
            found.numbers[f"{path} as a number".strip()] = float(value)
    else:
        for i, byte in enumerate(value[:8]):
            found.numbers[f"{path} byte {i}".strip()] = byte


def _places(found: Read, value: Any, path: str) -> None:
    """Notes a text, bytes or a list to be read place by place."""
    if isinstance(value, str):
        found.places[f"{path} character ".lstrip()] = value
    elif isinstance(value, (bytes, bytearray)):
        found.places[f"{path} byte ".lstrip()] = value
        found.places[f"{path} bit ".lstrip()] = bytes(np.unpackbits(np.frombuffer(value[: PLACES // 8], np.uint8)))
    else:
        found.places[f"{path}["] = value


def _words(text: str) -> list[str]:
    return "".join(c if c.isalnum() or c in "_.-+" else " " for c in text[: WORDS * 16]).split()[:WORDS]


def _array(found: Read, value: np.ndarray, path: str, depth: int) -> None:
    if value.dtype.kind in "OSUV" or value.ndim == 0:
        _read(found, value.tolist(), path, depth - 1)
        return
    _note(found, path, "has the shape", value.shape)
    flat = value.reshape(-1)
    if flat.dtype.kind in "mM":
        flat = flat.view(np.int64)
    _sequence(found, flat.tolist(), path, depth)


def _members(found: Read, values: Iterable[Any], path: str) -> None:
    for one in values:
        _note(found, path, "holds", one)


def _mapping(found: Read, value: Mapping[Any, Any], path: str, depth: int) -> None:
    found.numbers[f"{path} size".strip()] = len(value)
    names = list(value)
    for place in (0, -1) if names else ():
        _note(found, path, "has the first key" if place == 0 else "has the last key", names[place])
    for name, one in value.items():
        _note(found, path, "has the key", name)
        _read(found, plain(one), f"{path}[{_short(name)}]", depth - 1)
    _summary(found, [plain(one) for one in value.values()], path, ordered=False)
    columns = [one for one in value.values() if isinstance(one, list)]
    if columns and len(columns) == len(value) and len({len(column) for column in columns}) == 1:
        _members(found, zip(*columns, strict=True), f"{path} rows".strip())


def _sequence(found: Read, value: Sequence[Any], path: str, depth: int) -> None:
    found.numbers[f"{path} size".strip()] = len(value)
    if not len(value):
        return
    _members(found, value, path)
    _note(found, path, "has the first item", value[0])
    _note(found, path, "has the last item", value[-1])
    types = set(map(type, value))
    own = value if types <= ALONE else [plain(one) for one in value]
    _summary(found, own, path, ordered=True)
    if len(own) > LEADING:
        found.places[f"{path}["] = own
    if int in types:
        for i, one in enumerate(own[:LEADING]):
            if isinstance(one, int) and abs(one) > EXACT:
                _number(found, one, f"{path}[{i}]")
    if not types <= ALONE:
        _elements(found, own, path, depth)


def _elements(found: Read, own: Sequence[Any], path: str, depth: int) -> None:
    """Adds what is in the elements of a list that are not all plain numbers."""
    if not all(isinstance(one, NUMBERS) for one in own):
        found.places.pop(f"{path}[", None)
        found.places[f"{path} item ".lstrip()] = own
    for i, one in enumerate(own[:LEADING]):
        if isinstance(one, (str, bytes, bytearray, list, tuple)) and len(one) > 1:
            _places(found, one, f"{path}[{i}]")
    _tell_closed(found, own)
    if len(own) > LEADING and any(isinstance(one, (list, tuple, Mapping)) and len(one) > LEADING for one in own):
        found.unread.append(f"{path} rows and columns beyond {LEADING}".strip())
    fields = _fields(own)
    for i, one in enumerate([] if fields else own[:LEADING]):
        if isinstance(one, (np.ndarray, Mapping, list, tuple, set, frozenset)):
            _read(found, one, f"{path}[{i}]", max(0, depth - 1))
    for name, column in fields.items():
        if depth:
            _sequence(found, column, f"{path}[*][{name}]", depth - 1)
        else:
            found.unread.append(DEEPER)


def _fields(rows: Sequence[Any]) -> dict[str, list[Any]]:
    """Returns the columns of rows, by place or name; empty if the elements are not rows."""
    found: dict[str, list[Any]] = {}
    for row in rows:
        if isinstance(row, np.ndarray):
            row = row.reshape(-1).tolist()
        if isinstance(row, Mapping):
            parts: Iterable[tuple[Any, Any]] = row.items()
        elif isinstance(row, (list, tuple)):
            parts = enumerate(row[:LEADING])
        else:
            return {}
        for name, one in parts:
            found.setdefault(_short(name), []).append(one)
    return found


def _summary(found: Read, values: Sequence[Any], path: str, *, ordered: bool) -> None:
    """Adds summaries of the numbers among the values, and of an ordered sequence their places."""
    known = [one for one in values if isinstance(one, NUMBERS)]
    if not known:
        if ordered:
            _order(found, values, path)
        return
    numbers = np.array([as_float(one) for one in known])
    if not ordered:
        numbers = np.sort(numbers)  # sorted, so that the sum of a set does not depend on its order
    with np.errstate(invalid="ignore", over="ignore"):
        summaries: dict[str, Callable[[np.ndarray], Any]] = {
            "sum": np.sum,
            "mean": np.mean,
            "least": np.min,
            "largest": np.max,
            "variance": np.var,
            "L1 norm": lambda own: _rounded(np.sum(np.abs(own))),
            "L2 norm": lambda own: _rounded(np.sqrt(np.sum(np.square(own)))),
        }
        for name, of in summaries.items():
            found.numbers[f"{path} {name}".strip()] = float(of(numbers))
    _joined(found, [one for one in known if isinstance(one, int)], path)
    if not ordered:
        return
    for i, number in enumerate(numbers[:LEADING]):
        found.numbers[f"{path}[{i}]"] = number
    for i in range(1, min(LAST, len(numbers)) + 1):
        found.numbers[f"{path}[-{i}]"] = numbers[-i]
    found.numbers[f"{path} place of the largest".strip()] = int(np.argmax(numbers))
    _order(found, numbers.tolist(), path)


def _joined(found: Read, known: Sequence[int], path: str) -> None:
    """Adds the low bits of large integers together, as shares of a secret are joined."""
    if len(known) < 2 or max(map(abs, known)) <= EXACT:
        return
    half = len(known) // 2
    together = {
        "sum": sum(known),
        "first half less the second": sum(known[:half]) - sum(known[half : 2 * half]),
        "all xored": reduce(xor, known),
    }
    for name, number in together.items():
        found.numbers[f"{path} {name}, last {LOW} bits".strip()] = number % (1 << LOW)


def _rounded(norm: Any) -> Any:
    """Keeps the binary digits of a norm that do not show how its sum was rounded."""
    part, exponent = np.frexp(norm)
    return np.ldexp(np.rint(part * NORM_STEPS) / NORM_STEPS, exponent)


def _order(found: Read, values: Sequence[Any], path: str) -> None:
    try:
        descents = sum(b < a for a, b in pairwise(values))
    except TypeError:
        return
    found.numbers[f"{path} descents".strip()] = descents
