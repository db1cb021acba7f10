"""``dpaudit audit`` on scores, counts and an external program: the statuses, the rows, and one line for mistakes."""

import json
import resource
import shlex
import sys

import numpy as np
import pytest

import dpaudit
from dpaudit import _validate
from dpaudit.cli import given
from tests.integration.test_cli import run

PROGRAM = """
import json, sys
import numpy as np

world, n, scale = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
draws = np.random.default_rng(world)
for number in draws.laplace(world, scale, n):
    print(json.dumps([number, 0]))
"""
DRAWS = np.random.default_rng(0)
SCORES = DRAWS.laplace(size=(2, 8_000)) + np.array([[0.0], [1.0]])
CLAIM = ("--epsilon", "0.5")


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "play.py").write_text(PROGRAM)
    return tmp_path


def play(scale: float) -> str:
    return f"{shlex.quote(sys.executable)} play.py {{world}} {{n}} {scale}"


def written(name: str, rows, header: str = "") -> str:
    lines = [header] if header else []
    with open(name, "w") as file:
        file.write("\n".join([*lines, *(",".join(str(cell) for cell in row) for row in rows)]) + "\n")
    return name


LONG = [(world, score) for pair in SCORES.T for world, score in enumerate(pair)]
FORMS = {
    "world,score": lambda: written("s.csv", LONG, "world,score"),
    "score,WORLD with more": lambda: written("s.csv", [(s, "x", w) for w, s in LONG], "score,note,WORLD"),
    "world and score, no header": lambda: written("s.csv", LONG),
    "world and score, as NumPy writes them": lambda: np.savetxt("s.csv", LONG, "%.17e", ",") or "s.csv",
    "scores1,scores0": lambda: written("s.csv", SCORES[::-1].T, "scores1,scores0"),
    "a column for each world": lambda: written("s.csv", SCORES.T, "without,with"),
    "a column for each world, no header": lambda: written("s.csv", SCORES.T),
    "npz": lambda: np.savez("s.npz", scores0=SCORES[0], scores1=SCORES[1]) or "s.npz",
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_scores_gives_the_audit_of_them(monkeypatch, capsys, folder, form):
    file = FORMS[form]()
    assert run(monkeypatch, "audit", "--scores", file, *CLAIM, "--json") == 1
    (row,) = json.loads(capsys.readouterr().out)
    found = dpaudit.from_scores(*SCORES, claim=dpaudit.Claim(0.5), method=f"scores of {file}")
    assert dpaudit.AuditResult.from_json(json.dumps(row)) == found
    assert row["target"] == file


def test_columns_may_differ_in_length(monkeypatch, capsys, folder):
    rows = [(a, b if i < 5_000 else "") for i, (a, b) in enumerate(SCORES.T)]
    assert run(monkeypatch, "audit", "--scores", written("s.csv", rows), "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["trials"], row["verdict"]) == (13_000, "measured")


def test_a_threshold_fixed_in_advance_counts_all(monkeypatch, capsys, folder):
    command = ("audit", "--scores", FORMS["npz"](), "--threshold", "0.5", *CLAIM, "--confidence", "0.99", "--json")
    assert run(monkeypatch, *command) == 1
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["negatives"], row["side"], row["confidence"]) == (8_000, "either", 0.99)


@pytest.mark.parametrize("form", ["npz", "csv"])
def test_scores_of_one_training(monkeypatch, capsys, folder, form):
    included = DRAWS.random(2_000) < 0.5
    scores = included * 3.0 + DRAWS.laplace(size=2_000)
    file = "one." + form
    if form == "npz":
        np.savez(file, scores=scores, included=included)
    else:
        written(file, zip(scores, included, strict=True), "score,included")
    assert run(monkeypatch, "audit", "--scores", file, "--epsilon", "1", "--delta", "1e-5", "--json") == 1
    (row,) = json.loads(capsys.readouterr().out)
    claim = dpaudit.Claim(1.0, 1e-5, "add_remove")
    assert row["epsilon_lower"] == dpaudit.one_run(scores, included, claim=claim).epsilon_lower


@pytest.mark.parametrize(
    "epsilon, status, verdict", [("1", 1, "violation"), ("3", 0, "consistent"), ("9", 3, "under")]
)
def test_counts(monkeypatch, capsys, folder, epsilon, status, verdict):
    command = ("audit", "--counts", "120", "90", "1000", "1000", "--epsilon", str(epsilon), "--out", "out")
    assert run(monkeypatch, *command) == status
    assert f" verdict         {verdict}" in capsys.readouterr().out
    assert "counts 120 90 1000 1000" in (folder / "out" / "report.html").read_text(encoding="utf-8")


def test_a_report_that_cannot_be_written_does_not_lose_the_result(monkeypatch, capsys, folder):
    def full(*_):
        raise dpaudit.InputError("results.json: expected a file that can be written, got No space left on device")

    monkeypatch.setattr("dpaudit.cli.command.write_rows", full)
    assert run(monkeypatch, "audit", "--counts", "120", "90", "1000", "1000", "--out", "out") == 2
    printed = capsys.readouterr()
    assert " verdict         measured" in printed.out
    assert printed.err == "dpaudit: results.json: expected a file that can be written, got No space left on device\n"


@pytest.mark.parametrize("scale, status", [(1.0, 0), (0.5, 1)])
def test_a_program(monkeypatch, capsys, folder, scale, status):
    command = ("audit", "--command", play(scale), "--epsilon", "1", "--trials", "8000", "--out", "out")
    assert run(monkeypatch, *command) == status
    (row,) = json.loads((folder / "out" / "results.json").read_text())
    assert row["target"] == play(scale)
    assert len(row["attacks"]) > 20
    kept = [(folder / "out" / f"releases{world}.jsonl").read_text().splitlines() for world in (0, 1)]
    samples = [np.array([json.loads(line) for line in lines]) for lines in kept]
    found = dpaudit.from_samples(*samples, claim=dpaudit.Claim(1.0))
    assert row["epsilon_lower"] == found.epsilon_lower
    again = ("audit", "--command", "cat out/releases{world}.jsonl", "--epsilon", "1", "--trials", "8000")
    assert run(monkeypatch, *again, "--out", "out", "--force") == status  # what is read may be what is replaced
    (other,) = json.loads((folder / "out" / "results.json").read_text())
    assert other["epsilon_lower"] == row["epsilon_lower"]


def test_a_program_that_has_written_all_releases_need_not_end(monkeypatch, capsys, folder):
    program = script(
        "import random, sys, time; [print(random.random()) for _ in range(int(sys.argv[2]))]; sys.stdout.flush(); "
        "time.sleep(60)"
    )
    assert run(monkeypatch, "audit", "--command", program, "--trials", "1000", "--time-limit", "2", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["trials"] == 1000


def test_a_program_may_write_anything(monkeypatch, capsys, folder):
    """Lines of any JSON: the keys of a table, of which one is there more often in world 1."""
    program = (
        "import json, random, sys; d = random.Random(sys.argv[1]); p = 0.25 + 0.5 * int(sys.argv[1]); "
        "[print(json.dumps(['a', 'b'] if d.random() < p else ['a'])) for _ in range(int(sys.argv[2]))]"
    )
    command = ("audit", "--command", script(program), "--epsilon", "0.5", "--trials", "4000", "--json")
    assert run(monkeypatch, *command) == 1
    (row,) = json.loads(capsys.readouterr().out)
    assert 0.8 < row["epsilon_lower"] < np.log(3)


def script(text: str) -> str:
    return f"{shlex.quote(sys.executable)} -c {shlex.quote(text)} {{world}} {{n}}"


FAILING = [
    (script("print(1)"), "--command: expected 500 lines in world 0, got 1; kept in out/releases0.jsonl: 1", 1),
    (
        script("print(1); print('a b')"),
        "--command: expected a release in JSON on every line in world 0, got 'a b' in",
        1,
    ),
    (
        script("import sys; print(1); print(2); sys.exit('no such data')"),
        "--command: expected a program that ends with status 0 in world 0, got status 1 after 2 of 500 releases "
        "(it says: no such data); kept in out/releases0.jsonl: 2",
        2,
    ),
    (
        script("import time; print(1, flush=True); time.sleep(60)"),
        "--command: expected 500 releases within 1 seconds in world 0, got 1; kept in out/releases0.jsonl: 1",
        1,
    ),
    (
        script("import subprocess; print(1, flush=True); subprocess.Popen(['sleep', '60'])"),  # which has the output
        "--command: expected 500 releases within 1 seconds in world 0, got 1; kept in out/releases0.jsonl: 1",
        1,
    ),
]


@pytest.mark.parametrize("command, message, kept", FAILING, ids=range(len(FAILING)))
def test_what_a_failing_program_wrote_is_kept(monkeypatch, capsys, folder, command, message, kept):
    more = ("--trials", "1000", "--out", "out", "--time-limit", "1" if "sleep" in command else "60")
    assert run(monkeypatch, "audit", "--command", command, *more) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"dpaudit: {message}")
    assert printed.count("\n") == 1
    assert len((folder / "out" / "releases0.jsonl").read_text().splitlines()) == kept


def test_a_full_disk_does_not_lose_what_a_program_wrote(folder):
    """A limit on the size of files fails in the same place."""
    kept, before = folder / "releases0.jsonl", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (25, before[1]))
    try:
        wanted = r"--out: expected room for the lines of --command, got File too large; kept in .*: 2$"
        with pytest.warns(_validate.InputWarning, match=wanted) as warned:
            found = given.releases(script("[print(10 ** 9 + i) for i in range(500)]"), 0, 500, seconds=60, kept=kept)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [one.category for one in warned].count(_validate.InputWarning) == 1
    assert found == [10**9 + i for i in range(500)]
    assert kept.read_text().split() == ["1000000000", "1000000001"]


def test_the_results_of_a_run_that_ended_meanwhile_are_not_replaced(monkeypatch, capsys, folder):
    page, counted = folder / "out" / "report.html", dpaudit.from_counts

    def meanwhile(*counts, **settings):
        page.write_text("of another run")
        return counted(*counts, **settings)

    monkeypatch.setattr(dpaudit, "from_counts", meanwhile)
    command = ("audit", "--counts", "120", "90", "1000", "1000", "--out", "out")
    assert run(monkeypatch, *command) == 2
    told = capsys.readouterr()
    assert (
        told.err
        == "dpaudit: --out: expected a directory for this run alone, got the results of another: out/report.html\n"
    )
    assert "measured" in told.out
    assert [file.name for file in page.parent.iterdir()] == ["report.html"]
    assert page.read_text() == "of another run"
    assert run(monkeypatch, *command, "--force") == 0
    assert page.read_text() != "of another run"


def test_a_program_that_cannot_be_run_leaves_earlier_releases_alone(monkeypatch, capsys, folder):
    (folder / "out").mkdir()
    (folder / "out" / "releases0.jsonl").write_text("1\n2\n")
    more = ("--trials", "1000", "--out", "out", "--force")
    assert run(monkeypatch, "audit", "--command", "no_such_program {world} {n}", *more) == 2
    assert (folder / "out" / "releases0.jsonl").read_text() == "1\n2\n"
    assert [path.name for path in (folder / "out").iterdir()] == ["releases0.jsonl"]


WRONG = [
    ((), "target: expected FILE:NAME of a mechanism, or one of --scores, --counts and --command, got none"),
    (("a.py:b", "--scores", "s.csv"), "target: expected FILE:NAME of a mechanism, or one of --scores, --counts and"),
    (("--command", "no_such_program {world}"), "--command: expected a program that can be run, got No such file"),
    (("--command", "echo 1"), "--command: expected a program with {world} among its arguments, and {n}, got echo 1"),
    (("--command", "echo '{world}"), "--command: expected a program and its arguments, got No closing quotation"),
    (("--command", "echo {world}", "--until-violation"), "--until-violation: expected none with --command, got True"),
    (("--command", "echo {world}", "--threshold", "1"), "--threshold: expected none without --scores, got 1.0"),
    (("--command", "echo {world}", "--time-limit", "0"), "--time-limit: expected a finite number > 0, got 0.0"),
    (("--command", "touch {world}", "--trials", "200"), "--trials: expected a whole number >= 256, got 200"),
    (("--command", "touch {world}", "--confidence", "2"), "--confidence: expected a number in (0, 1), got 2.0"),
    (("--command", "touch {world}", *CLAIM, "--delta", "2"), "--delta: expected a number in [0, 1), got 2.0"),
    (("--command", "touch {world}", "--delta", "2"), "--delta: expected a number in [0, 1), got 2.0"),
    (("--counts", "1", "0", str(2**70), "8", *CLAIM), "negatives: expected at most 1,099,511,627,776 trials, got 118"),
    (("--counts", "1", "0", "8", str(2**70)), "positives: expected at most 1,099,511,627,776 trials, got 1180591"),
    (("--counts", "1", "0", "8", "8", "--trials", "5"), "--trials: expected none with --counts, got 5"),
    (("--scores", "s.csv", "--trials", "5"), "--trials: expected none with --scores, got 5"),
    (("--scores", "s.csv", "--time-limit", "-4"), "--time-limit: expected none with --scores, got -4.0"),
    (("--counts", "9", "0", "8", "8"), "false_positives: expected a count in 0..8, got 9"),
    (
        ("--counts", "1", "0", "8", "8", "--neighbouring", "replace"),
        "--epsilon: expected the claim that",
    ),
    (("--counts", "1", "0", "8", "8", *CLAIM, "--neighbouring", "x"), "--neighbouring: expected one of"),
    (("--scores", "absent.csv"), "absent.csv: expected a file of scores, got No such file or directory"),
    (("--scores", "s.txt"), "--scores: expected a file named *.csv or *.npz, got s.txt"),
    (("--scores", "broken.npz"), "broken.npz: expected a file of scores, got "),
    (("--scores", "torn.npz"), "torn.npz: expected a file of scores, got File is not a zip file"),
    (("--scores", "changed.npz"), "changed.npz: expected a file of scores, got "),
    (("--scores", "array.npz"), "array.npz: expected a file of scores, got File is not a zip file"),
    (("--scores", "nothing.npz"), "nothing.npz: expected a file of scores, got File is not a zip file"),
    (("--scores", "folder.npz"), "folder.npz: expected a file of scores, got Is a directory"),
    (("--scores", "none.npz"), "none.npz: expected scores0 and scores1, or scores and included, got no arrays"),
    (("--scores", "other.npz"), "other.npz: expected scores0 and scores1, or scores and included, got a"),
    (("--scores", "empty.csv"), "empty.csv: expected columns world,score or score,included, or one column of scores"),
    (("--scores", "three.csv"), "three.csv: expected columns world,score or score,included, or one column of scores"),
    (("--scores", "one.csv"), "one.csv: expected scores of both worlds, got none of world 1"),
    (("--scores", "third.csv"), "third.csv, line 3: expected world 0 or 1, got 2"),
    (("--scores", "word.csv"), "word.csv, line 3: expected a number, got high"),
    (("--scores", "hole.csv"), "hole.csv, line 2: expected a number, got nothing"),
    (("--scores", "nan.csv"), "scores1: expected numbers, got 1 NaN, the first at index 1"),
    (("--scores", "bits.csv"), "bits.csv: expected a header, world,score or scores0,scores1, because a column"),
    (("--scores", "last.csv"), "last.csv: expected a header, world,score or scores0,scores1, because a column"),
    (("--scores", "named.csv"), "named.csv: expected a header, world,score or scores0,scores1, because a column"),
    (("--scores", "first.csv"), "first.csv, line 1: expected numbers, or a header without any, got 0.5,high"),
    (("--scores", "comma.csv"), "comma.csv, line 3: expected at most 2 cells, as in the first row, got 0,1,5"),
    (("--scores", "twice.csv"), "twice.csv: expected one column score, got 2"),
    (("--scores", "half.csv"), "half.csv, line 2: expected included of 0 or 1, got 0.5"),
    (("--scores", "integer.npz"), "included: expected booleans, one for each of at least 4 scores"),
    (("--scores", "fair.csv", "--threshold", "1"), "--threshold: expected none for the scores of one training"),
]


@pytest.mark.parametrize("options, message", WRONG)
def test_a_mistake_is_one_line(monkeypatch, capsys, folder, options, message):
    (folder / "broken.npz").write_bytes(b"not an archive")
    whole = (folder / FORMS["npz"]()).read_bytes()
    (folder / "torn.npz").write_bytes(whole[:3000])
    (folder / "changed.npz").write_bytes(whole[:3000] + b"changed" + whole[3007:])
    (folder / "nothing.npz").write_bytes(b"")
    (folder / "folder.npz").mkdir()
    with open("array.npz", "wb") as file:
        np.save(file, np.ones(3))
    np.savez("none.npz")
    np.savez("other.npz", a=np.ones(3))
    np.savez("integer.npz", scores=np.arange(8.0), included=np.arange(8) % 2)
    for name, text in {
        "empty": "",
        "three": "1,2,3\n",
        "one": "world,score\n0,1\n0,2\n",
        "third": "world,score\n0,1\n2,2\n",
        "word": "world,score\n0,1\n1,high\n",
        "hole": "a,b\n,1\n2,2\n",
        "nan": "a,b\n1,1\n2,nan\n",
        "bits": "0,1\n1,0\n",
        "last": "0.5,0\n0.7,1\n",
        "named": "member,score\n0,0.5\n1,0.7\n",
        "first": "0.5,high\n0.7,0.1\n",
        "comma": "world,score\n1,2\n0,1,5\n",
        "twice": "world,score,score\n0,1,2\n1,2,1\n",
        "half": "score,included\n1,0.5\n",
        "fair": "score,included\n1,true\n2,False\n",
    }.items():
        (folder / f"{name}.csv").write_text(text)
    assert run(monkeypatch, "audit", *options) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(f"dpaudit: {message}")
    assert printed.err.count("\n") == 1
    assert printed.out == ""
    assert not (folder / "0").exists()  # no program has run


def test_the_claim_of_the_command_line_replaces_the_file_s(monkeypatch, capsys, folder):
    (folder / "mine.py").write_text(
        "import jax, dpaudit\nx0, x1, claim = 0.0, 1.0, dpaudit.Claim(1.0)\n"
        "def noisy(key, x):\n    return x + jax.random.laplace(key)\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert run(monkeypatch, "audit", "mine.py:noisy") == 0
    assert run(monkeypatch, "audit", "mine.py:noisy", "--epsilon", "0.5") == 1
    assert "ε = 0.5" in capsys.readouterr().out
