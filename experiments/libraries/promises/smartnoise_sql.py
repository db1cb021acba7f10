"""smartnoise-sql: private SQL over a data frame, whose rows come back with their column names first."""

from functools import cache

import pandas as pd
from snsql import Privacy, from_df

from dpaudit import Claim
from experiments.libraries.promise import Promise

LIBRARY = "smartnoise-sql"
PEOPLE = pd.DataFrame({"age": [20, 30, 40, 50, 60, 70, 80, 90, 25, 100], "town": ["a"] * 9 + ["b"]})
COLUMNS = {"age": {"type": "int", "lower": 0, "upper": 100}, "town": {"type": "string"}}
META = {"": {"s": {"people": {"row_privacy": True, "max_ids": 1, "rows": 100, "censor_dims": False, **COLUMNS}}}}


@cache
def people_of(size):
    """A private reader of the first so many people, made once."""
    return from_df(PEOPLE[:size], privacy=Privacy(epsilon=1.0, delta=1e-5), metadata=META)


def promises():
    """Queries over ten people, one of whom is there in one world alone."""
    for name, what in (("count", "COUNT(*)"), ("sum", "SUM(age)")):
        query = f"SELECT {what} FROM s.people"
        claim = Claim(1.0, neighbouring="add_remove")
        yield Promise(name, claim, lambda rng, x, query=query: people_of(x).execute(query)[1:], 10, 9, trials=2_000)
