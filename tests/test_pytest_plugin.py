"""The pytest plugin: verdicts become outcomes of tests, seeds come from names, and nothing is imported too early."""

import re
import sys
import tomllib

import jax
import pytest

import dpaudit
from dpaudit import pytest_plugin
from dpaudit.audits.ldp_client import versions
from dpaudit.report.page import write_audit_page
from tests.processes import ROOT

pytest_plugins = ["pytester"]

FILE = """
import jax, jax.numpy as jnp, pytest
import dpaudit

x0, x1, claim = jnp.zeros(2), jnp.array([1.0, 0.0]), dpaudit.Claim(1.0)

def noisy(key, x):
    return x.sum() + jax.random.laplace(key)

def half(key, x):
    return x.sum() + jax.random.laplace(key) / 2
"""


@pytest.fixture(scope="module")
def everything_imported(tmp_path_factory):
    """Carries out an audit and writes its page: what a run in this process imports anew is imported twice, which JAX
    does not bear."""
    result = dpaudit.audit(lambda key, x: x + jax.random.laplace(key), 0.0, 1.0, key=jax.random.key(0), trials=1000)
    row = result.to_row() | {"target": "", "seed": 0, "seconds": 0.0, "versions": versions()}
    write_audit_page(row, tmp_path_factory.mktemp("page") / "page.html")


@pytest.fixture
def runs(pytester, everything_imported):
    """Runs tests of a file in this process, with the plugin once, installed or not."""

    def run(body: str, *options: str):
        pytester.makepyfile(FILE + body)
        return pytester.inline_run(*ONCE, *options, plugins=[pytest_plugin]), pytester.path

    return run


def outcome(found) -> dict[str, int]:
    passed, skipped, failed = map(len, found.listoutcomes())
    return {"passed": passed, "skipped": skipped, "failed": failed}


def message(found) -> str:
    (report,) = found.getfailures()
    return str(report.longrepr)


ONCE = ("-p", "no:cacheprovider", "-p", "no:dpaudit")  # not the installed one, too
TRIALS = "@pytest.mark.dpaudit(trials=4000, confidence=0.99)\n"


def test_the_verdict_decides_and_a_violation_leaves_a_page(runs):
    found, folder = runs(
        f"{TRIALS}def test_right(audit_privacy):\n    assert audit_privacy(noisy, x0, x1, claim).trials == 4000\n"
        f"{TRIALS}def test_wrong(audit_privacy):\n    audit_privacy(half, x0, x1, claim)\n"
    )
    assert outcome(found) == {"passed": 1, "skipped": 0, "failed": 1}
    text = message(found)
    assert re.search(r"privacy violation: epsilon is at least 1\.\d+ with confidence 0\.99, promised was 1 ", text)
    (page,) = (folder / "dpaudit-pages").iterdir()
    assert f"page: {page}" in text
    assert "test_wrong" in page.name
    written = page.read_text(encoding="utf-8")
    assert "<h1>The promise is broken</h1>" in written
    assert "::test_wrong" in written


def test_a_page_that_cannot_be_written_does_not_hide_a_violation(runs):
    body = "open('file', 'w').close()\n"
    body += f"{TRIALS}def test_it(audit_privacy):\n    audit_privacy(%s, x0, x1, claim)\n"
    found, _ = runs(body % "half", "--dpaudit-pages", "file/pages")
    text = message(found)
    assert re.search(r"privacy violation: epsilon is at least 1\.\d+ with confidence 0\.99, promised was 1 ", text)
    assert "page not written: NotADirectoryError: " in text
    assert outcome(runs(body % "noisy", "--dpaudit-pages", "file/pages")[0])["passed"] == 1
    strict = "-W", "error::dpaudit._validate.InputWarning"
    found, _ = runs(body % "noisy", "--dpaudit-pages", "file/pages", *strict)
    assert "--dpaudit-pages: expected a folder that can be written, got [Errno 20] Not a directory" in message(found)
    found, _ = runs(body % "half", "--dpaudit-pages", "file/pages", *strict)
    assert "privacy violation" in message(found)
    found, folder = runs(body % "noisy", "--dpaudit-pages", "named", *strict)
    assert outcome(found)["passed"] == 1
    assert not (folder / "dpaudit-pages").exists()


def test_seeds_come_from_the_name_and_the_call(runs):
    body = "seen = []\n" + "".join(
        f"{TRIALS}def test_{name}(audit_privacy):\n"
        "    seen.extend(audit_privacy(noisy, x0, x1, claim).to_json() for _ in range(2))\n"
        for name in ("one", "two")
    )
    check = "def test_last():\n    assert len({*seen}) == 4\n    open('seen', 'a').write(''.join(seen))\n"
    found, folder = runs(body + check)
    once = (folder / "seen").read_text()
    again, _ = runs(body + check)
    assert outcome(found) == outcome(again) == {"passed": 3, "skipped": 0, "failed": 0}
    assert (folder / "seen").read_text() == 2 * once


@pytest.mark.integration
def test_a_budget_of_seconds_stops_early_or_when_it_is_over(runs):
    found, _ = runs(
        "@pytest.mark.dpaudit(seconds=0.5)\ndef test_right(audit_privacy):\n"
        "    result = audit_privacy(noisy, x0, x1, claim)\n"
        "    assert result.verdict == 'consistent' and 4000 < result.trials < 10_000_000\n"
        "def test_wrong(audit_privacy):\n"
        "    audit_privacy(half, x0, x1, claim)\n"
    )
    assert outcome(found) == {"passed": 1, "skipped": 0, "failed": 1}
    assert "stopped early" in message(found)
    assert re.search(r"epsilon is at least 1\.0*[1-9]", message(found))  # more than was promised


@pytest.mark.integration
@pytest.mark.parametrize("more", ["until=lambda watch, counts: np.zeros(len(counts), bool)", "progress=seen.append"])
def test_a_budget_of_seconds_holds_beside_a_rule_and_a_progress_of_the_test(runs, more):
    found, _ = runs(
        "import numpy as np\nseen = []\n@pytest.mark.dpaudit(seconds=0.5)\ndef test_it(audit_privacy):\n"
        f"    result = audit_privacy(noisy, x0, x1, claim, trials=10_000_000, {more})\n"
        "    assert 4000 < result.trials < 10_000_000\n    assert not seen or seen[-1] == result.trials\n"
    )
    assert outcome(found)["passed"] == 1, message(found)


def test_the_nearer_of_two_markers_decides_what_it_names_alone(runs):
    """Of the further one, the confidence counts, and the length where the nearer names none."""
    found, _ = runs(
        "@pytest.mark.dpaudit(seconds=100, confidence=0.9)\nclass TestIt:\n"
        "    @pytest.mark.dpaudit(trials=4000)\n    def test_length(self, audit_privacy):\n"
        "        result = audit_privacy(noisy, x0, x1, claim)\n"
        "        assert (result.trials, result.confidence) == (4000, 0.9)\n"
        "        assert 'stopped' not in result.method\n"
        "@pytest.mark.dpaudit(trials=4000)\nclass TestOther:\n"
        "    @pytest.mark.dpaudit(confidence=0.8)\n    def test_confidence(self, audit_privacy):\n"
        "        result = audit_privacy(noisy, x0, x1, claim)\n"
        "        assert (result.trials, result.confidence) == (4000, 0.8)\n"
    )
    assert outcome(found) == {"passed": 2, "skipped": 0, "failed": 0}


def test_a_rule_of_the_test_stops_before_the_time_is_over(runs):
    rule = "until=lambda watch, counts: counts.sum(-1) >= 300"
    found, _ = runs(
        "@pytest.mark.dpaudit(seconds=100)\ndef test_it(audit_privacy):\n"
        f"    assert audit_privacy(noisy, x0, x1, claim, trials=4000, {rule}).trials < 2000\n"
    )
    assert outcome(found)["passed"] == 1, message(found)


def test_a_curve_is_judged_by_its_p_value(runs):
    body = f"{TRIALS}def test_it(audit_privacy):\n    audit_privacy(half, x0, x1, dpaudit.Claim.gaussian(1.0))\n"
    wanted = r"privacy violation: p = \S+ \(of the promise being kept\), at confidence 0\.99, promised was the curve "
    assert re.search(wanted, message(runs(body)[0]))


@pytest.mark.parametrize(
    "mark, call, wanted",
    [
        (
            "trials=4000",
            "audit_privacy(noisy, x0, x1)",
            "claim: expected the promise that the test is about, got None",
        ),
        (
            "epochs=3",
            "audit_privacy(noisy, x0, x1, claim)",
            "mark.dpaudit: expected seconds, confidence, trials by name",
        ),
        ("seconds=-1", "audit_privacy(noisy, x0, x1, claim)", "seconds: expected a finite number > 0, got -1"),
        (
            "seconds=1e-9",
            "audit_privacy(noisy, x0, x1, dpaudit.Claim(12.0), batch=1)",
            "seconds: expected enough for the trials that choose an attack",
        ),
    ],
)
def test_a_mistake_is_one_line(runs, mark, call, wanted):
    found, _ = runs(f"@pytest.mark.dpaudit({mark})\ndef test_it(audit_privacy):\n    {call}\n")
    assert outcome(found)["failed"] == 1
    assert wanted in message(found)


def test_what_could_show_nothing_is_a_warning(runs):
    body = f"{TRIALS}def test_it(audit_privacy):\n    audit_privacy(noisy, x0, x1, dpaudit.Claim(30.0))\n"
    assert outcome(runs(body)[0])["passed"] == 1
    found, _ = runs(body, "-W", "error::dpaudit._validate.InputWarning")
    assert "could have shown no violation: even a perfect attack" in message(found)


def test_the_package_brings_the_plugin():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"dpaudit": pytest_plugin.__name__}


@pytest.mark.integration
def test_the_plugin_imports_no_jax_until_it_is_used(pytester):
    pytester.makepyfile("import sys\ndef test_it():\n    assert not {'jax', 'numpy', 'scipy'} & {*sys.modules}\n")
    command = (sys.executable, "-m", "pytest", *ONCE, "-p", "dpaudit.pytest_plugin", "-p", "no:jaxtyping")
    pytester.run(*command).assert_outcomes(passed=1)
    markers = pytester.run(*command, "--markers")
    markers.stdout.fnmatch_lines(["@pytest.mark.dpaudit(seconds=5, confidence=0.999, trials=None)*"])


def test_a_key_of_one_s_own_is_refused_in_one_line(runs):
    found, _ = runs(
        "@pytest.mark.dpaudit(trials=200)\n"
        "def test_it(audit_privacy):\n    audit_privacy(noisy, x0, x1, claim, key=jax.random.key(3))\n"
    )
    assert outcome(found) == {"passed": 0, "skipped": 0, "failed": 1}
    assert "key: expected none, which comes from the test's name" in message(found)
