"""Tests that a server counts the openings of which its results tell, whatever its list of openings has lost."""

import pytest

from dpaudit.secure.service.records import Records
from tests.secure.servers import play, terms


@pytest.mark.parametrize("kept", [None, b"", b"1\n", b"1\n2\n3"])
def test_results_that_are_newer_than_the_openings_count(tmp_path, kept):
    """As where both states were restored from copies of files that were made one after the other."""
    mine = terms()
    play(tmp_path, (mine, mine), until=3)
    for server in ("h1", "h2"):
        begun = tmp_path / server / "begun"
        if kept is None:
            begun.unlink()
        else:
            begun.write_bytes(kept)
    first, second = play(tmp_path, (mine, mine), until=4)
    assert (first.fault, second.fault) == (None, None)
    assert (first.releases, second.releases, first.steps[4].releases) == (4, 4, 4)
    for _ in range(2):  # an opening that fails then is one more, and stays so
        records = Records(tmp_path / "h1", "h1", mine)
        releases = records.releases
        records.begin(5)
        records.close()
    assert releases == 5
