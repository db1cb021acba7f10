"""Memory that runs out for good: XLA cannot allocate, half as much is tried, and the results are the same."""

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.errors import JaxRuntimeError
from jax.tree_util import Partial

from dpaudit._engine import game, memory
from dpaudit._validate import InputError
from dpaudit.federated import clients, clip_size
from dpaudit.federated.population import Population
from dpaudit.federated.rounds import _run, federated, run
from dpaudit.personalization.boundary import aggregator, processes
from dpaudit.personalization.boundary.protocol import Protocol, each, everything
from dpaudit.training.many import train_many
from tests.processes import said, start

KEY, MIB = jax.random.key(20), 1 << 20
WIDE = 1 << 21  # numbers: 8 MiB
MANY = 16
HEADROOM = 100  # MiB, beside what a process has when all its programs are compiled


@contextmanager
def room(mib: int) -> Iterator[None]:
    """The process may take so many more MiB of addresses than it has taken."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as sizes:
        taken = int(sizes.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (taken + mib * MIB, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def vector(trial: jax.Array) -> jax.Array:
    """A trial whose result alone is 8 MiB: a block by itself."""
    return jax.random.uniform(jax.random.fold_in(KEY, trial)) + jnp.arange(WIDE, dtype=jnp.float32)


def trials(size: int) -> np.ndarray:
    """Of each trial, one number: what a call plays stays on the device until then."""
    whole, done, found = game.game(vector, MANY, batch=size), 0, []
    assert whole.block == 1
    while done < MANY:
        part, whole = whole.fitted(lambda whole, done=done: np.array(whole.call(done)[:, 7]))
        found, done = [*found, *part.tolist()], done + len(part)
    return np.array(found)


def network(x: jax.Array) -> jax.Array:
    """One number written into 8 MiB, and read."""
    place = x.astype(jnp.int32)
    return jnp.zeros(WIDE).at[place].set(jnp.sin(x))[place]


def networks(size: int) -> Any:
    return train_many(network, (jnp.arange(2.0 * MANY),), at_once=size)  # of two cores each has MANY


def distance(params: Any, example: jax.Array) -> jax.Array:
    return 0.5 * jnp.sum((params * example) ** 2)


CLIENT = clients.gaussian(clients.local_training(distance, optax.sgd(0.1), steps=2), noise_multiplier=1.0)


SERVER = federated(CLIENT, clip_size.fixed(1.0), clients_per_round=MANY, optimizer=optax.sgd(1.0), chunk=MANY)


def rounds(size: int) -> Any:
    """Clients that each train a model of 8 MiB."""
    own = Partial(lambda client: client[None])
    given = SERVER.init(jnp.ones(WIDE)), Population(MANY, own, own), jnp.ones((MANY, 1)), 1
    if size == MANY:
        return run(KEY, SERVER, *given)[0].params[:64]
    state, everyone, data, count = given
    return _run(KEY, SERVER, size, state, MANY, everyone.train, data, count)[0].params[:64]


SUMS = processes.gaussian("sums", noise_multiplier=1.0)


def protocol(size: int) -> Protocol:
    """Users who each send 8 MiB."""
    devices = each(
        everything,
        lambda key, model, user: jnp.sin(user + jnp.arange(WIDE)),
        lambda total, messages: (
            jax.lax.scan(lambda total, one: (total + one, None), jnp.zeros(WIDE), messages)[0]
            + (0.0 if total is None else total)
        ),
        chunk=size,
    )

    def release(key: jax.Array, total: jax.Array, memory: Any) -> Any:
        made, memory = SUMS.release(key, total[:64], memory, sensitivity=1.0)
        return (made,), memory

    return Protocol(lambda state: (), devices, release, lambda state, releases: releases[0].value)


PROTOCOL = protocol(MANY)


def users(size: int) -> Any:
    devices = PROTOCOL.devices._replace(chunk=size)
    return aggregator.run(
        KEY, PROTOCOL._replace(devices=devices), jnp.zeros(64), processes.memoryless(), jnp.arange(16.0), 1
    )[0]


WORK: dict[str, Callable[[int], Any]] = {"trials": trials, "networks": networks, "rounds": rounds, "users": users}


def short(*names: str) -> dict[str, Any]:
    """Of each kind of work: how often memory ran out, and how far the results are from those with memory enough."""
    failed: list[str] = []
    real = memory.ran_out

    def watched(error: BaseException) -> bool:
        failed.extend([str(error)] * real(error))
        return real(error)

    memory.ran_out = watched
    found: dict[str, Any] = {}
    for name in names:
        size = MANY
        while size:
            wanted = np.asarray(WORK[name](size), np.float64)  # every program is compiled while there is room for that
            size //= 2
        assert not failed
        with room(HEADROOM):  # from here on half as much has to do
            got = np.asarray(WORK[name](MANY), np.float64)
        found[name] = len(failed), float(np.abs(got - wanted).max()), float(np.ptp(wanted))
        failed.clear()
    return found


def too_large() -> str:
    """Trials of which not one fits."""

    def vast(trial: jax.Array) -> jax.Array:
        return jnp.tile(vector(trial), MANY)

    whole = game.game(vast, 1)
    game._run.lower(whole.one, np.uint32(0), block=1, blocks=1, mesh=None).compile()  # and nothing allocated yet
    with room(HEADROOM), pytest.raises(InputError) as refused:
        whole.fitted(lambda whole: whole.call(0))
    return str(refused.value)


@pytest.fixture
def few_arenas(monkeypatch):
    """A new thread takes no addresses beside its stack."""
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")


@pytest.mark.integration
@pytest.mark.skipif(not hasattr(resource, "RLIMIT_AS"), reason="needs a limit on addresses")
@pytest.mark.parametrize(
    "names", [("trials", "networks"), pytest.param(("rounds", "users"), marks=pytest.mark.slow)], ids=" and ".join
)
def test_with_too_little_memory_the_results_are_the_same(few_arenas, names):
    found = said(start(__name__, "short", *names))
    assert set(found) == set(names)
    for name, (failures, error, spread) in found.items():
        assert failures > 0, name
        assert spread > 0.1, name
        assert error <= (0 if name == "trials" else 1e-5 * spread), name


@pytest.mark.integration
def test_what_does_not_fit_at_all_is_named(few_arenas):
    message = said(start(__name__, "too_large"))
    assert message.startswith("memory: expected room on a device for blocks of 1 trials, 1 at a time, got ")
    assert len(message.splitlines()) == 1


def test_other_errors_are_raised_as_they_are():
    def fails(size: int) -> int:
        raise JaxRuntimeError("INTERNAL: of another kind")

    with pytest.raises(JaxRuntimeError, match="of another kind"):
        memory.fitting(fails, 8, of="things")
    assert not memory.ran_out(MemoryError("out of memory"))


def test_the_device_with_least_memory_decides(monkeypatch):
    class Device:
        platform, process_index = "gpu", 0

        def __init__(self, limit, used):
            self.limit, self.used = limit, used

        def memory_stats(self):
            return {"bytes_limit": self.limit, "bytes_in_use": self.used}

    monkeypatch.setattr(memory, "_own", lambda mesh: [Device(100, 70), Device(80, 10), Device(90, 0)])
    assert memory.limit(None) == 80
    assert memory.free(None) == 30
