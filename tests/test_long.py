"""The list of long tests names tests that exist: one that is renamed does not slip back among the short ones."""

import re

from tests.conftest import LONG, TESTS, listed_as


def test_every_test_of_the_list_exists_and_runs_with_the_integration_tests(request):
    assert LONG
    for name in LONG:
        file, _, test = name.partition("::")
        assert re.search(rf"^def {test}\(", (TESTS / file).read_text(), re.MULTILINE), name
    if "not integration" in request.config.option.markexpr:
        assert LONG.isdisjoint(map(listed_as, request.session.items))
