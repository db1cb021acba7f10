"""Reads MovieLens as GroupLens publishes it: 100K, 1M, 10M and 20M, each in its own format.

A line that does not parse is refused with its file and number. Ratings are read in blocks: a regular expression checks
each block, digit by digit, before NumPy reads its numbers.
"""

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dpaudit import _validate
from dpaudit.data import formats
from dpaudit.data.ratings import Ratings, repeated

BLOCK = 1 << 22  # bytes of a ratings file that are parsed together
HEADER = b"userId,movieId,rating,timestamp"
UNKNOWN = "year unknown"


class Film(NamedTuple):
    """One line of an item file; year None where it is not known."""

    line: int
    number: int
    title: str
    year: int | None
    genres: tuple[str, ...]


class Edition(NamedTuple):
    """One of the published sets.

    Attributes:
      title: the name to display.
      count: published number of ratings.
      folders: where the files may be inside the data folder; they may also be directly in it.
      names: the files that must all be there, without .gz or .xz: ratings, items and other files on items.
      users: a file that lists the users, or None where the edition has none.
      separator: of the columns of a line.
      step: of the scale, which ends at 5.
      films: ``films(paths of names behind the ratings) -> every item``.
    """

    title: str
    count: int
    folders: tuple[str, ...]
    names: tuple[str, ...]
    users: str | None
    separator: str
    step: float
    films: Callable[[Sequence[Path]], Iterator[Film]]


def read(edition: Edition, paths: Sequence[Path], users: Path | None, origin: str) -> Ratings:
    """Reads all ratings, users and items of one copy.

    Users are numbered in the order of their ids, items in the order of their file. Features are a column for each
    genre and for each decade of release, and one for an unknown year.

    Args:
      edition: the edition to read.
      paths: of the edition's ``names``.
      users: path of its list of users; without one the users are those who rated.
      origin: where the files are, to display.

    Raises:
      InputError: a file is missing or broken, a line does not parse, a rating is outside the scale or of a user or an
        item that is not listed, a user rates an item twice; file and line are named.
    """
    films = _listed(paths[1], edition.films(paths[1:]))
    header = edition.separator == ","
    numbers = _table(paths[0], edition.separator, header=header)

    def refused(wanted: str, wrong: np.ndarray, column: int) -> None:
        if wrong.any():
            row = int(np.argmax(wrong))
            raise _expected(paths[0], f"{wanted} in line {row + 1 + header}", f"{numbers[row, column]:.10g}")

    values, step = numbers[:, 2], edition.step
    scale = f"a rating from {step:g} to 5 in steps of {step:g}"
    refused(scale, (values < step) | (values > 5) | (values % step != 0), 2)
    known = np.unique(numbers[:, 0].astype(np.int32)) if users is None else np.sort(_ids(users, edition.separator))
    user, wrong = _places(known, numbers[:, 0])
    refused(f"a user of {users.name if users else 'the file'}", wrong, 0)
    item, wrong = _places(np.array([film.number for film in films]), numbers[:, 1])
    refused(f"an item of {paths[1].name}", wrong, 1)
    twice = repeated(user, item)
    if twice is not None:
        first, again = (row + 1 + header for row in twice)
        got = f"user {numbers[again - 1 - header, 0]:.0f} and item {numbers[again - 1 - header, 1]:.0f} again"
        raise _expected(paths[0], f"no pair of line {first} in line {again}", got)
    features, names = _features(films)
    return Ratings(
        user,
        item,
        values.astype(np.float32),
        len(known),
        len(films),
        step,
        5.0,
        numbers[:, 3].astype(np.int64),
        features,
        names,
        tuple(film.title for film in films),
        f"{edition.title}, {len(values):,} ratings of {len(films):,} films by {len(known):,} users, {origin}",
    )


def _table(path: Path, separator: str, *, header: bool) -> np.ndarray:
    """Reads user, item, rating and time of every line into float64 ``[n, 4]``, which holds all of them exactly."""
    content = formats.content(path)
    content += b"" if content.endswith(b"\n") or not content else b"\n"
    begin = content.find(b"\n") + 1 if header else 0
    if header and content[:begin].rstrip(b"\r\n") != HEADER:
        raise _expected(path, f"{HEADER.decode()} in line 1", _text(content[:begin]))
    between = separator.encode()
    one = rb"\d{1,9}+%b\d{1,9}+%b\d{1,3}+(?:\.\d{1,3}+)?+%b\d{1,15}+\r?\n" % ((re.escape(between),) * 3)
    lines, row = re.compile(b"(?:%b)*" % one), 0  # Python 3.11.2 ends a possessive group within a line
    numbers = np.empty((content.count(b"\n", begin), 4))
    while begin < len(content):
        end = content.index(b"\n", min(begin + BLOCK, len(content) - 1)) + 1
        match = lines.match(content, begin, end)
        good = match.end() if match else begin
        if good < end:
            line = content.count(b"\n", 0, good) + 1
            wanted = separator.join(("user", "item", "rating", "time")).replace("\t", " tab ")
            raise _expected(
                path, f"{wanted}, all numbers, in line {line}", _text(content[good : content.index(b"\n", good)])
            )
        block = np.loadtxt(io.BytesIO(content[begin:end].replace(between, b" ")), ndmin=2)
        numbers[row : row + len(block)] = block
        begin, row = end, row + len(block)
    if not row:
        raise _expected(path, "at least one rating", "none")
    return numbers


def films_100k(paths: Sequence[Path]) -> Iterator[Film]:
    """Reads ``u.item``, 5 columns and a 0 or 1 for each genre of ``u.genre``, divided by ``|``."""
    genres = []
    for line, text in _lines(paths[1], "latin-1"):
        name, bar, place = text.rpartition("|")
        if text and (not bar or place != str(len(genres))):
            raise _expected(paths[1], f"genre|{len(genres)} in line {line}", text)
        genres += [name] if text else []
    for line, text in _lines(paths[0], "latin-1"):
        number, *fields = text.split("|")
        flags, date = fields[4:], re.fullmatch(r"(?:\d{1,2}-[A-Z][a-z]{2}-(\d{4}))?", fields[1] if fields[1:] else "?")
        if not date or len(flags) != len(genres) or not _is_id(number) or not set(flags) <= {"0", "1"}:
            wanted = f"id|title|day-month-year|video|address and {len(genres)} flags in line {line}"
            raise _expected(paths[0], wanted, text)
        chosen = tuple(name for name, flag in zip(genres, flags, strict=True) if flag == "1")
        yield Film(line, int(number), fields[0], int(date[1]) if date[1] else None, chosen)


def films_of(encoding: str) -> Callable[[Sequence[Path]], Iterator[Film]]:
    """Returns a reader of ``movies.dat``: id::title (year)::genre|genre."""

    def films(paths: Sequence[Path]) -> Iterator[Film]:
        for line, text in _lines(paths[0], encoding):
            number, _, rest = text.partition("::")
            title, between, genres = rest.rpartition("::")
            if not (_is_id(number) and between and title and genres):
                raise _expected(paths[0], f"id::title::genres in line {line}", text)
            yield Film(line, int(number), title, _year(title), tuple(genres.split("|")))

    return films


def films_csv(paths: Sequence[Path]) -> Iterator[Film]:
    """Reads ``movies.csv``: a header line, then id,title (year),genre|genre with titles in quotes where needed."""
    rows = csv.reader((text + "\n" for _, text in _lines(paths[0], "utf-8")), strict=True)
    wanted, begins = "movieId,title,genres", 1
    try:
        for row in rows:
            known = row == wanted.split(",") if begins == 1 else len(row) == 3 and _is_id(row[0]) and all(row)
            if not known:
                raise _expected(paths[0], f"{wanted} in line {begins}", ",".join(row) or "an empty line")
            if begins > 1:
                yield Film(begins, int(row[0]), row[1], _year(row[1]), tuple(row[2].split("|")))
            begins = rows.line_num + 1
    except csv.Error as error:
        raise _expected(paths[0], f"{wanted} in line {begins}", str(error)) from error


EDITIONS = {
    "movielens_100k": Edition(
        title="MovieLens 100K",
        count=100_000,
        folders=("movielens-100k", "movielens_100k", "ml-100k"),
        names=("u.data", "u.item", "u.genre"),
        users="u.user",
        separator="\t",
        step=1.0,
        films=films_100k,
    ),
    "movielens_1m": Edition(
        title="MovieLens 1M",
        count=1_000_209,
        folders=("movielens-1m", "movielens_1m", "ml-1m"),
        names=("ratings.dat", "movies.dat"),
        users="users.dat",
        separator="::",
        step=1.0,
        films=films_of("latin-1"),
    ),
    "movielens_10m": Edition(
        title="MovieLens 10M",
        count=10_000_054,
        folders=("movielens-10m", "movielens_10m", "ml-10m", "ml-10M100K"),
        names=("ratings.dat", "movies.dat"),
        users=None,
        separator="::",
        step=0.5,
        films=films_of("utf-8"),
    ),
    "movielens_20m": Edition(
        title="MovieLens 20M",
        count=20_000_263,
        folders=("movielens-20m", "movielens_20m", "ml-20m"),
        names=("ratings.csv", "movies.csv"),
        users=None,
        separator=",",
        step=0.5,
        films=films_csv,
    ),
}


def _listed(path: Path, films: Iterator[Film]) -> list[Film]:
    """Returns all films, and refuses an id that appears twice."""
    found: dict[int, Film] = {}
    for film in films:
        if film.number in found:
            raise _expected(
                path, f"another id than in line {found[film.number].line} in line {film.line}", str(film.number)
            )
        found[film.number] = film
    if not found:
        raise _expected(path, "at least one item", "none")
    return list(found.values())


def _ids(path: Path, separator: str) -> np.ndarray:
    """Reads the first column of a list of users, ``u.user`` or ``users.dat``."""
    found = []
    for line, text in _lines(path, "latin-1"):
        number = text.split("|" if separator == "\t" else separator)[0]
        if not _is_id(number):
            raise _expected(path, f"a user's number first in line {line}", text)
        found.append(int(number))
    return np.array(found, np.int32)


def _places(known: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the index in ``known`` of each id, int32 ``[n]``, and which ids are not in it."""
    order = np.argsort(known)
    place = np.minimum(np.searchsorted(known[order], ids), len(known) - 1)
    number = order[place].astype(np.int32)
    return number, known[number] != ids


def _features(films: Sequence[Film]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Encodes genres by name, decades, and an unknown year where there is one: float32 ``[num_items, f]``."""
    periods = [UNKNOWN if film.year is None else f"{film.year // 10 * 10}s" for film in films]
    names = (*sorted({genre for film in films for genre in film.genres}), *sorted(set(periods)))
    place = {name: column for column, name in enumerate(names)}
    found = np.zeros((len(films), len(names)), np.float32)
    for row, (film, period) in enumerate(zip(films, periods, strict=True)):
        found[row, [place[name] for name in (*film.genres, period)]] = 1
    return found, names


def _year(title: str) -> int | None:
    """Returns the year in brackets at the end of a title, the first of "(1987-1991)"."""
    found = re.search(r"\((\d{4})(?:[-–]\s*\d{0,4})?\)\s*$", title)
    return int(found[1]) if found else None


def _lines(path: Path, encoding: str) -> Iterator[tuple[int, str]]:
    """Yields each line with its number, without its end; only a line feed ends a line."""
    content = formats.content(path)
    for line, text in enumerate(content.removesuffix(b"\n").split(b"\n"), start=1):
        try:
            yield line, text.removesuffix(b"\r").decode(encoding)
        except UnicodeDecodeError as error:
            raise _expected(path, f"{encoding} text in line {line}", f"byte 0x{text[error.start]:02x}") from error


def _is_id(text: str) -> bool:
    return re.fullmatch(r"[0-9]{1,9}", text) is not None


def _text(line: bytes) -> str:
    return line.decode("latin-1").rstrip("\r\n") or "an empty line"


def _expected(path: Path, wanted: str, found: str) -> _validate.InputError:
    return _validate.expected(formats.printable(path), wanted, found)
