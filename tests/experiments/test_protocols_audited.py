"""Protocols of the documentation are all audited as the page has them, and an author's faults are found."""

import re

import jax
import pytest

import dpaudit
from dpaudit import InputError
from dpaudit.report.rows import read_rows
from experiments.common import results
from experiments.paper004.authored import FAR, FAULTS, OTHERS, ROUNDS, START, Author, authored, memory
from experiments.paper004.protocols import PAGE, PROTOCOLS, code_of_page

NOT_PROTOCOLS = {"In twelve lines", "The worst user by search", "Faults"}


def audited(author, canary, trials):
    how = {"key": jax.random.key(0), "state": START, "rounds": ROUNDS, "memory": memory(author)}
    return dpaudit.audit(authored(author), OTHERS, canary, trials=trials, **how)


def test_every_protocol_of_the_page_is_audited_as_it_is_there():
    titles = set(re.findall(r"^## (.*)$", PAGE.read_text("utf-8"), re.MULTILINE)) - NOT_PROTOCOLS
    assert {title.partition(" over ")[0].lower() for title in titles} == set(PROTOCOLS)
    rows = [row for row in read_rows(results("personalization_protocols")) if row["quantity"] == "protocol mu"]
    assert {row["setting"]["protocol"] for row in rows} == set(PROTOCOLS)
    assert {row["setting"]["page"] for row in rows} == {code_of_page()}


def test_a_protocol_of_ones_own_takes_twelve_lines():
    """Written, run, accounted and audited; tests/test_docs.py runs them."""
    first = re.search(
        r"^## In twelve lines\n.*?^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert first is not None
    assert all(call in first[1] for call in ("private(", " = run(", "transcript.epsilon(", "dpaudit.audit("))
    assert len([line for line in first[1].splitlines() if line]) <= 12


@pytest.mark.integration
@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_refused_or_found(name):
    author, canary = FAULTS[name]
    if author.draws == "same key":
        with pytest.raises(InputError, match="new noise for every release"):
            audited(author, canary, 8)
    else:
        assert audited(author, canary, 20_000).verdict == "violation"


@pytest.mark.integration
def test_the_sound_author_is_not_accused():
    """Nor for a canary whose message changes from round to round."""
    assert audited(Author(), FAR, 20_000).verdict in ("consistent", "underpowered")
    assert audited(Author(), FAULTS["noise reused, drawn once"][1], 20_000).verdict in ("consistent", "underpowered")
