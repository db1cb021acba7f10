"""Reads Jester, data set 1, as the University of California publishes it: a row for each user, a column for each joke.

Source: Goldberg, Roeder, Gupta and Perkins 2001, "Eigentaste: A Constant Time Collaborative Filtering Algorithm".
"""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dpaudit import _validate
from dpaudit.data import formats
from dpaudit.data.ratings import Ratings

JOKES = 100
LOW, HIGH = -10.0, 10.0
NONE = 99.0  # stands where a user has not rated a joke
COUNT = 1_810_455  # ratings, as published
NAMES = ("jester-data-1.csv",)
FOLDERS = ("jester",)


def read(paths: Sequence[Path], origin: str) -> Ratings:
    """Reads all ratings, user by user: users are the rows of the file, items the jokes in their order.

    Args:
      paths: of the file of ``NAMES``.
      origin: where it is, to display.

    Raises:
      InputError: a row that is not 101 numbers, a rating outside -10 to 10, a number of ratings (the first column)
        that is not the row's; the row is named.
    """
    (path,) = paths
    shown = formats.printable(path)
    content = formats.content(path)
    if not content.strip():
        raise _validate.expected(shown, "at least one row", "none")
    try:
        table = np.loadtxt(io.BytesIO(content), delimiter=",", ndmin=2)
    except ValueError as error:
        raise _validate.expected(shown, f"rows of {JOKES + 1} numbers", str(error)) from error
    if table.shape[1] != JOKES + 1:
        raise _validate.expected(shown, f"rows of {JOKES + 1} numbers", f"an array of shape {list(table.shape)}")
    values = table[:, 1:]
    rated = values != NONE
    wrong = np.argwhere(rated & ~((values >= LOW) & (values <= HIGH)))
    if wrong.size:
        user, item = wrong[0]
        wanted = f"ratings from {LOW:g} to {HIGH:g}, or {NONE:g} for none, in row {user + 1}"
        raise _validate.expected(shown, wanted, f"{values[user, item]:g}")
    (miscounted,) = np.nonzero(rated.sum(axis=1) != table[:, 0])
    if miscounted.size:
        user = miscounted[0]
        wanted = f"{rated[user].sum()} first in row {user + 1}, its number of ratings"
        raise _validate.expected(shown, wanted, f"{table[user, 0]:g}")
    users, items = np.nonzero(rated)
    return Ratings(
        users.astype(np.int32),
        items.astype(np.int32),
        values[rated].astype(np.float32),
        len(table),
        JOKES,
        LOW,
        HIGH,
        np.zeros(0, np.int64),
        np.zeros((JOKES, 0), np.float32),
        (),
        (),
        f"Jester 1, {len(users):,} ratings of {JOKES} jokes by {len(table):,} users, {origin}",
    )
