"""Paper 000's experiment: what is made again of one data set, and the paper's numbers beside it."""

import copy
from types import SimpleNamespace

import pytest

from dpaudit._validate import InputError
from dpaudit.report.rows import read_rows, write_rows
from experiments import overview, pages
from experiments.paper000 import claims, page, run
from experiments.paper000.published import EPSILONS, QUOTED, TABLE_1
from experiments.paper000.run import AUDITED, main, published, stands


@pytest.mark.parametrize("quantity", AUDITED)
def test_what_is_audited_is_made_again_and_all_else_stays(quantity):
    def of(quantity, dataset, craft, epsilon):
        return {"quantity": quantity, "setting": {"dataset": dataset, "craft": craft, "epsilon": epsilon}}

    sweep = {"quantity": "sweep_accuracy_percent", "setting": {"dataset": "mnist"}}
    made = [of(quantity, "cifar10 (JPEG)", "benign", 0.5), sweep]
    assert not stands(of(quantity, "cifar10 (JPEG)", "benign", 0.5), made)
    for other in (("cifar10", "benign", 0.5), ("cifar10 (JPEG)", "dummy", 0.5), ("cifar10 (JPEG)", "benign", 4.0)):
        assert stands(of(quantity, *other), made)
    assert stands(of(next(q for q in AUDITED if q != quantity), "cifar10 (JPEG)", "benign", 0.5), made)
    assert stands(sweep, made)
    assert stands({"quantity": "worst_pair_norm", "setting": {}}, made)


def test_one_audit_is_written_beside_the_others(tmp_path, monkeypatch):
    """Its rows replace its own alone, in both files, also where another one was asked for and not reached. What was
    audited is made up, and nothing is played."""

    def row(craft, epsilon, accuracy):
        return {"dataset": "mnist", "craft": craft, "epsilon": epsilon, "accuracy": accuracy}

    def comparison(audit):
        setting = {field: audit[field] for field in ("dataset", "craft", "epsilon")}
        return of("accuracy_percent", setting, audit["accuracy"], None)

    def of(quantity, setting, ours, part):
        return {"quantity": quantity, "setting": setting, "ours": ours, "made_by": {"part": part}}

    def grid(rows, datasets, options):
        assert (datasets, options.crafts, options.epsilons) == (["mnist"], ["benign", "collusion"], [0.5])
        made = row("benign", 0.5, 3.0)
        rows.add("accuracy_percent", comparison(made)["setting"], made["accuracy"], scale="")
        rows.finish_part("benign")
        return [made]

    before = [row("benign", 4.0, 0.0), row("benign", 0.5, 1.0), row("collusion", 0.5, 2.0)]
    write_rows([comparison(audit) for audit in before], tmp_path / "results.json")
    write_rows([of("angle_degrees", {}, 90.0, "sweep")], tmp_path / "results.sweep.json")
    write_rows(before, tmp_path / "results_rows.json")
    monkeypatch.setattr(run, "grid", grid)
    monkeypatch.setattr(run, "relaxation", lambda rows, audits: None)
    monkeypatch.setattr(run.data, "available", lambda _: [SimpleNamespace(name="mnist", contents="found")])
    named = ["--only", "mnist", "--crafts", "benign", "collusion", "--epsilons", "0.5", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["ldp_client_audit", *named])
    main()
    assert [audit["accuracy"] for audit in read_rows(tmp_path / "results_rows.json")] == [0.0, 2.0, 3.0]
    assert [found["ours"] for found in read_rows(tmp_path / "results.json")] == [0.0, 2.0, 3.0]
    assert [found["ours"] for found in read_rows(tmp_path / "results.sweep.json")] == [90.0]


@pytest.mark.parametrize("named", [["--epsilons", "0.5"], ["--crafts", "benign"]])
def test_a_part_of_the_audits_of_no_named_data_set_would_lose_the_others(named, monkeypatch):
    monkeypatch.setattr("sys.argv", ["ldp_client_audit", *named])
    with pytest.raises(InputError, match=r"^--only: expected the data sets to audit .*; other rows stay, got none$"):
        main()


def test_the_paper_s_numbers_stand_beside_its_own_settings_alone():
    assert published("benign", 4.0) == (TABLE_1["benign"][EPSILONS.index(4.0)], QUOTED["benign"])
    assert published("dummy", 0.5) == (TABLE_1["dummy"][0], None)
    assert published("likeliest_flip", 4.0) == published("benign", 3.0) == (None, None)


EXACT, LOSSY = "cifar10_exact_subset", "cifar10 (JPEG)"


def compared(dataset, craft, epsilon, right=60.0, shown=1.0, best=1.0, *, seed=0):
    """The three rows of a made-up audit, with bounds half a unit to either side."""
    numbers = {"accuracy_percent": right, "epsilon_hat": shown, "epsilon_optimal": best}
    setting = {"dataset": dataset, "craft": craft, "epsilon": epsilon}
    shared = {"setting": setting, "seed": seed, "seconds": 900.0}
    return [
        {"quantity": name, "ours": ours, "ours_low": ours - 0.5, "ours_high": ours + 0.5} | shared
        for name, ours in numbers.items()
    ]


def copies(seed=1, **differs):
    """Both copies of CIFAR-10 in two settings at the promise, and in one at another; at a third, one copy alone."""
    common = (("benign", 4.0), ("dummy", 4.0))
    rows = [row for name in (LOSSY, EXACT) for craft, epsilon in common for row in compared(name, craft, epsilon)]
    rows += compared(LOSSY, "dummy", 1.0) + compared(EXACT, "dummy", 1.0, seed=seed, **differs)
    return rows + compared(LOSSY, "dummy", 2.0, 99.0) + compared("mnist", "dummy", 2.0, 1.0)


def test_both_copies_of_cifar10_stand_side_by_side_at_every_promise_that_both_have():
    head, _, *lines = page.copies(copies(right=60.2)).splitlines()
    assert head.startswith("| setting | right %, exact | right %, JPEG | ")
    assert [line.split(" | ")[0] for line in lines] == ["| benign, ε = 4", "| dummy, ε = 1", "| dummy, ε = 4"]
    assert "| 60.2 [59.7, 60.7] | 60.0 [59.5, 60.5] | 1.00 [0.50, 1.50] | 1.00 [0.50, 1.50] |" in lines[1]
    assert lines[1].endswith("| 1.00 [0.50, 1.50] | 0.25 |")


@pytest.mark.parametrize("differs", [{"right": 61.1}, {"right": 58.9}, {"shown": 2.1}, {"best": -0.1}])
def test_copies_are_not_alike_where_one_interval_of_one_promise_is_apart(differs):
    assert not page.alike(copies(**differs)).holds
    near = page.alike(copies(right=60.9, shown=0.1))
    assert near.holds
    assert near.values == {"count": 3, "most": pytest.approx(0.9)}


def test_a_promise_has_draws_of_its_own_where_no_other_has_its_seed():
    assert page.own_draws(copies()).holds
    assert not page.own_draws(copies(seed=0)).holds
    assert not page.own_draws(copies() + compared(EXACT, "benign", 1.0, seed=2)).holds


@pytest.fixture
def rows():
    return copy.deepcopy(pages.rows_of("paper000"))


def test_a_claim_that_another_l_could_keep_is_open_and_fails_where_none_does(rows):
    assert claims.flipped(rows).holds is None
    for row in pages.select(rows, "sweep_accuracy_percent", craft="gradient_flip"):
        row["ours"] = min(row["ours"], 90.0)
    assert claims.flipped(rows).holds is False
    (row,) = pages.select(rows, "epsilon_hat", dataset="mnist", craft="gradient_flip", epsilon=4.0)
    row |= {"ours_low": 3.9, "ours_high": 4.1}
    assert claims.flipped(rows).holds is True


def test_pairs_that_epsilon_tells_apart_and_right_guesses_do_not_leave_a_claim_open(rows):
    assert claims.hard_to_tell(rows).holds is None
    for row in claims.at_promise(rows, "accuracy_percent", *claims.HARD):
        row |= {"ours_low": 90.0, "ours_high": 91.0}
    assert claims.hard_to_tell(rows).holds is False
    for quantity in ("accuracy_percent", "epsilon_hat"):
        for row in claims.at_promise(rows, quantity, *claims.HARD):
            row |= {"ours_low": 0.1, "ours_high": 0.2}
    assert claims.hard_to_tell(rows).holds is True


def test_hours_are_of_all_runs_of_a_setting(rows):
    own = pages.select(rows, "epsilon_hat", dataset="cifar10_exact_subset", craft="benign")
    assert len({row["seed"] for row in own}) == 4
    for row in own:
        row["seconds"] = 3600.0
    (line,) = (line for line in page.optimal(rows).splitlines() if line.startswith("| cifar10_exact_subset, benign |"))
    assert line.endswith("| 4.00 |")


def test_claims_of_ours_are_not_counted_as_the_papers():
    every = [claim for folder in pages.FOLDERS[:5] for claim in overview.claims_of(folder)]
    ours = [claim for claim in every if "(our " in claim.says]
    assert len(ours) == 2
    assert overview.counted([]).values["claims"] == len(every) - len(ours)
