"""Scores are a function of (key, world, trial) alone, for any batch size, device count, restart, number of trials."""

import io
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jax.errors import JaxRuntimeError

from dpaudit import _validate, play
from dpaudit._engine import game
from tests.interrupting import Killed, killed_at

KEY = jax.random.key(3)
TRIALS = 1500  # several blocks of the kernel below


def release(key, world):
    """1,000 entries, so that a reduction over them could be ordered in many ways."""
    return jax.random.normal(key, (1000,)) + 0.1 * world


def score(z):
    return jnp.sum(jnp.exp(z) * jnp.cos(z)) / jnp.sqrt(jnp.sum(z * z))


@pytest.fixture(scope="module")
def whole() -> np.ndarray:
    return play(KEY, release, score, TRIALS)


def test_one_row_a_world_and_fresh_randomness_in_every_trial(whole):
    assert whole.shape == (2, TRIALS)
    assert whole.dtype == np.float32
    assert len(np.unique(whole)) == whole.size

    def ends(key, world):
        assert type(world) is int
        return jax.random.normal(key, (2,)) + 10 * world

    scores = play(KEY, ends, lambda z: z, 5000)
    for world in (0, 1):
        for column in scores[world].T:
            assert scipy.stats.kstest(column - 10 * world, "norm").pvalue > 1e-4
    everything = np.concatenate([scores[0], scores[1] - 10], axis=1)  # no two draws of a trial go together
    assert (np.abs(np.corrcoef(everything.T) - np.eye(4)) <= 5 / math.sqrt(5000)).all()


def test_another_key_plays_another_game(whole):
    assert not np.isin(play(jax.random.key(4), release, score, 256), whole).any()


@pytest.mark.parametrize(
    "wrong, got",
    [(lambda z: z + 1j, "complex64"), (lambda z: z[:0], "float32[0]"), (lambda z: jax.random.key(0), "key<fry>")],
)
def test_a_score_is_made_of_real_numbers(wrong, got):
    with pytest.raises(_validate.InputError, match=rf"^score: expected a real number or .*, got {re.escape(got)}"):
        play(KEY, release, wrong, 3)


@pytest.mark.parametrize("batch", [1, 7, 64, None])
def test_scores_are_bit_identical_for_any_batch_and_extend(batch, whole):
    for trials in (1, 256, 300, TRIALS):
        np.testing.assert_array_equal(play(KEY, release, score, trials, batch=batch), whole[:, :trials])


def watched(monkeypatch, fails=lambda done, call: False):
    """Notes what is launched and read; a launch may fail for a lack of memory."""
    seen, launch, first = [], game.Game.call, game.Game.first

    def call(self, done):
        seen.append(("launched", done))
        if fails(done, len(seen)):
            raise JaxRuntimeError("RESOURCE_EXHAUSTED: by the test")
        return launch(self, done)

    def read(self, played, rows):
        seen.append(("read", rows))
        return first(self, played, rows)

    monkeypatch.setattr(game.Game, "call", call)
    monkeypatch.setattr(game.Game, "first", read)
    return seen


def test_the_next_call_is_launched_before_the_last_is_read(whole, monkeypatch):
    seen = watched(monkeypatch)
    np.testing.assert_array_equal(play(KEY, release, score, TRIALS, batch=1), whole)
    launched = [done for what, done in seen if what == "launched"]
    assert len(launched) > 2
    assert launched == sorted(set(launched))  # each once, in order
    assert [what for what, _ in seen][:4] == ["launched", "launched", "read", "launched"]


def test_a_call_that_does_not_fit_beside_the_last_is_launched_after_it(whole, monkeypatch):
    seen = watched(monkeypatch, lambda done, place: done > 0 and place == 2)
    np.testing.assert_array_equal(play(KEY, release, score, TRIALS, batch=1), whole)
    sizes = {rows for what, rows in seen if what == "read"}
    assert len(sizes) <= 2  # whole calls, of one size, and the last


def test_trials_that_call_python_are_not_launched_early(monkeypatch):
    def asked(z):
        return jax.pure_callback(np.asarray, jax.ShapeDtypeStruct(z.shape, z.dtype), z, vmap_method="broadcast_all")[0]

    seen = watched(monkeypatch)
    play(KEY, release, asked, 200, batch=1)
    assert [what for what, _ in seen] == ["launched", "read"] * (len(seen) // 2)
    assert len(seen) > 2


@pytest.mark.integration
def test_a_matrix_product_in_the_trial_is_bit_identical_too():
    weights = jax.random.normal(jax.random.key(9), (200, 200))

    def product(z):
        return jnp.sum(jnp.tanh(weights @ z[:200]))

    whole = play(KEY, release, product, 600)
    for trials, batch in ((1, None), (257, 1), (600, 1)):
        np.testing.assert_array_equal(play(KEY, release, product, trials, batch=batch), whole[:, :trials])


@pytest.mark.parametrize("batch", [None, 300])
def test_a_killed_run_goes_on_from_its_checkpoint(tmp_path, whole, batch):
    file = tmp_path / "game.npz"
    with pytest.raises(Killed):
        play(KEY, release, score, TRIALS, batch=1, checkpoint=file, progress=killed_at(500))
    seen = []
    resumed = play(KEY, release, score, TRIALS, batch=batch, checkpoint=file, progress=seen.append)
    np.testing.assert_array_equal(resumed, whole)
    assert seen[0] > 500  # what was kept is not played again
    assert seen[-1] == TRIALS
    seen.clear()
    np.testing.assert_array_equal(play(KEY, release, score, TRIALS, checkpoint=file, progress=seen.append), whole)
    assert seen == []  # a finished checkpoint plays nothing


def test_a_checkpoint_that_died_while_being_written_leaves_the_old_one(tmp_path, whole, monkeypatch):
    file = tmp_path / "game.npz"
    with pytest.raises(Killed):
        play(KEY, release, score, TRIALS, batch=1, checkpoint=file, progress=killed_at(256))
    old = file.read_bytes()

    def half_written(stream, **arrays):
        whole_file = io.BytesIO()
        real_savez(whole_file, **arrays)
        stream.write(whole_file.getvalue()[:100])
        raise Killed

    real_savez = np.savez
    with monkeypatch.context() as broken:
        broken.setattr(np, "savez", half_written)
        with pytest.raises(Killed):
            play(KEY, release, score, TRIALS, batch=1, checkpoint=file)
    assert file.read_bytes() == old
    np.testing.assert_array_equal(play(KEY, release, score, TRIALS, checkpoint=file), whole)


def test_torn_and_foreign_checkpoints_are_refused_and_kept(tmp_path):
    file = tmp_path / "game.npz"
    play(KEY, release, score, 300, checkpoint=file)
    good = file.read_bytes()
    with pytest.raises(
        _validate.InputError, match=r"^checkpoint: expected one of this audit, got game\.npz: made by "
    ):
        play(jax.random.key(4), release, score, 300, checkpoint=file)
    with pytest.raises(_validate.InputError, match=r"^checkpoint: expected one of this audit, got game\.npz"):
        play(KEY, release, score, 301, checkpoint=file)
    assert file.read_bytes() == good
    other = io.BytesIO()
    np.savez(other, something=np.ones(3))
    whole, ours = "a whole checkpoint", "a checkpoint of dpaudit"
    foreign = {good[: len(good) // 2]: whole, b"": whole, b"not a checkpoint": whole, other.getvalue(): ours}
    for torn, wanted in foreign.items():
        file.write_bytes(torn)
        with pytest.raises(_validate.InputError, match=rf"^checkpoint: expected {wanted}, got game\.npz"):
            play(KEY, release, score, 300, checkpoint=file)
        assert file.read_bytes() == torn


def test_observations_may_be_trees_and_scores_arrays():
    def tree(key, world):
        return {"z": jax.random.normal(key, (3,)), "world": world}

    def vector(seen):
        return jnp.append(seen["z"], seen["world"])

    scores = play(KEY, tree, vector, 5)
    assert scores.shape == (2, 5, 4)
    np.testing.assert_array_equal(scores[..., 3], [[0] * 5, [1] * 5])


@pytest.mark.parametrize("room", [game.CPU, game.accelerator_room(80e9)])
def test_a_block_holds_fewer_trials_the_larger_they_are(room):
    for trial_bytes in (1, 4, 4000, 70_000, room.bytes, 1 << 30):
        size = game.block_size(trial_bytes, room)
        assert size == 1 << (size.bit_length() - 1)  # a power of two
        assert size == 1 or size * trial_bytes <= room.bytes
        assert size == room.trials or 2 * size * trial_bytes > room.bytes


def test_an_accelerators_blocks_grow_with_its_memory_and_not_with_what_is_left_of_it():
    found = [
        game.accelerator_room(gib * 2**30).bytes >> 20 for gib in (0.1, 12, 15.9, 16, 60, 63, 105, 1000, math.inf)
    ]
    assert found == [2, 32, 32, 64, 128, 128, 256, 256, 256]
    of_a_release = 4 * 26_010
    assert game.block_size(of_a_release, game.accelerator_room(105 * 2**30)) == 2048
    assert game.block_size(of_a_release, game.CPU) == 16


def test_trials_that_fill_a_block_alone_are_the_same_ones_in_the_same_order():
    def wide(trial):
        return jnp.sum(jax.random.normal(jax.random.fold_in(KEY, trial), (1 << 19,)).at[0].set(trial))

    alone = game.game(wide, 5)
    assert alone.block == 1
    np.testing.assert_allclose(game.sweep(wide, 5), jax.vmap(wide)(jnp.arange(5, dtype=jnp.uint32)), rtol=1e-4)


def test_larger_blocks_play_the_same_trials(whole, monkeypatch):
    """An accelerator's program, on this device: the same numbers but for the order of sums."""
    monkeypatch.setattr(game, "CPU", game.accelerator_room(2 * 2**30))
    assert game.game(game.both_worlds(game.trial_key(KEY), release, score), TRIALS).block == 2048
    large = play(KEY, release, score, TRIALS)
    np.testing.assert_allclose(large, whole, rtol=1e-4)


@pytest.mark.parametrize("kind", [tuple, list])
def test_a_score_of_several_parts_is_refused(kind):
    """On a CPU only the first one would have been played."""
    with pytest.raises(_validate.InputError, match=f"^score: expected a number or an array, got {kind.__name__}$"):
        play(KEY, lambda key, world: (jax.random.normal(key), jnp.float32(world)), kind, 4)


@pytest.mark.parametrize(
    "trials, settings, message",
    [
        (0, {}, "^trials: expected a whole number >= 1, got 0$"),
        (2.5, {}, "^trials: expected a whole number >= 1, got 2.5$"),
        (2**31 + 1, {}, r"^trials: expected at most 2\^31, got 2147483649$"),
        (5, {"batch": 0}, "^batch: expected a whole number >= 1, got 0$"),
        (5, {"batch": -3}, "^batch: expected a whole number >= 1, got -3$"),
    ],
)
def test_bad_sizes_are_refused(trials, settings, message):
    with pytest.raises(_validate.InputError, match=message):
        play(KEY, release, score, trials, **settings)
