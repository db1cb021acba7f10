"""Lists the project's compiled programs, at the sizes at which they are tested for accelerators.

Each program is a function of the machine that it is for, and returns it traced. None is run, so all of its arrays are
shapes, and keys are those of JAX.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpaudit._engine import game, sharding
from dpaudit._engine.topologies import Machine
from dpaudit.auditing.attacks import portfolio, scoring
from dpaudit.audits import craft, engines, oracle
from dpaudit.federated import population, rounds
from dpaudit.kernels import philox, randomized_trial
from dpaudit.mechanisms import laplace
from dpaudit.personalization.als import solve, steps
from dpaudit.personalization.als.layout import Users
from dpaudit.training import many, models, per_example
from dpaudit.training.dp_sgd import dp_sgd, train
from dpaudit.training.dropout import mc_dropout
from dpaudit.training.sampling import poisson
from experiments.bench import federated as federated_bench
from experiments.bench.sides import NETWORKS

NETWORKS_TOGETHER = 64
CLIENTS, EXAMPLES = 1_000, 5
RECORDS = 50_000
STEPS = 20
USERS, ITEMS, RANK, RATINGS = 3_000, 1_700, 32, 20
SAMPLES = 1_000
TRIALS = 1_024
KEY = jax.eval_shape(lambda: jax.random.key(0))


class Subject(NamedTuple):
    """One program under the contract.

    Attributes:
      trace: ``trace(machine)``, the program as :mod:`jax.stages` traces it, for all of the machine's devices.
      counts: trip counts that no loop may have: of examples, clients, users, networks.
      ceiling: the most bytes of temporaries on a device.
      scales: whether a mesh is taken.
      only: the kind of device that it is for; None for all.
      trials: whether its result is one code a trial.
    """

    trace: Callable[[Machine], Any]
    counts: tuple[int, ...]
    ceiling: float
    scales: bool = False
    only: str | None = None
    trials: bool = False


def full(machine: Machine, *, d: int) -> Any:
    """Returns the mechanism as shipped; a call of one block."""
    one = engines.full_game(
        jax.random.key(0), craft.dummy(d, 1.0), epsilons=[4.0], clip_norm=1.0, repeats=8, pair_key=jax.random.key(1)
    )
    return game.game(one, 1 << 20, batch=1, mesh=machine.mesh).program(machine.shapes)


def fixed(machine: Machine, *, d: int) -> Any:
    """Returns the engine `kernel`: trials of one fixed pair whose releases are never written; a call of one block."""
    how: dict[str, Any] = {"epsilons": [4.0], "clip_norm": 1.0, "repeats": 8, "pair_key": jax.random.key(1)}
    one = engines.kernel_game(jax.random.key(0), craft.dummy(d, 1.0), **how)
    return game.game(one, 1 << 20, batch=1, mesh=machine.mesh).program(machine.shapes)


def plane(machine: Machine) -> Any:
    """Trials in the plane, whatever the dimension."""
    pair = oracle.Pair(np.array(1.0), np.array(0.7), np.array(2.0))
    one = engines.plane_game(jax.random.key(0), pair, 100_000, epsilons=[4.0], clip_norm=1.0)
    return game.game(one, 1 << 16, batch=1, mesh=machine.mesh).program(machine.shapes)


def audited(machine: Machine) -> game.Game:
    """Returns the trials of an audit: releases of the Laplace mechanism, as words."""
    shipped, x = laplace.mechanism(epsilon=1.0, clip_norm=1.0), jnp.zeros(100)
    key = game.trial_key(jax.random.key(0))
    return portfolio.releases(key, shipped.apply, (x, x + 0.01), (), 1 << 20, mesh=machine.mesh)


def audit(machine: Machine) -> Any:
    return audited(machine).program(machine.shapes)


def portfolio_read(machine: Machine) -> Any:
    """Reads those releases by every attack of the family, each device those that it has played."""
    own, arrays_of = audited(machine), (((100,), "float32"),)
    played, *fitted = scoring.blank(own, True, arrays_of)
    given = machine.shapes(played, cut=True), *machine.shapes(fitted)
    return scoring.scored.trace(*given, arrays_of=arrays_of, others=0, block=own.block, mesh=own.mesh)


def batch(network: str, n: int) -> tuple[Any, Any, Any]:
    """Shapes of parameters, images and labels."""
    own = NETWORKS[network]
    params = jax.eval_shape(lambda key: models.initial_parameters(key, own.ours, own.image_shape), KEY)
    labels = jax.ShapeDtypeStruct((n,), np.int32)
    return params, jax.ShapeDtypeStruct((n, *own.image_shape), np.float32), labels


def loss_of(network: str) -> Callable[..., jax.Array]:
    loss = models.cross_entropy(NETWORKS[network].ours)
    return lambda params, example: loss(params, *example)


def clipped(machine: Machine, *, n: int, network: str = "CNN32") -> Any:
    params, images, labels = machine.shapes(batch(network, n))

    def run(params: Any, images: Any, labels: Any) -> Any:
        return per_example.clipped_sum(loss_of(network), params, (images, labels), clip_norm=1.0)

    return jax.jit(run).trace(params, images, labels)


def plain(machine: Machine, *, n: int, network: str = "CNN32") -> Any:
    """Returns the plain gradient of the same batch, beside which a clipped one is put."""
    params, images, labels = machine.shapes(batch(network, n))

    def mean(params: Any, images: Any, labels: Any) -> Any:
        return jnp.mean(jax.vmap(lambda *example: loss_of(network)(params, example))(images, labels))

    return jax.jit(jax.grad(mean)).trace(params, images, labels)


def learner(network: str, batch_size: int) -> tuple[Any, Any]:
    how: dict[str, Any] = {"clip_norm": 1.0, "noise_multiplier": 1.0, "optimizer": optax.sgd(0.1)}
    trainer = dp_sgd(loss_of(network), batch_size=batch_size, **how)
    return trainer, poisson(RECORDS, batch_size)


def training(machine: Machine, *, network: str, batch_size: int) -> Any:
    params, *data = batch(network, RECORDS)
    trainer, sampling = learner(network, batch_size)
    state = jax.eval_shape(trainer.init, params)
    key, state, data = machine.shapes((KEY, state, tuple(data)))
    return train.trace(key, trainer, state, data, sampling, STEPS)


def together(machine: Machine) -> Any:
    """64 networks on every device, from common data."""
    trainer, sampling = learner("CNN28", 64)

    def run(key: jax.Array, params: Any, data: Any) -> Any:
        return train(key, trainer, trainer.init(params), data, sampling, STEPS)[0].params

    params, *data = batch("CNN28", RECORDS)
    group = many._Group(run, NETWORKS_TOGETHER, machine.mesh)
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), group.size))
    return many._trained.trace(group, *machine.shapes(((keys,), (params, tuple(data)))))


def federated(machine: Machine) -> Any:
    """Rounds of 1,000 clients, or of 4 for each device where there are more devices than would share those."""
    devices = sharding.devices(machine.mesh)
    m = CLIENTS if devices <= 8 else 4 * devices
    server = federated_bench.server(NETWORKS["CNN28"], m, 1.0, each=False, mesh=machine.mesh)
    everyone = population.iid(jax.random.key(0), RECORDS)
    params, *data = batch("CNN28", RECORDS)
    state = jax.eval_shape(server.init, params)
    key, state, rows_of, data = machine.shapes((KEY, state, everyone.train, tuple(data)))
    chunk = min(server.chunk, m // devices)
    return rounds._run.trace(key, server, chunk, state, everyone.clients, rows_of, data, STEPS)


def dropout(machine: Machine) -> Any:
    network = mc_dropout.probabilities(NETWORKS["CNN32"].ours)
    params, images, _ = batch("CNN32", 10)

    def run(key: jax.Array, params: Any, images: Any) -> Any:
        return mc_dropout.statistics(key, network, params, images, samples=SAMPLES)

    return jax.jit(run).trace(*machine.shapes((KEY, params, images)))


def users(u: int) -> Users:
    shape = (u, RATINGS)
    integers, floats = jax.ShapeDtypeStruct(shape, np.int32), jax.ShapeDtypeStruct(shape, np.float32)
    leaves: Any = (integers, floats, floats, jax.ShapeDtypeStruct((u,), np.int32))
    return Users(*leaves)


def solves(machine: Machine) -> Any:
    """Users' factors of rank 32 from 20 ratings; 3,000 users on every device."""
    everyone = users(USERS * sharding.devices(machine.mesh))
    factors = jax.ShapeDtypeStruct((ITEMS, RANK), np.float32), jax.ShapeDtypeStruct((RANK, RANK), np.float32)

    def run(factors: Any, prior: Any, everyone: Users) -> Any:
        return solve.user_factors(factors, prior, everyone, ridge=0.1, mesh=machine.mesh)

    return jax.jit(run).trace(*machine.shapes((*factors, everyone)))


def summed(machine: Machine) -> Any:
    """Returns the aggregator's sums of the messages of 3,000 devices."""
    packed = solve.coordinates(RANK)

    def of(*lead: int) -> steps.Statistics:
        gram, moment = (jnp.zeros((*lead, n)) for n in (packed, RANK))
        return steps.Statistics(gram, moment, jnp.zeros((*lead[:-1], packed)))

    shapes = jax.eval_shape(lambda: (of(ITEMS), jnp.zeros((USERS, RATINGS), jnp.int32), of(USERS, RATINGS)))
    return jax.jit(steps.added).trace(*machine.shapes(shapes))


def kernel(machine: Machine, *, products: randomized_trial.Products, d: int = 26_010) -> Any:
    """Returns the randomised trial by a Pallas kernel."""
    keys = jax.eval_shape(lambda: jax.random.split(philox.from_key(jax.random.key(0)), TRIALS))
    return jax.jit(products).trace(*machine.shapes((keys, jax.ShapeDtypeStruct((2, d), np.float32))))


MB = 1e6
PROGRAMS = {
    "full, d = 26,010": Subject(partial(full, d=26_010), (), 1_600 * MB, scales=True, trials=True),
    "full, d = 932,170": Subject(partial(full, d=932_170), (), 2_000 * MB, trials=True),
    "kernel, d = 26,010": Subject(partial(fixed, d=26_010), (), 1_000 * MB, scales=True, trials=True),
    "kernel, d = 932,170": Subject(partial(fixed, d=932_170), (), 1_000 * MB, trials=True),
    "plane": Subject(plane, (), 1_500 * MB, scales=True, trials=True),
    "audit, trials": Subject(audit, (), 1_500 * MB, scales=True),
    "audit, portfolio": Subject(portfolio_read, (), 4_000 * MB, scales=True),
    "clipped sum, CNN32 x 256": Subject(partial(clipped, n=256), (256,), 1_500 * MB),
    "clipped sum, CNN32 x 1,024": Subject(partial(clipped, n=1_024), (1_024,), 6_000 * MB),
    "plain gradient, CNN32 x 1,024": Subject(partial(plain, n=1_024), (1_024,), 6_000 * MB),
    "DP-SGD, CNN28 x 256": Subject(partial(training, network="CNN28", batch_size=256), (256, 64), 500 * MB),
    "64 networks, CNN28 x 64": Subject(together, (64,), 4_000 * MB, scales=True),
    "federated round, 1,000 x 5": Subject(federated, (1_000, 5_000), 2_000 * MB, scales=True),
    "dropout, 1,000 samples": Subject(dropout, (), 2_500 * MB),
    "user solves": Subject(solves, (USERS,), 1_000 * MB, scales=True),
    "user sums": Subject(summed, (USERS,), 1_000 * MB),
    "kernel of a TPU": Subject(partial(kernel, products=randomized_trial.products_tpu), (), 100 * MB, only="tpu"),
    "kernel of an H100": Subject(partial(kernel, products=randomized_trial.products_gpu), (), 100 * MB, only="gpu"),
}
