"""The contract fails where a loop is put back, a number is float64, the host is called, a precision is dropped, or
devices exchange more than once."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpaudit import _validate
from dpaudit._engine import game, sharding, topologies
from dpaudit.audits import craft, engines
from dpaudit.federated import clients, clip_size, population, rounds
from dpaudit.mechanisms import ldp_sgd
from dpaudit.training import microbatches, per_example, unit_gradients
from experiments.bench import hlo
from tests.accelerators.conftest import machine
from tests.accelerators.contract import EXCHANGED, breaches
from tests.test_full_precision import NET, PARAMS, forgotten, loss

UNITS = 24
pytestmark = pytest.mark.integration


def on_h100(trace: Callable[[topologies.Machine], Any], name: str = "h100") -> hlo.Program:
    here = machine(name)
    with here.traced():
        return hlo.read(here.compiled(trace(here).lower()).as_text())


def clipped(here: topologies.Machine) -> Any:
    """A clipped sum, of a network whose own products are in full precision."""
    tokens = jax.ShapeDtypeStruct((UNITS, 5), np.int32)

    def run(params: Any, tokens: jax.Array) -> Any:
        return per_example.clipped_sum(loss, params, tokens, clip_norm=1.0)

    return jax.jit(run).trace(*here.shapes((PARAMS, tokens)))


def in_parts(here: topologies.Machine) -> Any:
    """A clipped sum of which some examples weigh nothing, in parts of two that are added in runs."""
    tokens, weights = jax.ShapeDtypeStruct((140, 5), np.int32), jax.ShapeDtypeStruct((140,), np.float32)

    def run(params: Any, tokens: jax.Array, weights: jax.Array) -> Any:
        return per_example.clipped_sum(loss, params, tokens, clip_norm=1.0, weights=weights, microbatch=2)

    return jax.jit(run).trace(*here.shapes((PARAMS, tokens, weights)))


@pytest.mark.parametrize(("platform", "told"), [("gpu", 0), ("tpu", 2)])
def test_a_loop_of_unknown_length_fails(platform: str, told: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where a GPU is known for one are parts of weight 0 computed, so that every length is known."""
    here = SimpleNamespace(current=lambda: platform, on_cpu=lambda: False)
    monkeypatch.setattr(microbatches, "_platform", here)
    found = breaches(on_h100(in_parts), known=True)
    assert [text.partition(":")[0] for text in found] == ["a loop of unknown length"] * told


def of_units(program: hlo.Program) -> list[str]:
    return breaches(program, counts=(UNITS,), decides=True)


def test_a_clipped_sum_keeps_the_contract() -> None:
    assert NET is not None
    assert of_units(on_h100(clipped)) == []


def test_a_loop_that_is_put_back_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unit_gradients, "WRITTEN", 1)  # one unit at a time
    found = of_units(on_h100(clipped))
    assert found
    assert all(text.startswith(f"a loop of {UNITS} trips") for text in found)


def test_a_precision_that_is_dropped_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    for function in ("einsum", "tensordot"):
        monkeypatch.setattr(jnp, function, forgotten(getattr(jnp, function)))
    found = of_units(on_h100(clipped))
    assert found
    assert all(text.startswith("a product that is not in full precision") for text in found)


def federation(here: topologies.Machine) -> Any:
    """Two rounds of 16 clients, on as many devices as the machine has."""
    update = clients.gradients(lambda params, example: jnp.square(params @ example))
    sent = clients.gaussian(update, noise_multiplier=1.0)
    how: dict[str, Any] = {"clients_per_round": 16, "optimizer": optax.sgd(1.0), "mesh": here.mesh}
    server = rounds.federated(sent, clip_size.fixed(0.1), **how)
    everyone = population.iid(jax.random.key(0), 100)
    state = jax.eval_shape(server.init, jax.ShapeDtypeStruct((7,), np.float32))
    data = jax.ShapeDtypeStruct((100, 7), np.float32)
    key = jax.eval_shape(lambda: jax.random.key(0))
    key, state, rows_of, data = here.shapes((key, state, everyone.train, data))
    return rounds._run.trace(key, server, 16, state, everyone.clients, rows_of, data, 2)


def added_twice(tree: Any, mesh: Any) -> Any:
    total = jax.lax.psum(tree, mesh.axis_names)
    return jax.tree.map(lambda leaf: leaf / mesh.size, jax.lax.psum(total, mesh.axis_names))


@pytest.mark.parametrize(("added", "told"), [(sharding.added, 0), (added_twice, 1)])
def test_a_round_that_adds_up_twice_fails(added: Any, told: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharding, "added", added)
    found = breaches(on_h100(federation, "h100:1x2x4"), exchanged=EXCHANGED)
    assert found == ["2 operations of kind all-reduce"] * told


def full(randomize: Callable[..., jax.Array]) -> Callable[[topologies.Machine], Any]:
    how: dict[str, Any] = {"epsilons": [4.0], "clip_norm": 1.0, "pair_key": jax.random.key(1), "randomize": randomize}

    def trace(here: topologies.Machine) -> Any:
        one = engines.full_game(jax.random.key(0), craft.dummy(1_000, 1.0), **how)
        return game.game(one, 256, batch=1).program(here.shapes)

    return trace


def in_float64(key: jax.Array, x: jax.Array, **settings: Any) -> jax.Array:
    with jax.enable_x64(True):
        wide = jnp.asarray(ldp_sgd.randomize(key, x, **settings), jnp.float64)
        return jnp.asarray(jnp.tanh(wide), jnp.float32)


def doubled(x: Any) -> np.ndarray:
    return np.asarray(2 * x)


def by_the_host(key: jax.Array, x: jax.Array, **settings: Any) -> jax.Array:
    z = ldp_sgd.randomize(key, x, **settings)
    return jax.pure_callback(doubled, jax.ShapeDtypeStruct(z.shape, z.dtype), z, vmap_method="broadcast_all")


@pytest.mark.parametrize(
    ("randomize", "told"),
    [(ldp_sgd.randomize, None), (in_float64, "float64")],
)
def test_a_mechanism_that_breaks_the_contract_fails(randomize: Any, told: str | None) -> None:
    found = breaches(on_h100(full(randomize)))
    assert (found == []) == (told is None)
    assert all(text.startswith(str(told)) for text in found)


def test_a_mechanism_that_calls_the_host_does_not_compile() -> None:
    with pytest.raises(RuntimeError, match="Unknown backend: 'gpu' requested"):
        on_h100(full(by_the_host))


def test_a_program_without_room_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    here = machine("h100")
    monkeypatch.setitem(topologies.MEMORY, "h100", 1 << 20)
    x = here.shapes(jax.ShapeDtypeStruct((1 << 20,), np.float32))
    with pytest.raises(_validate.InputError) as refused:
        here.compiled(jax.jit(lambda x: jnp.sort(x)).lower(x), reduce="batch")
    text = str(refused.value)
    assert text.startswith("memory: expected a program of at most 0.00 GiB on one h100, got 0.01 GiB, 0.01 GiB more")
    assert text.endswith("; lower batch")
    assert "\n" not in text


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("v9:2x2", "machine: expected one of v4, v5e, v5p, v6e, h100, alone or with :topology, got v9:2x2"),
        ("h100:9z", "machine: expected a topology of h100 that the installed wheels know, such as h100:1x1x1, got"),
        ("v5e:3x7", "machine: expected a topology of v5e that the installed wheels know, such as v5e:2x2, got"),
    ],
)
def test_a_machine_that_the_wheels_do_not_know_is_refused(name: str, told: str) -> None:
    machine("v5e" if name.startswith("v5e") else "h100")
    with pytest.raises(_validate.InputError) as refused:
        topologies.machine(name)
    assert str(refused.value).startswith(told)
    assert "\n" not in str(refused.value)
