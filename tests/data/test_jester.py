"""Jester is read as it is published; rows that are not are named."""

import gzip

import numpy as np
import pytest

from dpaudit import _validate, data
from dpaudit.data import jester


def text(*rows: dict[int, float], first: tuple[float, ...] = ()) -> str:
    """Writes users' ratings by joke; ``first`` stands for their counts where these are wrong."""
    lines = []
    for user, row in enumerate(rows):
        values = [row.get(joke, jester.NONE) for joke in range(jester.JOKES)]
        lines.append(",".join(f"{value:g}" for value in [first[user] if first else len(row), *values]))
    return "\n".join(lines) + "\n"


def test_it_is_read_user_by_user(tmp_path):
    (tmp_path / "jester").mkdir()
    packed = gzip.compress(text({0: -7.82, 99: 8.79}, {1: 10.0}).encode())
    (tmp_path / "jester" / "jester-data-1.csv.gz").write_bytes(packed)
    found = data.load_ratings("jester", tmp_path)
    assert (found.users.tolist(), found.items.tolist()) == ([0, 0, 1], [0, 99, 1])
    assert found.values.tolist() == [np.float32(-7.82), np.float32(8.79), 10.0]
    assert (found.num_users, found.num_items, found.low, found.high) == (2, 100, -10.0, 10.0)
    assert found.features.shape == (100, 0)
    assert found.origin == "Jester 1, 3 ratings of 100 jokes by 2 users, files in jester"
    (row,) = [row for row in data.available(tmp_path) if row.name == "jester"]
    assert row[1:] == ("1,810,455 ratings", "files in jester")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (text({0: 1.0}, {1: -10.5}), "ratings from -10 to 10, or 99 for none, in row 2, got -10.5"),
        (text({0: 1.0}, {1: float("nan")}), "ratings from -10 to 10, or 99 for none, in row 2, got nan"),
        (text({0: 1.0}, {1: 2.0}, first=(1, 2)), "1 first in row 2, its number of ratings, got 2"),
        ("", "at least one row, got none"),
        ("1,2,3\n", r"rows of 101 numbers, got an array of shape \[1, 3\]"),
        ("1,two\n", "rows of 101 numbers, got could not convert string"),
        (text({0: 1.0}) + "1,2\n", "rows of 101 numbers, got "),
    ],
)
def test_a_wrong_row_is_named(tmp_path, content, message):
    (tmp_path / "jester-data-1.csv").write_text(content)
    with pytest.raises(_validate.InputError, match=rf"jester-data-1\.csv: expected {message}"):
        data.load_ratings("jester", tmp_path)


def test_none_is_named_with_where_it_was_looked_for(tmp_path):
    with pytest.raises(_validate.InputError, match=r"jester: expected jester-data-1\.csv .*, got none of them; name"):
        data.load_ratings("jester", tmp_path)


def test_real_jester(data_dir):
    if not (data_dir / "jester").is_dir():
        pytest.skip("needs Jester: no folder of it in DPAUDIT_DATA")
    found = data.load_ratings("jester", data_dir)
    assert (len(found.values), found.num_users, found.num_items) == (jester.COUNT, 24_983, 100)
    assert np.bincount(found.users).min() == 36
    assert found.values[0] == np.float32(-7.82)
