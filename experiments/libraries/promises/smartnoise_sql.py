"""smartnoise-sql: private SQL over a data frame, whose rows come back with their column names first."""

from functools import cache

import pandas as pd
from snsql import Privacy, from_df

from dpaudit import Claim
from experiments.libraries.promise import Promise

LIBRARY = "smartnoise-sql"
META = {
    "": {"s": {"people": {
        "row_privacy": True, "max_ids": 1, "rows": 100, "censor_dims": False,
        "age": {"type": "int", "lower": 0, "upper": 100}, "town": {"type": "string"},
    }}}
}  # fmt: skip


def promise(name, query, epsilon=1.0, **settings):
    """A query over ten people, one of whom is there in one world alone; the noise comes from the library's own."""

    @cache
    def reader(size):
        return from_df(people[:size], privacy=Privacy(epsilon=epsilon, delta=1e-5), metadata=META)

    def release(rng, x):
        return reader(x).execute(query)[1:]

    people = pd.DataFrame({"age": [20, 30, 40, 50, 60, 70, 80, 90, 25, 100], "town": ["a"] * 9 + ["b"]})
    return Promise(name, Claim(epsilon, neighbouring="add_remove"), release, 10, 9, trials=1_000, **settings)


def promises():
    yield promise("count", "SELECT COUNT(*) FROM s.people")
    yield promise("sum", "SELECT SUM(age) FROM s.people")
