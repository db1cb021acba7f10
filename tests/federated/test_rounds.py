"""Rounds against arithmetic on paper and a Python loop; the same however they are cut, shared out or put together."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree
from jax.tree_util import Partial
from scipy import stats

from dpaudit import _validate
from dpaudit.federated import clients, clip_size, population
from dpaudit.federated.clients import Client, Sent, Update
from dpaudit.federated.clip_size import Rule
from dpaudit.federated.population import Population
from dpaudit.federated.rounds import Info, Server, State, federated, participants, run

KEY = jax.random.key(51)
QUIET = 1e-9  # a noise multiplier that changes nothing


def squares(params: Any, example: Any) -> jax.Array:
    features, target = example
    return 0.5 * (features @ params["w"] - target) ** 2


def linear(params: Any, example: jax.Array) -> jax.Array:
    return params["w"] @ example


FEDSGD = clients.gradients(squares)


def everyone(rows: Any) -> Population:
    """Client k has the rows ``rows[k]``; a round that takes all clients takes them in some order."""
    table = Partial(lambda table, client: table[client], jnp.asarray(rows))
    return Population(len(rows), table, table)


def some(clients: int) -> Population:
    """Client k has four of 60 rows, by arithmetic: quicker to compile than a random choice."""
    rows = Partial(lambda client: (7 * client + 13 * jnp.arange(4)) % 60)
    return Population(clients, rows, rows)


def of(server: Server, params: Any, rounds: int, key: jax.Array = KEY, **where: Any) -> tuple[State, Info]:
    """A run from the first round on, NumPy leaves."""
    given = where.get("population", POPULATION), where.get("data", DATA)
    return jax.tree.map(np.asarray, run(key, server, server.init(params), *given, rounds))


def flat(tree: Any) -> np.ndarray:
    return np.asarray(ravel_pytree(tree)[0])


# One round on paper. At w = (1, 1), client 0 has residuals 6 and 4, gradients (6, 0) and (0, 8), their mean (3, 4) of
# norm 5, mean loss (18 + 8)/2 = 13. Client 1 has residuals 0 and -1, the mean (0, -0.5) of norm 0.5, mean loss 0.25.
# C = 2 makes (1.2, 1.6) and (0, -0.5) of them, whose mean is (0.6, 0.55).
TOY = jnp.array([[1.0, 0], [0, 2], [1, 0], [0, 1]]), jnp.array([-5.0, -2, 1, 2])
TWO = everyone([[0, 1], [2, 3]])
ONES = {"w": jnp.ones(2)}


def toy(client: Client, optimizer: optax.GradientTransformation) -> Server:
    return federated(client, clip_size.fixed(2.0), clients_per_round=2, optimizer=optimizer)


def test_one_round_of_two_clients_on_paper():
    server = toy(clients.gaussian(FEDSGD, noise_multiplier=QUIET), optax.sgd(0.5))
    state, info = of(server, ONES, 1, population=TWO, data=TOY)
    np.testing.assert_allclose(state.params["w"], [0.7, 0.725], rtol=1e-6)
    np.testing.assert_allclose([info.loss[0], info.norm[0], info.clip_norm[0]], [(13 + 0.25) / 2, 2.75, 2], rtol=1e-6)
    assert (info.clipped[0], info.dropped[0], state.round, info.released) == (1, 0, 1, None)
    assert np.flatnonzero(info.histogram[0]).tolist() == [12, 15]  # 2^-1 <= 0.5 < 2^0 and 2^2 <= 5 < 2^3
    _, info = of(server, ONES, 1, population=TWO, data=(TOY[0].at[3].set(1e30), TOY[1]))  # client 1 overflows
    assert (info.clipped[0], info.dropped[0], math.isinf(info.norm[0])) == (1, 1, True)


def test_noise_of_rounds_on_paper():
    """The mean of two messages of noise 2 z has noise sqrt(2) 2 z/2, in every round another."""
    z, runs = 1.5, 5_000

    def remember(mean: Any, seen: Any, params: Any = None) -> Any:
        return jax.tree.map(jnp.zeros_like, mean), jnp.stack([seen[1], mean["w"]])

    # Stands still, and remembers the two means it was given.
    kept = optax.GradientTransformation(lambda params: jnp.zeros((2, 2)), cast(Any, remember))
    server = toy(clients.gaussian(clients.gradients(linear), noise_multiplier=z), kept)
    examples = jnp.array([[6.0, 0], [0, 8], [0, 0], [0, -1.0]])  # the gradients above, at any w

    def means(key: jax.Array) -> jax.Array:
        return run(key, server, server.init(ONES), TWO, examples, 2)[0].opt_state.ravel()

    found = np.asarray(jax.jit(jax.vmap(means))(jax.random.split(KEY, runs)), np.float64)
    noise = (found - [0.6, 0.55, 0.6, 0.55]) / (math.sqrt(2) * 2 * z / 2)

    def errors(noise: np.ndarray) -> float:
        """The largest, in standard errors, of a mean or a covariance of the four numbers."""
        covariance = (noise.T @ noise / runs - np.eye(4)) / np.sqrt(1 + np.eye(4))
        return float(max(np.abs(noise.mean(axis=0)).max(), np.abs(covariance).max()) * math.sqrt(runs))

    assert errors(noise) < 4.5
    assert errors(noise * math.sqrt(2)) > 20
    assert errors(noise * 1.15) > 6
    assert errors(noise + 0.1) > 6
    assert errors(np.tile(noise[:, :2], 2)) > 20  # the same noise in every round


# rounds against a loop

SHAPES = {5: (60, 3), 6: (60,)}  # by the seed
DATA = tuple(jnp.asarray(np.random.default_rng(k).normal(size=shape), jnp.float32) for k, shape in SHAPES.items())
POPULATION = some(1_000)
START = {"w": jnp.array([0.5, -1.0, 2.0])}


class Told(NamedTuple):
    clip_norm: jax.Array
    round: jax.Array
    watched: jax.Array


def mean_of_norms(every: int) -> Rule:
    """A user's own rule: C becomes the mean of the reported norms, and what the server watches is kept."""

    def update(state: Told, released: jax.Array) -> Told:
        due = (state.round + 1) % every == 0
        return state._replace(clip_norm=jnp.where(due, released, state.clip_norm), round=state.round + 1)

    return Rule(
        init=lambda: Told(jnp.float32(0.7), jnp.int32(0), jnp.float32(0)),
        update=update,
        report=lambda state, norm: jnp.minimum(norm, 2.0),
        release=lambda key, reports: reports.mean(),
        every=every,
        watch=lambda state, mean: state._replace(watched=jnp.linalg.norm(mean["w"])),
    )


def adam(history: list[np.ndarray]) -> Any:
    aged = list(enumerate(reversed(history)))
    first = sum(0.1 * 0.9**age * mean for age, mean in aged) / (1 - 0.9 ** len(history))
    second = sum(0.001 * 0.999**age * mean**2 for age, mean in aged) / (1 - 0.999 ** len(history))
    return 0.2 * first / (np.sqrt(second) + 1e-8)


def played(every: int, rounds: int) -> tuple[np.ndarray, Any, Info]:
    """(w, the rule's state, info) of 12 clients of five rows each, client after client in float64."""
    features, targets = (np.asarray(leaf, np.float64) for leaf in DATA)
    w, clip_norm, history, infos = np.asarray(START["w"], np.float64), 0.7, [], []
    for t in range(rounds):
        losses, norms, total = [], [], np.zeros(3)
        for k in range(12):
            own = slice(5 * k, 5 * k + 5)
            residuals = features[own] @ w - targets[own]
            gradient = features[own].T @ residuals / 5
            losses.append(np.mean(residuals**2) / 2)
            norms.append(np.linalg.norm(gradient))
            total += gradient * min(1.0, clip_norm / norms[-1])
        history.append(total / 12)
        w = w - adam(history)
        due = (t + 1) % every == 0
        mean = np.minimum(norms, 2.0).mean()
        counts = np.histogram(norms, [0, *(2.0**k for k in range(-12, 13)), math.inf])[0]
        longer = int((np.array(norms) > clip_norm).sum())
        row: Any = np.mean(losses), np.mean(norms), clip_norm, longer, 0, counts, mean if due else 0.0
        infos.append(Info(*row))
        clip_norm = mean if due else clip_norm
    told: Any = clip_norm, rounds, np.linalg.norm(history[-1])
    return w, Told(*told), jax.tree.map(lambda *row: np.stack(row), *infos)


TWELVE = everyone(np.arange(60).reshape(12, 5))


def test_rounds_are_a_loop_over_clients():
    client, rule = clients.gaussian(FEDSGD, noise_multiplier=QUIET), mean_of_norms(every=3)
    server = federated(client, rule, clients_per_round=12, optimizer=optax.adam(0.2), chunk=5)  # 12 = 5 + 5 + 2
    state, info = of(server, START, 8, population=TWELVE)
    wanted, told, wanted_info = played(3, 8)
    np.testing.assert_allclose(state.params["w"], wanted, rtol=1e-4)
    for found, value in zip((*state.rule, *info), (*told, *wanted_info), strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-4)
    assert info.clipped.min() < 6 < info.clipped.max()
    assert (info.released == 0).tolist() == [t % 3 != 2 for t in range(8)]
    assert state.round == 8


def plain(update: Update, rate: float, chunk: int) -> Server:
    client, rule = clients.exact(update), clip_size.fixed(0.1)
    return federated(client, rule, clients_per_round=12, optimizer=optax.sgd(rate), chunk=chunk)


PLAIN = {
    "FedSGD": plain(FEDSGD, 0.3, chunk=1),
    "FedAvg": plain(clients.local_training(squares, optax.sgd(0.3), steps=1), 1.0, chunk=1_000),
}


@pytest.mark.parametrize("name", PLAIN)
def test_without_privacy_rounds_are_plain_gradient_descent(name):
    """Along the gradient of the mean loss of all examples; one local step of FedAvg is the same."""
    state, info = of(PLAIN[name], START, 4, population=TWELVE)
    features, targets = (np.asarray(leaf, np.float64) for leaf in DATA)
    w = np.asarray(START["w"], np.float64)
    for t in range(4):
        np.testing.assert_allclose(info.loss[t], np.mean((features @ w - targets) ** 2) / 2, rtol=1e-5)
        w = w - 0.3 * features.T @ (features @ w - targets) / 60
    np.testing.assert_allclose(state.params["w"], w, rtol=1e-5)


def test_clients_that_are_not_finite_are_counted_and_left_out():
    """The loss says so too, but the model of the others is as it would be with zeros from those clients."""
    features = np.asarray(DATA[0]).copy()
    features[7], features[33] = math.nan, math.inf  # of clients 1 and 6
    state, info = of(PLAIN["FedSGD"], START, 4, population=TWELVE, data=(jnp.asarray(features), DATA[1]))
    w = np.asarray(START["w"], np.float64)
    kept = [slice(5 * k, 5 * k + 5) for k in range(12) if k not in (1, 6)]
    for _ in range(4):
        w = w - 0.3 / 12 * sum(features[own].T @ (features[own] @ w - np.asarray(DATA[1])[own]) / 5 for own in kept)
    np.testing.assert_allclose(state.params["w"], w, rtol=1e-5)
    assert (info.dropped.tolist(), info.histogram.sum(axis=1).tolist()) == ([2] * 4, [10] * 4)
    assert not np.isfinite(info.loss).any()


def test_a_round_draws_distinct_clients_uniformly_and_anew():
    """Client k's gradient is the k-th unit vector, so the model has counted who took part."""
    n, m, rounds = 40, 5, 400
    server = federated(
        clients.exact(clients.gradients(linear)), clip_size.fixed(1.0), clients_per_round=m, optimizer=optax.sgd(1.0)
    )
    whole = everyone(np.arange(n)[:, None])
    state, _ = of(server, {"w": jnp.zeros(n)}, rounds, population=whole, data=jnp.eye(n))
    took_part = np.asarray(participants(KEY, server, n, rounds))
    assert took_part.shape == (rounds, m)
    assert all(len(set(row)) == m for row in took_part.tolist())
    counts = np.bincount(took_part.ravel(), minlength=n)
    np.testing.assert_allclose(-m * state.params["w"], counts, atol=1e-3)
    expected = rounds * m / n
    spread = ((counts - expected) ** 2).sum() / (expected * (1 - m / n) * n / (n - 1))  # without replacement
    assert 1e-3 < stats.chi2.sf(spread, n - 1) < 0.999
    overlap = [len(set(a) & set(b)) for a, b in zip(took_part[:-1].tolist(), took_part[1:].tolist(), strict=True)]
    assert abs(np.mean(overlap) - m * m / n) < 4 * 0.7 / math.sqrt(rounds)  # hypergeometric, of deviation 0.7


@pytest.mark.integration
def test_no_two_draws_of_a_federation_share_a_key():
    """Every client of every chunk, the messages' common noise and the rule's aggregator, in every round.

    Each tells the key that it was given by the first 24 bits that it draws from it; float32 holds these exactly.
    """
    m, rounds = 8, 3

    def mark(key: jax.Array) -> jax.Array:
        return (jax.random.bits(key) >> 8).astype(jnp.float32)

    def send(keys: jax.Array, params: Any, batch: Any, clip_norm: Any) -> Sent:
        return Sent(jax.tree.map(jnp.zeros_like, params), jax.vmap(mark)(keys), jnp.zeros(len(keys)))

    def noise(key: jax.Array, total: Any, clip_norm: Any, clients: int) -> Any:
        return jax.tree.map(lambda leaf: jnp.full_like(leaf, mark(key) * clients), total)

    def release(key: jax.Array, reports: jax.Array) -> jax.Array:
        return jnp.append(reports, mark(key))

    def remember(mean: Any, seen: Any, params: Any = None) -> Any:
        return jax.tree.map(jnp.zeros_like, mean), jnp.append(seen[1:], mean["w"][0])

    told = Told(jnp.float32(1), jnp.int32(0), jnp.float32(0))
    rule = Rule(lambda: told, lambda state, released: state, lambda state, norm: norm, release)
    kept = optax.GradientTransformation(lambda params: jnp.zeros(rounds), cast(Any, remember))
    found = []
    for chunk in (1, 3, 8):
        server = federated(Client(send, noise), rule, clients_per_round=m, optimizer=kept, chunk=chunk)
        state, info = of(server, {"w": jnp.zeros(1)}, rounds)
        assert info.released.shape == (rounds, m + 1)
        found.append(np.append(info.released, state.opt_state))
    assert len(np.unique(found[0])) == rounds * (m + 2)
    np.testing.assert_array_equal(found[1:], found[:1] * 2)  # whatever the chunk


# the same, however it is computed

RULE = clip_size.adaptive_median(0.5, every=2)
M = 24


def twice_noisy(noise_multiplier: Any) -> Client:
    """Clients that draw noise of their own, to the sum of which more is added."""
    each, once = (clients.gaussian(FEDSGD, noise_multiplier=noise_multiplier, each=each) for each in (True, False))
    return Client(each.send, once.noise)


def simulated(**how: Any) -> list[list[float]]:
    """The model and all that is told of three rounds, by leaf."""
    server = federated(twice_noisy(0.5), RULE, clients_per_round=M, optimizer=optax.sgd(1.0), **how)
    state, info = of(server, START, 3)
    return [np.ravel(leaf).tolist() for leaf in jax.tree.leaves((state.params, state.rule, info))]


def assert_close(found: Sequence[Any], wanted: Sequence[Any]) -> None:
    for leaf, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(leaf, other, rtol=2e-4, atol=2e-5)


@pytest.fixture(scope="module")
def alone() -> list[list[float]]:
    return simulated()


@pytest.mark.integration
def test_many_federations_are_what_each_is_alone(alone):
    """Over keys, learning rates and noise multipliers; the aggregator speaks in every other round only."""

    def one(key: jax.Array, rate: Any, noise: Any) -> Any:
        server = federated(twice_noisy(noise), RULE, clients_per_round=M, optimizer=optax.sgd(rate))
        state, info = run(key, server, server.init(START), POPULATION, DATA, 3)
        return state.params, state.rule, info

    keys = jnp.stack([jax.random.key(9), KEY, KEY, KEY])
    found = jax.jit(jax.vmap(one))(keys, jnp.array([1.0, 1.0, 1.5, 1.0]), jnp.array([0.5, 0.5, 0.5, 1.0]))
    runs = [[np.ravel(leaf[i]) for leaf in jax.tree.leaves(found)] for i in range(4)]
    assert_close(runs[1], alone)
    for other in (0, 2, 3):
        assert np.abs(runs[other][0] - runs[1][0]).max() > 1e-3  # several times what is taken for equal


def test_a_narrow_model_takes_wide_messages():
    """bfloat16 in, bfloat16 out; the optimiser's memory is as wide as the noisy mean it sees."""
    narrow = {"w": jnp.zeros(3, jnp.bfloat16)}
    for update in (FEDSGD, clients.local_training(squares, optax.sgd(0.1), steps=2)):
        client = clients.gaussian(update, noise_multiplier=0.5, each=True)
        server = federated(client, RULE, clients_per_round=4, optimizer=optax.adam(0.1), chunk=3)
        state = server.init(narrow)
        after, _ = jax.eval_shape(lambda server=server, state=state: run(KEY, server, state, POPULATION, DATA, 2))
        assert jax.tree.map(jnp.dtype, after) == jax.tree.map(jnp.dtype, state)
        assert after.params["w"].dtype == jnp.bfloat16
        assert {leaf.dtype for leaf in jax.tree.leaves(after.opt_state)} == {jnp.dtype("float32"), jnp.dtype("int32")}


def test_memory_grows_with_the_chunk_alone():
    """The temporary memory of the compiled program: of a client, a few numbers remain; of one not drawn, none."""
    client = clients.gaussian(clients.gradients(linear), noise_multiplier=1.0)
    wide, m, chunk = 5_000, 20_000, 100
    params, data = {"w": jnp.zeros(wide)}, jnp.zeros((60, wide))
    server = federated(client, clip_size.fixed(1.0), clients_per_round=m, optimizer=optax.sgd(1.0), chunk=chunk)
    program = jax.jit(lambda key, state: run(key, server, state, some(10_000_000), data, 2))
    analysis: Any = program.lower(KEY, server.init(params)).compile().memory_analysis()
    assert 1 < analysis.temp_size_in_bytes / (4 * chunk * wide) < 7  # m / chunk = 200


def test_data_with_fewer_rows_than_clients_draw_from_are_refused():
    """JAX would take the last row for every one that is missing."""
    server = federated(clients.exact(FEDSGD), clip_size.fixed(1.0), clients_per_round=3, optimizer=optax.sgd(0.1))
    labels = np.arange(4_000) % 4
    made = (
        population.iid(KEY, 4_000),
        population.shards(KEY, labels, shards=8),
        population.dirichlet(KEY, labels, alpha=1.0),
    )
    few = jax.tree.map(lambda leaf: leaf[:40], DATA)
    for people in made:
        with pytest.raises(
            _validate.InputError, match=r"^data: expected the 4000 rows that the population .*, got 40$"
        ):
            run(KEY, server, server.init(START), people, few, 1)
    enough = population.iid(KEY, 40, clients=10)
    assert run(KEY, server, server.init(START), enough, few, 1)[0].round == 1
    with pytest.raises(_validate.InputError, match=r"^data: expected leaves with one number of rows, got \[39, 40\]$"):
        run(KEY, server, server.init(START), enough, (few[0], few[1][:39]), 1)


def test_a_negative_number_of_rounds_is_refused():
    server = next(iter(PLAIN.values()))
    for call in (lambda: of(server, START, -1, population=TWELVE), lambda: participants(KEY, server, 12, -1)):
        with pytest.raises(_validate.InputError, match=r"^rounds: expected a whole number >= 0, got -1"):
            call()


@pytest.mark.parametrize(
    "given, message",
    [
        ({"clients_per_round": 0}, "clients_per_round: expected a whole number >= 1, got 0"),
        ({"clients_per_round": 2.5}, "clients_per_round: expected a whole number >= 1, got 2.5"),
        ({"chunk": 0}, "chunk: expected a whole number >= 1, got 0"),
        ({"clients_per_round": 1_001}, "clients_per_round: expected at most the 1000 clients, got 1001"),
    ],
)
def test_bad_input_is_refused(given, message):
    settings: dict[str, Any] = {"clients_per_round": 5, "optimizer": optax.sgd(1.0)} | given
    with pytest.raises(_validate.InputError) as refused:
        of(federated(clients.exact(FEDSGD), clip_size.fixed(1.0), **settings), START, 1)
    assert str(refused.value) == message
