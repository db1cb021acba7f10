"""The host's loop: cut, killed and resumed it ends where one call ends, bit for bit; nothing foreign is taken up."""

import shutil
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpaudit
from dpaudit.training.dp_sgd import Noise, _train_on, add_noise, dp_sgd, fit, noisy_sums, train
from dpaudit.training.sampling import poisson
from tests.interrupting import Killed, killed_at

KEY = jax.random.key(31)
N, D = 40, 3
SAMPLING = poisson(N, 8)
SETTINGS: dict[str, Any] = {
    "clip_norm": 1.0,
    "batch_size": 8,
    "optimizer": optax.sgd(0.1, 0.9, accumulator_dtype=jnp.float32),
}
SCALE = jnp.arange(1.0, D + 1)
PARAMS = {"w": jnp.zeros(D, jnp.bfloat16), "b": jnp.zeros(()), "none": jnp.zeros((0, 2))}


def loss(params, example):
    features, label = example
    return 0.5 * (features @ (SCALE * params["w"]) + params["b"] + params["none"].sum() - label) ** 2


def data(seed=1):
    features = jax.random.normal(jax.random.key(seed), (N, D))
    return features, features @ jnp.arange(1.0, D + 1)


def remembering_a_key() -> Noise:
    """Noise whose memory holds a typed key, from which the next step's is split."""

    def add(key, total, memory):
        own, following = jax.random.split(memory)
        return add_noise(own, add_noise(key, total, 0.5), 0.5), following

    return Noise(lambda params: jax.random.key(3, impl="rbg"), add)


def sound(noise_multiplier=1.0, **more: Any):
    return dp_sgd(loss, noise_multiplier=noise_multiplier, **SETTINGS | more)


SOUND = sound()
KEYED = noisy_sums(loss, remembering_a_key(), **SETTINGS)


def evaluate(params):
    return {"offset": float(params["b"]), "length": float(jnp.sum(params["w"].astype(jnp.float32) ** 2))}


def run(trainer=SOUND, key=KEY, given=None, steps=25, params=PARAMS, sampling=SAMPLING, **how):
    how = {"every": 10, "evaluate": evaluate, **how}
    return fit(key, trainer, params, data() if given is None else given, sampling, steps, **how)


def killed(folder, trainer=SOUND, at=10, **how):
    with pytest.raises(Killed):
        run(trainer, checkpoint=folder, progress=killed_at(at), **how)


def bits(tree):
    leaves = [jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x for x in tree]
    return [(np.asarray(x).dtype, np.shape(x), np.asarray(x).tobytes()) for x in leaves]


def assert_same(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    assert bits(jax.tree.leaves(one)) == bits(jax.tree.leaves(other))


@pytest.mark.integration
@pytest.mark.parametrize("trainer, steps", [(SOUND, 25), (KEYED, 20)])
def test_killed_and_resumed_it_is_the_run_left_alone(tmp_path, trainer, steps):
    killed(tmp_path / "run", trainer, steps=steps)
    seen = []
    resumed = run(trainer, steps=steps, checkpoint=tmp_path / "run", progress=seen.append)
    assert_same(resumed, run(trainer, steps=steps))
    assert seen == [10, 20, 25][: -(-steps // 10)]  # first what the checkpoint has
    assert [step.name for step in (tmp_path / "run").iterdir()] == [str(steps)]


@pytest.mark.integration
def test_however_it_is_cut_it_is_one_call():
    state, info = train(KEY, SOUND, SOUND.init(PARAMS), data(), SAMPLING, 25)
    for every in (1, 10):
        found = run(every=every, evaluate=None)
        assert_same((found.state, found.info), (state, jax.tree.map(np.asarray, info)))
        assert found.evaluations == {}


def test_evaluations_are_of_the_parameters_after_those_steps():
    found = run()
    np.testing.assert_array_equal(found.evaluations["step"], [10, 20, 25])
    for step, offset in zip((10, 20, 25), found.evaluations["offset"], strict=True):
        assert offset == float(run(steps=step).state.params["b"])


def test_a_finished_run_goes_on_to_more_steps(tmp_path):
    run(steps=20, checkpoint=tmp_path)
    assert_same(run(steps=40, checkpoint=tmp_path), run(steps=40))
    assert_same(run(steps=40, checkpoint=tmp_path), run(steps=40))  # there is nothing left to do
    with pytest.raises(dpaudit.InputError, match="steps: expected at least the 40 of the checkpoint, got 30"):
        run(steps=30, checkpoint=tmp_path)


def test_parts_end_at_multiples_again_after_a_run_that_did_not(tmp_path):
    run(steps=15, checkpoint=tmp_path)
    seen = []
    run(steps=25, checkpoint=tmp_path, progress=seen.append)
    assert seen == [15, 20, 25]


OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("key", {"key": jax.random.key(32)}),
    ("data", {"given": data(2)}),
    ("start", {"params": PARAMS | {"b": jnp.ones(())}}),
    ("program", {"trainer": sound(1.1)}),
    ("program", {"trainer": sound(optimizer=optax.sgd(0.2, 0.9, accumulator_dtype=jnp.float32))}),
    ("program and another sampling", {"sampling": poisson(N, 8, capacity=N - 1)}),
]


@pytest.mark.parametrize("part, other", OTHERS)
def test_another_training_is_refused_and_the_checkpoint_kept(tmp_path, part, other):
    killed(tmp_path / "run", at=20)
    with pytest.raises(
        dpaudit.InputError, match=f"^checkpoint: expected one of this training, got run: made by another {part}$"
    ):
        run(checkpoint=tmp_path / "run", **other)
    assert_same(run(checkpoint=tmp_path / "run"), run())


@pytest.mark.integration
def test_other_constants_are_another_program(tmp_path):
    def trainer(constant):
        return dp_sgd(lambda params, row: loss(params, (constant * row[0], row[1])), noise_multiplier=1.0, **SETTINGS)

    for _ in range(2):
        run(trainer(jnp.array([1.0, 2.0, 3.0])), steps=10, checkpoint=tmp_path)
    with pytest.raises(dpaudit.InputError, match=r"made by another program$"):
        run(trainer(jnp.array([1.0, 2.0, 4.0])), steps=10, checkpoint=tmp_path)


def test_a_torn_checkpoint_is_refused_in_one_line(tmp_path):
    killed(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "10" / "arrays")
    with pytest.raises(dpaudit.InputError, match=r"^checkpoint: expected a whole checkpoint, got run: ") as refused:
        run(checkpoint=tmp_path / "run")
    assert "\n" not in str(refused.value)
    assert (tmp_path / "run" / "10").exists()


def test_a_kill_while_saving_leaves_the_step_before(tmp_path):
    killed(tmp_path)
    (tmp_path / "20.orbax-checkpoint-tmp").mkdir()
    assert_same(run(checkpoint=tmp_path), run())


def test_bad_input_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(dpaudit.InputError, match="checkpoint: expected a folder, got the file file"):
        run(checkpoint=tmp_path / "file")
    with pytest.raises(dpaudit.InputError, match="steps: expected a whole number >= 1, got 0"):
        run(steps=0)
    with pytest.raises(dpaudit.InputError, match="every: expected a whole number >= 1, got 0"):
        run(every=0)
    names = iter("ab")
    with pytest.raises(dpaudit.InputError, match="evaluate: expected the names step, a, as before, got step, b"):
        run(evaluate=lambda params: {next(names): 0.0})


@pytest.mark.integration
def test_a_state_that_nobody_sees_gives_its_memory_to_the_next() -> None:
    given = KEY, SOUND, SOUND.init(PARAMS), data(), SAMPLING, 2
    plans: list[Any] = [of.lower(*given).compile().memory_analysis() for of in (train, _train_on)]
    assert [plan.alias_size_in_bytes for plan in plans] == [0, sum(leaf.nbytes for leaf in jax.tree.leaves(given[2]))]


def test_what_a_caller_holds_stays() -> None:
    """The first parameters, those that were shown, and those of ``train``'s first argument."""
    shown = []

    def keep(params: Any) -> dict[str, float]:
        shown.append(params)
        return {"offset": float(params["b"])}

    fitted = fit(KEY, SOUND, PARAMS, data(), SAMPLING, 6, every=2, evaluate=keep)
    assert [float(params["b"]) for params in shown] == list(fitted.evaluations["offset"])
    assert float(PARAMS["b"]) == 0
    state = SOUND.init(PARAMS)
    train(KEY, SOUND, state, data(), SAMPLING, 2)
    assert int(state.step) == 0
