"""MovieLens in each of its four formats, written here line by line, whole and broken; and the real 100K."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from dpaudit import _validate, data
from dpaudit.data import movielens, sources

GENRES = "unknown|0\nAction|1\nDrama|2\n\n"
ITEMS_100K = (
    "1|Misérables, Les (1995)|20-Oct-1995||http://x/?Misérables|0|0|1\n"
    "2|unknown||||1|0|0\n"
    "3|Both: a (film) (1941)|4-Feb-1941||http://x|0|1|1\n"
)
DATA_100K = "5\t3\t4\t881250949\n2\t1\t1\t0\n5\t1\t5\t881250950\n"
RATINGS_DAT = "5::30::4::881250949\n2::10::1::0\n5::10::5::881250950\n"
MOVIES_DAT = "10::Misérables, Les (1995)::Drama\n20::No year::(no genres listed)\n30::A::B (1941)::Action|Drama\n"
RATINGS_CSV = "userId,movieId,rating,timestamp\n5,30,3.5,881250949\n2,10,0.5,0\n5,10,5.0,881250950\n"
MOVIES_CSV = (
    "movieId,title,genres\n"
    '10,"Misérables, Les (1995)",Drama\n'
    '20,"A ""quoted"" series (1987-1991)",(no genres listed)\n'
    "30,Both (1941) ,Action|Drama\n"
)
FILES = {
    "movielens_100k": {"u.data": DATA_100K, "u.item": ITEMS_100K, "u.genre": GENRES},
    "movielens_1m": {"ratings.dat": RATINGS_DAT, "movies.dat": MOVIES_DAT},
    "movielens_10m": {"ratings.dat": RATINGS_DAT.replace("::4::", "::3.5::"), "movies.dat": MOVIES_DAT},
    "movielens_20m": {"ratings.csv": RATINGS_CSV, "movies.csv": MOVIES_CSV},
}
ENCODINGS = {"movielens_100k": "latin-1", "movielens_1m": "latin-1"}


@pytest.fixture(autouse=True)
def nothing_else(monkeypatch):
    monkeypatch.delenv(sources.VARIABLE, raising=False)


def write(folder: Path, name: str, **changed: str) -> Path:
    """A copy with other contents of some files, whose names are written with _ for a point."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = FILES[name] | {key.replace("_", "."): text for key, text in changed.items()}
    for file, text in contents.items():
        (folder / file).write_bytes(text.encode(ENCODINGS.get(name, "utf-8")))
    return folder


@pytest.mark.parametrize("name", movielens.EDITIONS)
def test_each_format_is_read_as_it_is_published(tmp_path, name):
    for folder in movielens.EDITIONS[name].folders:
        write(tmp_path / folder, name)
        found = data.load_ratings(name, tmp_path)
        (tmp_path / folder).rename(tmp_path / f"not {folder}")
    assert found.users.tolist() == [1, 0, 1]
    assert found.items.tolist() == [2, 0, 0]
    assert found.values.tolist() == [4.0 if name in ("movielens_100k", "movielens_1m") else 3.5] + (
        [0.5, 5.0] if name == "movielens_20m" else [1.0, 5.0]
    )
    assert found.times.tolist() == [881250949, 0, 881250950]
    assert (found.num_users, found.num_items) == (2, 3)
    assert (found.low, found.high) == (1.0 if name in ("movielens_100k", "movielens_1m") else 0.5, 5.0)
    columns = (found.users, found.items, found.values, found.times, found.features)
    assert [column.dtype for column in columns] == [np.int32, np.int32, np.float32, np.int64, np.float32]
    assert found.titles[0] == "Misérables, Les (1995)"
    assert found.titles[1] == {
        "movielens_100k": "unknown",
        "movielens_20m": 'A "quoted" series (1987-1991)',
    }.get(name, "No year")
    assert found.origin.startswith(f"{movielens.EDITIONS[name].title}, 3 ratings of 3 films by 2 users, files in ")
    said = [{found.feature_names[column] for column in np.flatnonzero(row)} for row in found.features]
    middle = {
        "movielens_100k": {"unknown", "year unknown"},
        "movielens_20m": {"(no genres listed)", "1980s"},
    }.get(name, {"(no genres listed)", "year unknown"})
    assert said == [{"Drama", "1990s"}, middle, {"Action", "Drama", "1940s"}]
    assert set(found.features.ravel()) == {0, 1}


def test_files_may_be_packed_end_otherwise_and_lie_in_the_folder_itself(tmp_path):
    write(tmp_path, "movielens_1m", ratings_dat=RATINGS_DAT.replace("\n", "\r\n").removesuffix("\r\n"))
    packed = tmp_path / "movies.dat.gz"
    packed.write_bytes(gzip.compress((tmp_path / "movies.dat").read_bytes()))
    (tmp_path / "movies.dat").unlink()
    found = data.load_ratings("movielens_1m", tmp_path)
    assert found.users.tolist() == [1, 0, 1]
    write(tmp_path / "ml-10m", "movielens_10m")
    assert data.load_ratings("movielens_10m", tmp_path).low == 0.5  # the folder of its own comes first
    with pytest.raises(
        _validate.InputError, match=r"movielens_1m: expected ratings\.dat and movies\.dat .*, got none of"
    ):
        data.load_ratings("movielens_1m", tmp_path / "ml-10m")  # whose name says that these are another edition's


def test_users_are_those_of_their_list_where_there_is_one(tmp_path):
    folder = write(tmp_path, "movielens_100k", u_user="2|24|M|x|1\n5|3|F|y|2\n9|4|M|z|3\n")
    found = data.load_ratings("movielens_100k", folder)
    assert (found.num_users, found.users.tolist()) == (3, [1, 0, 1])
    write(folder, "movielens_100k", u_user="2|24|M|x|1\n9|4|M|z|3\n")
    with pytest.raises(_validate.InputError, match=r"u\.data: expected a user of u\.user in line 1, got 5$"):
        data.load_ratings("movielens_100k", folder)
    write(folder, "movielens_100k", u_user="2|24|M|x|1\nfive\n")
    with pytest.raises(_validate.InputError, match=r"u\.user: expected a user's number first in line 2, got five$"):
        data.load_ratings("movielens_100k", folder)


BROKEN_DAT = [
    ("5::30::4::1\n5::10::four::1\n", "user::item::rating::time, all numbers, in line 2, got 5::10::four::1$"),
    ("5::30::4::1\n\n5::10::4::1\n", "in line 2, got an empty line$"),
    ("5::30::4::1\n5:10:4:1\n", "in line 2, got 5:10:4:1$"),
    ("5::30::4\n", "in line 1, got 5::30::4$"),
    ("5::30::-4::1\n", "in line 1, got 5::30::-4::1$"),
    ("5::30::nan::1\n", "in line 1, got 5::30::nan::1$"),
    ("5::30::4::1 \n", "in line 1, got 5::30::4::1 *$"),
    ("5::30::5::1\n2::10::6::1\n", "a rating from 1 to 5 in steps of 1 in line 2, got 6$"),
    ("5::30::4.5::1\n", "a rating from 1 to 5 in steps of 1 in line 1, got 4.5$"),
    ("5::30::0::1\n", "a rating from 1 to 5 in steps of 1 in line 1, got 0$"),
    ("5::30::4::1\n5::31::4::1\n", r"an item of movies\.dat in line 2, got 31$"),
    ("5::30::4::1\n2::10::4::1\n5::30::3::2\n", "no pair of line 1 in line 3, got user 5 and item 30 again$"),
    ("", "at least one rating, got none$"),
]


@pytest.mark.parametrize("text, message", BROKEN_DAT)
@pytest.mark.parametrize("block", [1 << 22, 8])
def test_broken_ratings_are_named_by_file_and_line(tmp_path, monkeypatch, text, message, block):
    monkeypatch.setattr(movielens, "BLOCK", block)
    write(tmp_path, "movielens_1m", ratings_dat=text)
    with pytest.raises(_validate.InputError, match=rf"ratings\.dat: expected .*{message}") as caught:
        data.load_ratings("movielens_1m", tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name, changed, message",
    [
        ("movielens_100k", {"u_data": "5 3 4 0\n"}, r"u\.data: expected user tab item tab .*, in line 1, got 5 3 4 0"),
        ("movielens_100k", {"u_genre": "unknown|0\nDrama|2\n"}, r"u\.genre: expected genre\|1 in line 2, got Dr"),
        ("movielens_100k", {"u_item": "1|A|01-Jan-1995||x|0|1\n"}, r"u\.item: .* and 3 flags in line 1, got 1\|A\|01"),
        ("movielens_100k", {"u_item": "1|A|1995||x|0|1|0\n"}, r"day-month-year\|.* in line 1, got 1\|A\|1995"),
        ("movielens_100k", {"u_item": "1|A|||x|0|2|0\n"}, r"u\.item: .* in line 1, got 1\|A\|\|\|x\|0\|2"),
        ("movielens_100k", {"u_item": "\n"}, r"u\.item: .* in line 1, got $"),
        ("movielens_10m", {"movies_dat": "10::A (1995)\n"}, r"id::title::genres in line 1, got 10::A \(1995\)"),
        ("movielens_10m", {"movies_dat": MOVIES_DAT + "10::B::C\n"}, "another id than in line 1 in line 4, got 10$"),
        ("movielens_10m", {"ratings_dat": "5::30::3.7::1\n"}, "0.5 to 5 in steps of 0.5 in line 1, got 3.7$"),
        ("movielens_20m", {"ratings_csv": "5,30,3.5,1\n"}, "userId,movieId,rating,timestamp in line 1, got 5"),
        ("movielens_20m", {"ratings_csv": ""}, "userId,movieId,rating,timestamp in line 1, got an empty line$"),
        ("movielens_20m", {"ratings_csv": RATINGS_CSV[:32]}, r"ratings\.csv: expected at least one rating, got none$"),
        ("movielens_20m", {"ratings_csv": RATINGS_CSV + "5,30,4,1,1\n"}, "in line 5, got 5,30,4,1,1$"),
        ("movielens_20m", {"ratings_csv": RATINGS_CSV + "5,99,4,1\n"}, r"an item of movies\.csv in line 5, got 99$"),
        ("movielens_20m", {"ratings_csv": RATINGS_CSV + "2,10,4,1\n"}, "no pair of line 3 in line 5, got user 2 and"),
        ("movielens_20m", {"movies_csv": MOVIES_CSV + '40,"A,Drama\n'}, "title,genres in line 5, got unexpected"),
        ("movielens_20m", {"movies_csv": MOVIES_CSV + "40,A, B,Drama\n"}, "in line 5, got 40,A, B,Drama$"),
        ("movielens_20m", {"movies_csv": "id,title\n"}, "movieId,title,genres in line 1, got id,title$"),
        ("movielens_20m", {"movies_csv": "movieId,title,genres\n"}, r"movies\.csv: expected at least one item"),
    ],
)
def test_each_format_refuses(tmp_path, name, changed, message):
    write(tmp_path, name, **changed)
    with pytest.raises(_validate.InputError, match=message) as caught:
        data.load_ratings(name, tmp_path)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_text_of_another_encoding_is_named_by_its_line(tmp_path):
    write(tmp_path, "movielens_10m")
    (tmp_path / "movies.dat").write_bytes(MOVIES_DAT.replace("No", "Nö").encode("latin-1"))
    with pytest.raises(_validate.InputError, match=r"movies\.dat: expected utf-8 text in line 1, got byte 0xe9$"):
        data.load_ratings("movielens_10m", tmp_path)


def test_what_is_not_there_is_told(tmp_path, monkeypatch):
    for call, message in [
        (lambda: data.load_ratings("movielens"), "name: expected one of movielens_100k, .*, got movielens"),
        (
            lambda: data.load_ratings("movielens_20m"),
            r"\$DPAUDIT_DATA, which is not set, got no folder; .* own files alone",
        ),
        (
            lambda: data.load_ratings("movielens_1m", tmp_path),
            "in a folder movielens-1m or .* directly in .*, got none of",
        ),
    ]:
        with pytest.raises(_validate.InputError, match=message):
            call()
    write(tmp_path / "ml-100k", "movielens_100k")
    (tmp_path / "ml-100k" / "u.genre").unlink()
    with pytest.raises(
        _validate.InputError, match=r"ml-100k: expected u\.data, u\.item, u\.genre .*, got no u\.genre$"
    ):
        data.load_ratings("movielens_100k", tmp_path)
    rows = {row.name: row for row in data.available(tmp_path)}
    assert rows["movielens_100k"].contents == "not found"
    assert rows["movielens_1m"][1:] == ("not found", "looked for a folder movielens-1m")
    write(tmp_path / "ml-1m", "movielens_1m")
    monkeypatch.setenv(sources.VARIABLE, str(tmp_path))
    rows = {row.name: row for row in data.available()}
    assert rows["movielens_1m"][1:] == ("1,000,209 ratings", "files in ml-1m")
    assert data.load_ratings("movielens_1m").num_items == 3


def test_real_movielens_100k(data_dir):
    if not any((data_dir / folder).is_dir() for folder in movielens.EDITIONS["movielens_100k"].folders):
        pytest.skip("needs MovieLens 100K: no folder of it in DPAUDIT_DATA")
    found = data.load_ratings("movielens_100k", data_dir)
    assert (len(found.values), found.num_users, found.num_items) == (100_000, 943, 1_682)
    assert np.bincount(found.values.astype(int)).tolist() == [0, 6110, 11370, 27145, 34174, 21201]
    assert np.bincount(found.users).min() == 20
    assert np.bincount(found.items, minlength=1_682).min() == 1
    assert (found.users[0], found.items[0], found.values[0], found.times[0]) == (195, 241, 3, 881250949)
    assert (found.titles[0], found.titles[266]) == ("Toy Story (1995)", "unknown")
    genres = found.features[:, : found.feature_names.index("1920s")]
    assert (genres.shape[1], genres.sum(), genres.sum(1).min()) == (19, 2_893, 1)
    assert (found.features[:, 19:].sum(1) == 1).all()
    assert found.features[266, found.feature_names.index("year unknown")] == 1
