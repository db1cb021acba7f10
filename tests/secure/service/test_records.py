"""Tests that the state on disk survives a crash at any moment and belongs to one server of one training."""

import stat

import numpy as np
import pytest

from dpaudit import _validate
from dpaudit.secure.service.records import Opened, Records
from tests.secure.servers import OWNERS, terms

OPENED = Opened(np.array([-(1 << 24), 0, 1, 2, 3, 4, (1 << 24) - 1]), OWNERS, 1)


def test_a_restarted_server_finds_what_was_completed_and_begun(tmp_path):
    records = Records(tmp_path, "h1", terms())
    records.begin(1)
    records.complete(1, OPENED)
    records.begin(2)
    records.close()
    (tmp_path / "00000002.step.new").write_bytes(b"torn")  # killed while it was written
    with (tmp_path / "begun").open("ab") as file:
        file.write(b"2")  # killed in the middle of a line: counted, to be on the safe side
    records = Records(tmp_path, "h1", terms())
    assert (records.completed, records.releases) == (1, 3)
    np.testing.assert_array_equal(records.opened(1).values, OPENED.values)
    assert records.opened(1)[1:] == OPENED[1:]
    for other in (0, 1, 3):
        with pytest.raises(_validate.InputError, match=rf"^step: expected 2, the next one, got {other}$"):
            records.complete(other, OPENED)
    records.complete(2, OPENED)
    records.close()


def test_a_state_is_one_process_one_role_and_one_training(tmp_path):
    records = Records(tmp_path, "h1", terms())
    with pytest.raises(_validate.InputError, match=r"^state: expected a directory that no other server uses, got"):
        Records(tmp_path, "h1", terms())
    records.close()
    with pytest.raises(_validate.InputError, match=r"^state: expected a directory of h2, got"):
        Records(tmp_path, "h2", terms())
    with pytest.raises(_validate.InputError, match=r"^terms: examples: expected 31 as here, got 30$"):
        Records(tmp_path, "h1", terms()._replace(examples=31))
    (tmp_path / "file").touch()
    with pytest.raises(_validate.InputError, match=r"^state: expected a directory to write to, got .*file"):
        Records(tmp_path / "file", "h1", terms())


def test_all_that_is_kept_is_for_its_owner_alone(tmp_path):
    state = tmp_path / "made" / "state"
    records = Records(state, "h1", terms())
    records.begin(1)
    records.complete(1, OPENED)
    records.join(bytes(16))
    records.close()
    kept = list(state.rglob("*"))
    assert {path.name for path in kept} == {"lock", "terms.json", "begun", "00000001.step", "pair.json"}
    for path in (state.parent, state, *kept):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


def test_openings_of_which_the_other_server_knows_count_here_too(tmp_path):
    records = Records(tmp_path, "h1", terms())
    records.begin(1)
    records.heard(5)
    records.heard(3)
    records.begin(1)
    records.close()
    assert Records(tmp_path, "h1", terms()).releases == 6


def test_an_opening_whose_line_was_not_completed_counts_after_every_restart(tmp_path):
    for life, torn in enumerate((b"", b"1", b"+1", b"1")):
        with (tmp_path / "begun").open("ab") as file:
            file.write(torn)
        records = Records(tmp_path, "h1", terms())
        assert records.releases == 3 * life
        records.begin(1)
        records.begin(1)
        records.close()


WHOLE = "state: expected a complete result of each completed step, got "


def _spoilt(tmp_path, spoil) -> str:
    records = Records(tmp_path, "h1", terms())
    for step in (1, 2):
        records.complete(step, OPENED)
    records.close()
    spoil(tmp_path)
    with pytest.raises(_validate.InputError) as refused:
        Records(tmp_path, "h1", terms())
    Records(tmp_path / "lock is free", "h1", terms()).close()
    return str(refused.value)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda state: (state / "stray.step").touch(),
            "state: expected results of steps 1 to 3, got ",
        ),
        (
            lambda state: (state / "1.step").touch(),
            "state: expected results of steps 1 to 3, got ",
        ),
        (
            lambda state: (state / "00000001.step").unlink(),
            "state: expected results of steps 1 to 1, got ",
        ),
        (
            lambda state: (state / "00000002.step").write_bytes(b""),
            "state: expected a complete result of each completed ",
        ),
        (lambda state: _cut(state / "00000002.step"), WHOLE),
        (lambda state: (state / "00000002.step").write_bytes(b"{}"), WHOLE),
        (lambda state: (state / "terms.json").write_text("{}"), "state: expected a directory of h1, got "),
        (lambda state: (state / "terms.json").write_text("[]"), "state: expected the terms of a training, got "),
        (
            lambda state: (state / "terms.json").write_text('{"role": "h1"}'),
            "terms: version: expected 7 as here, got ",
        ),
        (
            lambda state: (state / "00000003.step").mkdir(),
            "state: expected a complete result of each completed step, got",
        ),
    ],
)
def test_a_state_that_is_spoilt_is_refused_in_one_line(tmp_path, spoil, message):
    told = _spoilt(tmp_path, spoil)
    assert told.startswith(message)
    assert "\n" not in told


def _cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def test_a_result_that_was_spoilt_later_is_refused_when_it_is_asked_for(tmp_path):
    records = Records(tmp_path, "h1", terms())
    records.complete(1, OPENED)
    _cut(tmp_path / "00000001.step")
    with pytest.raises(_validate.InputError, match=WHOLE):
        records.opened(1)
