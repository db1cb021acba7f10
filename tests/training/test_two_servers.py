"""Tests trainings through two servers: equal to the simulation, resumed after a kill, within the budget."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpaudit import _validate
from dpaudit.cli.secure_train import Follower
from dpaudit.secure.channel import ChannelError
from dpaudit.secure.noise import accounting, binomial
from dpaudit.secure.noise.binomial import Binomial
from dpaudit.secure.protocol import agreement, schemes, transfer_noise, two_server_sum
from dpaudit.secure.protocol.agreement import Terms
from dpaudit.secure.protocol.fixed_point import dequantize
from dpaudit.training.two_servers import Model, Participant, Spending, Task, batches
from tests.secure.serving import Pair, pair

OWNERS, EACH, BATCH = ("alice", "bob", "carol"), 7, 3
FEATURES, LABELS = (
    np.random.default_rng(5).standard_normal((len(OWNERS) * EACH, 4)).astype(np.float32),
    np.random.default_rng(6).integers(0, 2, len(OWNERS) * EACH),
)


def loss(params: Any, example: Any) -> jax.Array:
    features, label = example
    return optax.softmax_cross_entropy_with_integer_labels(features @ params["w"] + params["b"], label)


def records(owner: str) -> tuple[np.ndarray, np.ndarray]:
    own = slice(OWNERS.index(owner) * EACH, (OWNERS.index(owner) + 1) * EACH)
    return FEATURES[own], LABELS[own]


# An optimizer with a state, and whose steps grow with the gradient: Adam's would be the same of a wrong mean.
TASK = Task(loss, {"w": jnp.zeros((4, 2)), "b": jnp.zeros(2)}, records, optax.sgd(0.5, momentum=0.9))


def terms(mode: str = "noisy", **more: Any) -> Terms:
    noise: dict[str, Any] = {"noise_multiplier": 0.5} if mode == "noisy" else {}
    size: dict[str, Any] = {"owners": OWNERS, "dimension": 10, "examples": BATCH * len(OWNERS), "clip_norm": 0.7}
    asked: dict[str, Any] = {**size, "mode": mode, **noise, **more}
    return agreement.terms(**asked)


def participant(both: Pair, mine: Terms, name: str, **more: Any) -> Participant:
    addresses = f"127.0.0.1:{both[0].port}", f"127.0.0.1:{both[1].port}"
    return Participant(name, TASK, mine, addresses, **{"batch_size": BATCH, "seed": 3, "patience": 20.0} | more)


@contextmanager
def players(both: Pair, mine: Terms, folder: Path | None = None) -> Iterator[list[Participant]]:
    made = [participant(both, mine, name, folder=folder and folder / name) for name in OWNERS]
    yield made
    for one in made:
        one.close()


def step(all_of: list[Participant]) -> np.ndarray:
    """Takes a step with all of them; returns the opened sum."""
    with ThreadPoolExecutor(len(all_of)) as pool:
        opened = list(pool.map(Participant.take_part, all_of))
    assert all(np.array_equal(opened[0].values, other.values) for other in opened)
    return opened[0].values


@pytest.mark.parametrize("protocol", ["circuit", "transfers"])
def test_released_sums_are_the_simulation_s_given_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    drawn: list[np.ndarray] = []

    def fair_bits(source: Any, shape: Any) -> np.ndarray:
        drawn.append(two_server_sum_bits(source, shape))
        return drawn[-1]

    two_server_sum_bits = two_server_sum.fair_bits
    for module in (two_server_sum, transfer_noise):
        monkeypatch.setattr(module, "fair_bits", fair_bits)
    mine = terms(protocol=protocol)
    scheme = schemes.spgc(schemes.Step(len(OWNERS), BATCH * len(OWNERS), 0.7, 0.5))
    assert scheme.scale == mine.scale
    law, twin = Binomial(mine.coins, mine.step_bits), Model(TASK, mine)
    chosen = {name: batches(EACH, BATCH, 3, name) for name in OWNERS}
    with pair(tmp_path, mine, lambda line: None) as both, players(both, mine) as all_of:
        for number in range(1, 4):
            opened = step(all_of)
            one, other = drawn[2 * number - 2 : 2 * number]  # a draw of each server
            assert one.shape == other.shape == (law.bits, 10)
            noise = binomial.from_bits(law, (one ^ other).T)
            rows = {name: chosen[name](number) for name in OWNERS}
            sums = [twin.contribution(tuple(leaf[rows[name]] for leaf in records(name))) for name in OWNERS]
            released = schemes.release(scheme, sums, noise)
            np.testing.assert_array_equal(released, dequantize(opened, mine.scale))
            assert (noise != 0).any()
            assert not np.array_equal(schemes.release(scheme, sums, np.roll(noise, 1)), released)
            twin.learn(opened, mine.examples)
            for one_of in all_of:
                jax.tree.map(np.testing.assert_array_equal, one_of.model.params, twin.params)
    assert 6 <= len(drawn) <= 8  # those of the next step may have begun


def test_an_owner_s_contribution_is_the_sum_of_its_clipped_gradients() -> None:
    mine = terms("plain")
    model, batch = Model(TASK, mine), records("bob")
    each = [jax.grad(loss)(TASK.initial, (x, y)) for x, y in zip(*batch, strict=True)]
    flat = np.array([np.concatenate([np.ravel(g["b"]), np.ravel(g["w"])]) for g in each], np.float64)
    norms = np.linalg.norm(flat, axis=1)
    assert (norms > 0.7).any()
    clipped = flat * np.minimum(1, 0.7 / norms)[:, None]
    off = dequantize(model.contribution(batch), mine.scale) - clipped.sum(axis=0)
    assert np.abs(off).max() < 1e-4
    monkey = Model(TASK, terms("plain")._replace(clip_norm=1.4, levels=2 * mine.levels))
    assert np.abs(dequantize(monkey.contribution(batch), mine.scale) - clipped.sum(axis=0)).max() > 1e-2


def test_a_gradient_that_is_not_finite_adds_zero() -> None:
    features, labels = (leaf.copy() for leaf in records("bob"))
    model = Model(TASK, terms("plain"))
    wanted = model.contribution((features[1:], labels[1:]))
    features[0] = np.inf
    np.testing.assert_array_equal(model.contribution((features, labels)), wanted)


def test_a_loss_that_dp_sgd_refuses_is_refused() -> None:
    unused = TASK._replace(loss=lambda params, example: (example[0] @ params["w"]).sum())
    with pytest.raises(_validate.InputError, match="expected a parameter that the loss uses"):
        Model(unused, terms("plain")).contribution(records("bob"))


@pytest.mark.parametrize(("after", "wanted"), [(set(), 4.0), ({2, 3}, 1.5), ({1, 2, 3, 4}, 4.0)])
def test_steps_before_which_the_model_was_measured_are_left_out_of_a_step_s_seconds(
    after: set[int], wanted: float
) -> None:
    follow = object.__new__(Follower)
    follow._times, follow._after = [10.0, 11.0, 17.0, 24.0, 26.0], after
    assert follow._seconds() == wanted
    follow._times = [10.0]
    assert follow._seconds() is None


def test_a_step_goes_along_the_mean_of_the_sum() -> None:
    mine = terms("plain")
    model = Model(TASK, mine)
    total = model.contribution(records("bob"))
    model.learn(total, EACH)
    wanted = -0.5 * dequantize(total, mine.scale) / EACH
    found = np.concatenate([np.ravel(model.params["b"]), np.ravel(model.params["w"])])
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-7)
    assert np.abs(wanted).max() > 1e-2


@pytest.mark.integration
def test_a_killed_owner_goes_on_with_the_shares_that_it_had_made(tmp_path: Path) -> None:
    """Bob is killed after his shares of step 2 have arrived, and his last checkpoint is of step 1."""
    mine = terms("plain")
    with pair(tmp_path / "alone", mine, lambda line: None) as both, players(both, mine) as all_of:
        alone = [step(all_of) for _ in range(4)]
        wanted = all_of[0].model.params
    with pair(tmp_path / "killed", mine, lambda line: None) as both:
        with players(both, mine, tmp_path / "kept") as all_of:
            sums = [step(all_of)]
            for one in all_of:
                one.save()
            bob = all_of[1]
            rows = batches(EACH, BATCH, 3, "bob")(2)
            integers = bob.model.contribution(tuple(leaf[rows] for leaf in records("bob")))
            bob._owner.submit(2, integers)
            bob.close()
            forgetful = participant(both, mine, "bob")  # splits anew, as a process without the kept shares would
            with pytest.raises(_validate.InputError, match="expected the share of step 2 that came before"):
                forgetful._owner.submit(2, integers)
            forgetful.close()
            all_of[1] = again = participant(both, mine, "bob", folder=tmp_path / "kept" / "bob")
            assert (again.step, again._owner.pending) == (1, 2)
            sums += [step(all_of)]
        with players(both, mine, tmp_path / "kept") as all_of:  # all begin again after step 1 and read the sum of 2
            assert [one.step for one in all_of] == [1, 1, 1]
            sums += [step(all_of) for _ in range(3)][1:]
            jax.tree.map(np.testing.assert_array_equal, all_of[1].model.params, wanted)
    np.testing.assert_array_equal(sums, alone)
    assert (tmp_path / "kept" / "bob" / "shares").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "kept" / "bob").stat().st_mode & 0o777 == 0o700


def test_shares_that_never_left_are_sent_after_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = terms("plain")
    with pair(tmp_path, mine, lambda line: None) as both, players(both, mine, tmp_path / "kept") as all_of:
        step(all_of)
        all_of[1].save()
        with monkeypatch.context() as killed:
            killed.setattr(all_of[1]._owner, "_send", lambda split, until: None)
            all_of[1]._owner.submit(2, np.arange(10))
        all_of[1].close()
        all_of[1] = again = participant(both, mine, "bob", folder=tmp_path / "kept" / "bob")
        assert (again.step, again._owner.pending) == (1, 2)
        rows = [batches(EACH, BATCH, 3, name)(2) for name in ("alice", "carol")]
        others = zip((all_of[0], all_of[2]), rows, strict=True)
        sums = [player.model.contribution(tuple(leaf[own] for leaf in player._records)) for player, own in others]
        np.testing.assert_array_equal(step(all_of), sums[0] + sums[1] + np.arange(10))


def test_a_checkpoint_of_another_training_is_refused(tmp_path: Path) -> None:
    mine = terms("plain")
    with pair(tmp_path, mine, lambda line: None) as both:
        with players(both, mine, tmp_path / "kept") as all_of:
            step(all_of)
            all_of[0].save()
        folder = tmp_path / "kept" / "alice"
        with pytest.raises(_validate.InputError, match="made by another batches"):
            participant(both, mine, "alice", folder=folder, seed=4)
        (folder / "model.npz").unlink()
        with pytest.raises(_validate.InputError, match="kept: expected shares of alice in this training"):
            participant(both, mine._replace(clip_norm=0.8), "alice", folder=folder)


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        (TASK._replace(optimizer=optax.sgd(0.4, momentum=0.9)), "program"),
        (TASK._replace(optimizer=optax.adam(0.5)), "program"),
        (TASK._replace(loss=lambda params, example: 2 * loss(params, example)), "program"),
        (TASK._replace(records=lambda owner: (records(owner)[0] + 1, records(owner)[1])), "data"),
        (TASK._replace(initial=jax.tree.map(lambda leaf: leaf + 1, TASK.initial)), "start"),
    ],
)
def test_a_checkpoint_of_another_task_is_refused(tmp_path: Path, changed: Task, part: str) -> None:
    def begun(task: Task) -> Participant:
        return Participant(
            "bob", task, terms("plain"), ("127.0.0.1:1", "127.0.0.1:2"), batch_size=BATCH, folder=tmp_path
        )

    first = begun(TASK)
    first.model.learn(np.arange(10), terms("plain").examples)
    first.step = 1
    first.save()
    first.close()
    again = begun(TASK)
    assert again.step == 1
    jax.tree.map(np.testing.assert_array_equal, again.model.params, first.model.params)
    again.close()
    wanted = f"^checkpoint: expected one of this training, got model.npz: made by another {part}$"
    with pytest.raises(_validate.InputError, match=wanted):
        begun(changed)


def test_fewer_steps_than_the_checkpoint_has_are_refused() -> None:
    """The report would tell of 2 steps of 1."""
    player = Participant("bob", TASK, terms("plain"), ("127.0.0.1:1", "127.0.0.1:2"), batch_size=BATCH)
    player.step, spending = 2, Spending(terms("plain"), 1, 1e-5)
    with pytest.raises(_validate.InputError, match=r"^steps: expected at least the 2 of the checkpoint, got 1$"):
        player.run(1, 1, lambda progress: None, spending)
    assert player.run(2, 1, lambda progress: None, spending) == "done"
    player.close()


def test_a_model_takes_back_the_arrays_of_its_own_optimizer_alone() -> None:
    mine = terms("plain")
    one, other = Model(TASK, mine), Model(TASK._replace(optimizer=optax.sgd(0.5)), mine)
    for model, arrays in ((one, other.arrays()), (other, one.arrays())):
        with pytest.raises(_validate.InputError, match=r"^checkpoint: expected the arrays params"):
            model.restore(arrays)


@pytest.mark.integration
def test_a_training_ends_when_its_budget_is_spent(tmp_path: Path) -> None:
    law = terms(noise_multiplier=20.0)
    one = accounting.epsilon(
        Binomial(law.coins, law.step_bits), sensitivity=2 * law.levels, dimension=10, delta=1e-5, steps=2
    )
    mine = terms(noise_multiplier=20.0, budget=(one * 1.01, 1e-5))
    assert mine.openings == 2
    seen: list[Any] = []
    spending = Spending(mine, 5, 0.5)
    with pair(tmp_path, mine, lambda line: None) as both, players(both, mine) as all_of, ThreadPoolExecutor(3) as pool:
        ended = list(pool.map(lambda player: player.run(5, 1, seen.append, spending), all_of))
        assert [player.step for player in all_of] == [2, 2, 2]
    assert ended == ["budget"] * 3
    last = max(seen, key=lambda progress: progress.step)
    assert (last.step, last.releases) == (2, 2)
    assert 0.9 * one < last.epsilon <= one * 1.01


@pytest.mark.integration
def test_epsilon_without_a_budget_is_the_accounting_s() -> None:
    mine = terms()
    law = Binomial(mine.coins, mine.step_bits)
    wanted = accounting.epsilon(law, sensitivity=2 * mine.levels, dimension=10, delta=1e-3, steps=6)
    assert Spending(mine, 6, 1e-3).epsilon(6) == pytest.approx(wanted, rel=1e-9)
    assert Spending(mine, 6, 1e-3).epsilon(3) < wanted
    assert Spending(terms("plain"), 6, 1e-3).epsilon(1) == np.inf


def test_batches_are_permutations_of_each_epoch() -> None:
    rows = batches(7, 3, 0, "bob")
    epochs = [np.concatenate([rows(2 * epoch + 1), rows(2 * epoch + 2)]) for epoch in range(4)]
    for epoch in epochs:
        assert len(set(epoch.tolist())) == 6
        assert set(epoch.tolist()) <= set(range(7))
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert not np.array_equal(epochs[0], np.concatenate([batches(7, 3, 0, "carol")(at) for at in (1, 2)]))
    np.testing.assert_array_equal(rows(3), batches(7, 3, 0, "bob")(3))


def test_unusable_arguments_are_refused(tmp_path: Path) -> None:
    mine, nowhere = terms("plain"), ("127.0.0.1:1", "127.0.0.1:2")

    def refused(message: str, task: Task = TASK, mine: Terms = mine, batch_size: int = BATCH) -> None:
        with pytest.raises(_validate.InputError, match=message):
            Participant("bob", task, mine, nowhere, batch_size=batch_size)

    refused("dimension: expected 10, the number of parameters, got 11", mine=terms("plain", dimension=11))
    refused("batch_size: expected 9, the examples of the terms, divided among 3 owners, got 2", batch_size=2)
    refused("batch_size: expected at most 7, the records of bob, got 8", batch_size=8)
    checked = terms("plain", owner_examples=BATCH - 1)
    refused(f"batch_size: expected at most {BATCH - 1}, of one owner, got {BATCH}", mine=checked)
    Participant("bob", TASK, checked._replace(owner_examples=BATCH), nowhere, batch_size=BATCH).close()
    uneven = TASK._replace(records=lambda owner: (FEATURES[:3], LABELS[:2]))
    refused(r"records: expected leaves of one length for bob, got lengths \[2, 3\]", task=uneven)
    alone = Participant("bob", TASK, mine, nowhere, batch_size=BATCH, patience=0.3)
    with pytest.raises(ChannelError, match=r"h[12]: "):
        alone.take_part()
    alone.close()
