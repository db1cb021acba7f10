"""The host's loop: cut, killed and resumed it ends where one call ends, bit for bit; it says where a run diverged."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.tree_util import Partial

from dpaudit import _validate
from dpaudit._engine.long_run import Parts
from dpaudit.federated import clients, clip_size
from dpaudit.federated.clip_size import LARGEST
from dpaudit.federated.population import Population
from dpaudit.federated.rounds import Server, diverged, federated, participants, run, simulate

KEY = jax.random.key(61)
DATA = jnp.asarray(np.random.default_rng(7).normal(size=(60, 4)), jnp.float32)
START = {"w": jnp.ones(3), "b": jnp.zeros(())}
ROUNDS, EVERY = 8, 4


def people(offset: int, clients: int = 1_000) -> Population:
    """By arithmetic, which compiles sooner than a random choice."""
    rows = Partial(lambda offset, client: (offset + 7 * client + 13 * jnp.arange(4)) % 60, jnp.int32(offset))
    return Population(clients, rows, rows)


MOMENTUM = optax.sgd(0.1, 0.9)


def server(
    clip_norm: float = 0.5, scale: tuple[float, ...] = (1.0, 2.0, 3.0), m: int = 6, optimizer: Any = MOMENTUM
) -> Server:
    constants = jnp.array(scale)

    def loss(params: Any, example: jax.Array) -> jax.Array:
        return 0.5 * (example[:3] @ (constants * params["w"]) + params["b"] - example[3]) ** 2

    return federated(
        clients.gaussian(clients.gradients(loss), noise_multiplier=0.5),
        clip_size.adaptive_median(clip_norm, every=3),
        clients_per_round=m,
        optimizer=optimizer,
    )


SERVER, POPULATION = server(), people(3)


def simulated(server: Server = SERVER, rounds: int = ROUNDS, **how: Any) -> Parts:
    given = {"key": KEY, "params": START, "population": POPULATION, "data": DATA, "every": EVERY} | how
    params, population, data = (given.pop(name) for name in ("params", "population", "data"))
    return simulate(given.pop("key"), server, params, population, data, rounds, **given)


def assert_same(one: Any, other: Any) -> None:
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for leaf, wanted in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(leaf, wanted)
        assert leaf.dtype == wanted.dtype


@pytest.fixture(scope="module")
def whole() -> tuple[Any, Any]:
    """What one call gives."""
    return run(KEY, SERVER, SERVER.init(START), POPULATION, DATA, ROUNDS)


def evaluate(params: Any) -> dict[str, float]:
    return {"offset": float(params["b"])}


@pytest.mark.integration
def test_however_it_is_cut_it_is_one_call(tmp_path, whole):
    """In two parts, and as a finished run of one part that goes on."""
    seen: list[int] = []
    cut = simulated(evaluate=evaluate, progress=seen.append)
    assert_same((cut.state, cut.info), whole)
    assert seen == cut.evaluations["step"].tolist() == [4, 8]
    first = simulated(rounds=4, checkpoint=tmp_path)
    assert_same(first.info, jax.tree.map(lambda leaf: leaf[:4], whole[1]))
    assert first.state.round == 4
    resumed = simulated(checkpoint=tmp_path, progress=seen.append)
    assert_same((resumed.state, resumed.info), whole)
    assert seen == [4, 8, 4, 8]
    assert resumed.evaluations == {}
    with pytest.raises(_validate.InputError, match=r"^rounds: expected at least the 8 of the checkpoint, got 7$"):
        simulated(rounds=7, checkpoint=tmp_path)


def die_in_the_second_part(folder: str) -> None:
    """Killed by the system when 8 rounds are done and 4 of them saved."""
    calls: list[int] = []

    def fatal(params: Any) -> dict[str, float]:
        calls.append(1)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return evaluate(params)

    simulated(checkpoint=folder, evaluate=fatal)


@pytest.mark.integration
def test_killed_and_resumed_it_is_the_run_left_alone(tmp_path, whole):
    code = f"import tests.federated.test_rounds_simulate as t; t.die_in_the_second_part({str(tmp_path / 'run')!r})"
    command, root = [sys.executable, "-c", code], Path(__file__).parents[2]
    process = subprocess.run(command, cwd=root, text=True, capture_output=True, timeout=300, check=False)
    assert process.returncode == -signal.SIGKILL, process.stderr
    assert [step.name for step in (tmp_path / "run").iterdir()] == ["4"]
    seen: list[int] = []
    resumed = simulated(server(), checkpoint=tmp_path / "run", evaluate=evaluate, progress=seen.append)
    assert_same((resumed.state, resumed.info), whole)
    assert seen == resumed.evaluations["step"].tolist() == [4, 8]
    assert resumed.evaluations["offset"][1] == float(whole[0].params["b"])


OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("key", {"key": jax.random.key(63)}),
    ("start", {"params": START | {"b": jnp.ones(())}}),
    ("start", {"server": server(clip_norm=0.6)}),
    ("program", {"server": server(m=7)}),
    ("program", {"server": server(scale=(1.0, 2.0, 4.0))}),
    ("program", {"population": people(3, clients=999)}),
    ("data", {"population": people(4)}),
    ("data", {"data": DATA + 1}),
]


def test_another_simulation_is_refused_and_the_checkpoint_kept(tmp_path, whole):
    folder = tmp_path / "run"
    simulated(rounds=4, checkpoint=folder)
    for part, other in OTHERS:
        with pytest.raises(
            _validate.InputError, match=f"^checkpoint: expected one of this training, got run: made by another {part}$"
        ):
            simulated(checkpoint=folder, **other)
    assert_same(simulated(checkpoint=folder).state, whole[0])


def test_a_learning_rate_that_is_too_large_is_dated():
    """w <- w - 2.2 w = -1.2 w: a loss of 1.44^t/2 is five times the first in round 5; 1.2^488 is beyond float32."""
    client = clients.exact(clients.gradients(lambda params, example: 0.5 * (params["w"] * example) ** 2))
    wild = federated(client, clip_size.fixed(1.0), clients_per_round=2, optimizer=optax.sgd(2.2))
    done = simulated(wild, rounds=250, every=250, params={"w": jnp.ones(())}, data=jnp.ones(60))
    assert diverged(done.info) == 5
    assert diverged(jax.tree.map(lambda leaf: leaf[:5], done.info)) is None
    assert (done.info.loss.shape, done.state.round) == ((250,), 250)
    np.testing.assert_allclose(done.info.norm[:244], 1.2 ** np.arange(244), rtol=1e-4)
    assert done.info.dropped.tolist() == [0] * 244 + [2] * 6


def test_a_clip_size_that_runs_away_is_dated():
    """Every update is clipped, so C grows by e in a round: from 1 beyond 2^20 = e^13.86 in 14."""
    update = clients.gradients(lambda params, example: 1e9 * params["w"] * example)
    rule = clip_size.adaptive_quantile(1.0, quantile=0.5, learning_rate=2.0, noise_std=1e-6)
    client = clients.gaussian(update, noise_multiplier=1e-6)
    wild = federated(client, rule, clients_per_round=2, optimizer=optax.sgd(1.0))
    done = simulated(wild, rounds=18, every=18, params={"w": jnp.ones(())}, data=jnp.ones(60))
    assert diverged(done.info) == 14
    np.testing.assert_allclose(done.info.clip_norm, np.minimum(np.exp(np.arange(18)), LARGEST), rtol=1e-4)
    assert np.isfinite(done.info.loss).all()


def test_any_sign_of_divergence_is_dated(whole):
    info = jax.tree.map(np.asarray, whole[1])
    first = info.loss[0]

    def dated(name: str, value: Any, *at: int) -> int | None:
        sign = np.array(getattr(info, name))
        sign[list(at)] = value
        return diverged(info._replace(**{name: sign}))

    assert diverged(info) is None
    assert diverged(jax.tree.map(lambda leaf: leaf[:0], info)) is None
    signs = ("loss", np.nan), ("loss", np.inf), ("loss", 6 * first), ("dropped", 1), ("clip_norm", LARGEST)
    for name, value in signs:
        assert dated(name, value, 2, 5) == 2
    assert dated("loss", 4 * first, 2, 5) is None
    assert dated("loss", np.nan, 0) == dated("loss", np.inf, 0) == 0
    assert dated("loss", -first, 0) is None  # no measure of the others


@pytest.mark.parametrize(
    "given, message",
    [
        ({"rounds": 0}, "rounds: expected a whole number >= 1, got 0"),
        ({"every": 0}, "every: expected a whole number >= 1, got 0"),
        ({"key": 3}, "key: expected a key, as made by jax.random.key, got 3"),
        ({"population": 60}, "population: expected a Population of dpaudit.federated, got 60"),
        ({"server": server(m=1_001)}, "clients_per_round: expected at most the 1000 clients, got 1001"),
    ],
)
@pytest.mark.parametrize("kept", [False, True])
def test_bad_input_is_refused(tmp_path, given, message, kept):
    with pytest.raises(_validate.InputError) as refused:
        simulated(**given, checkpoint=tmp_path if kept else None)
    assert str(refused.value) == message


def test_a_key_of_the_old_kind_is_that_of_the_new_kind_and_what_is_no_key_is_one_line(whole):
    old = jax.random.PRNGKey(61)
    assert_same(run(old, SERVER, SERVER.init(START), POPULATION, DATA, ROUNDS), whole)
    np.testing.assert_array_equal(participants(old, SERVER, 50, 2), participants(KEY, SERVER, 50, 2))
    for call in (
        lambda: run(old[0], SERVER, SERVER.init(START), POPULATION, DATA, ROUNDS),
        lambda: participants(old[0], SERVER, 50, 2),
    ):
        with pytest.raises(_validate.InputError) as refused:
            call()
        assert str(refused.value) == "key: expected a key, as made by jax.random.key, got Array(0, dtype=uint32)"


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_an_optimizer_whose_state_has_the_type_of_the_parameters_trains_narrow_ones(dtype):
    narrow = jax.tree.map(lambda leaf: leaf.astype(dtype), START)
    trained = server(optimizer=optax.adafactor(0.1))
    after, _ = run(KEY, trained, trained.init(narrow), POPULATION, DATA, 2)
    assert after.params["w"].dtype == dtype
    assert np.isfinite(np.asarray(after.params["w"], np.float32)).all()
    assert {leaf.dtype for leaf in jax.tree.leaves(after.opt_state)} == {np.dtype("float32"), np.dtype("int32")}
