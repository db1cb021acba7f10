"""Runs first audits of docs/howto/libraries.md on real packages, each in an environment made for it.

Two that install within a minute or so are tried by `make verify`; `make libraries` tries all.
"""

import pytest

from experiments.libraries import environments, first
from experiments.libraries.run import printed

pytestmark = pytest.mark.integration


@pytest.mark.slow
@pytest.mark.parametrize("name", ["opendp", "pure_ldp"])
def test_a_first_audit_takes_five_lines_and_accuses_nobody(name):
    try:
        python = environments.make(name)
    except RuntimeError as error:
        pytest.skip(f"its environment cannot be made here: {error}")
    (told,) = printed(python, "first", name)
    assert told["lines"] <= 5
    assert told["verdict"] == "consistent"


def test_every_first_audit_has_an_environment_and_five_lines_at_most():
    assert set(first.blocks()) <= set(environments.names())
    assert {name: len(text.splitlines()) for name, text in first.blocks().items() if len(text.splitlines()) > 5} == {}
