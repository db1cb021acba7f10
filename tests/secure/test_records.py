"""What is on disk survives a crash at any moment, and belongs to one server of one training."""

import numpy as np
import pytest

from dpaudit import check
from dpaudit.secure.records import Opened, Records
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
        with pytest.raises(check.InputError, match=rf"^step: expected 2, the next one, got {other}$"):
            records.complete(other, OPENED)
    records.complete(2, OPENED)
    records.close()


def test_a_state_is_one_process_one_role_and_one_training(tmp_path):
    records = Records(tmp_path, "h1", terms())
    with pytest.raises(check.InputError, match=r"^state: expected a directory that no other server uses, got"):
        Records(tmp_path, "h1", terms())
    records.close()
    with pytest.raises(check.InputError, match=r"^state: expected a directory of h2, got"):
        Records(tmp_path, "h2", terms())
    with pytest.raises(check.InputError, match=r"^terms: examples: expected 31 as here, got 30$"):
        Records(tmp_path, "h1", terms()._replace(examples=31))
    (tmp_path / "file").touch()
    with pytest.raises(check.InputError, match=r"^state: expected a directory to write to, got .*file"):
        Records(tmp_path / "file", "h1", terms())
