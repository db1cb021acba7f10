"""Clients: updates against brute force, messages by their law, and what an audit makes of a right and a wrong one."""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree
from scipy import stats

import dpaudit
from dpaudit import _validate
from dpaudit.data import load
from dpaudit.federated import clients, clip_size
from dpaudit.federated.clients import Client, Sent, Update
from dpaudit.federated.rounds import federated
from dpaudit.mechanisms import gaussian, ldp_sgd
from tests.training import by_vmap

KEY = jax.random.key(71)
PARAMS = {"a": jnp.zeros(2), "b": jnp.zeros(1)}


def apart(one: np.ndarray, other: np.ndarray) -> float:
    """The p value of two samples being of one law."""
    result: Any = stats.ks_2samp(one, other)
    return result.pvalue


def linear(params: Any, example: jax.Array) -> jax.Array:
    """Its gradient is the example itself, whatever the parameters: a client's is the mean of its examples."""
    return params["a"] @ example[:2] + params["b"][0] * example[2]


FEDSGD = clients.gradients(linear)
FEDAVG = clients.local_training(linear, optax.sgd(1.0), steps=1)
NOTHING: Any = None
UPDATES = {"gradients": FEDSGD, "local_training": FEDAVG}


def flat(tree: Any) -> np.ndarray:
    return np.asarray(ravel_pytree(tree)[0], np.float64)


def one_by_one(updates: np.ndarray, clip_norm: float) -> np.ndarray:
    return np.stack([update * min(1.0, clip_norm / max(np.linalg.norm(update), 1e-30)) for update in updates])


# updates


def softmax(params: Any, example: Any) -> jax.Array:
    """A small network's loss."""
    image, label = example
    hidden = jnp.tanh(image.ravel() @ params["in"] + params["offset"])
    return optax.softmax_cross_entropy_with_integer_labels(hidden @ params["out"], label)


@pytest.fixture(scope="module")
def digits() -> tuple[Any, Any]:
    """(params, batch of 6 clients with 5 images each)."""
    data, rng = load("digits", split="train"), np.random.default_rng(1)
    rows = rng.integers(len(data.labels), size=(6, 5))
    shapes = {"in": (64, 8), "offset": (8,), "out": (8, 10)}
    params = {name: jnp.asarray(0.3 * rng.normal(size=shape), jnp.float32) for name, shape in shapes.items()}
    return params, (jnp.asarray(data.inputs[rows]), jnp.asarray(data.labels[rows]))


def mean_losses(params: Any, batch: Any) -> np.ndarray:
    (images, labels), known = batch, {name: np.asarray(leaf, np.float64) for name, leaf in params.items()}
    logits = np.tanh(np.reshape(images, (6, 5, 64)) @ known["in"] + known["offset"]) @ known["out"]
    chosen = np.take_along_axis(logits, np.asarray(labels)[..., None], axis=2)[..., 0]
    return (np.log(np.exp(logits).sum(axis=2)) - chosen).mean(axis=1)


def test_examples_of_a_client_are_clipped_as_one(digits):
    params, batch = digits
    examples = jax.tree.map(lambda leaf: leaf.reshape(30, *leaf.shape[2:]), batch)
    each = by_vmap.gradients(softmax, params, examples)
    losses = mean_losses(params, batch)
    updates = each.reshape(6, 5, -1).mean(axis=1)
    clip_norm = float(np.median(np.linalg.norm(updates, axis=1)))
    wanted, norms = by_vmap.clipped_sum(each / 5, clip_norm, group_size=5)
    assert (norms > clip_norm).sum() == 3

    update = clients.gradients(softmax)
    clipped, unclipped, (found, found_losses) = jax.jit(
        lambda: (
            update.clipped_sum(params, batch, clip_norm),
            update.clipped_sum(params, batch, None),
            update.each(params, batch),
        )
    )()
    assert jax.tree.structure(clipped.total) == jax.tree.structure(params)
    assert by_vmap.relative_error(clipped.total, wanted) < 1e-5
    assert by_vmap.relative_error(unclipped.total, updates.sum(axis=0)) < 1e-5
    assert by_vmap.relative_error(found, updates.ravel()) < 1e-5
    for norm, loss in ((clipped.norms, clipped.losses), (unclipped.norms, found_losses)):
        np.testing.assert_allclose(norm, norms, rtol=1e-5)
        np.testing.assert_allclose(loss, losses, rtol=1e-5)
    example_by_example, _ = by_vmap.clipped_sum(each / 5, clip_norm / 5)
    assert by_vmap.relative_error(clipped.total, example_by_example) > 0.05


@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_no_client_adds_more_than_the_clip_norm_in_any_type(name: str, dtype: Any) -> None:
    """Not more by a rounding error either."""
    batches = jax.random.normal(KEY, (300, 1, 2, 3)) * jnp.exp(jnp.arange(300) / 100)[:, None, None, None]
    params = jax.tree.map(lambda leaf: leaf.astype(dtype), PARAMS)

    def loss(params: Any, example: jax.Array) -> jax.Array:
        return linear(params, example.astype(dtype))

    update = {"gradients": clients.gradients, "local_training": partial(clients.local_training, steps=1)}[name]
    update = update(loss, **({} if name == "gradients" else {"optimizer": optax.sgd(1.0)}))
    sent = jax.jit(jax.vmap(lambda batch: update.clipped_sum(params, batch, 0.77)))(batches)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(sent.total))
    lengths = np.linalg.norm(np.concatenate([np.asarray(sent.total[x], np.float64) for x in "ab"], axis=1), axis=1)
    assert 0.9999 * 0.77 < lengths.max() <= 0.77


def test_local_training_is_a_loop_of_steps(digits):
    """Three Adam steps on a client's own mean loss, each client from the server's model and a fresh state."""
    params, batch = digits
    optimizer = optax.adam(0.01)

    @jax.jit
    def step(local, state, own):
        gradient = jax.grad(lambda p: jnp.mean(jax.vmap(softmax, in_axes=(None, 0))(p, own)))(local)
        steps, state = optimizer.update(gradient, state, local)
        return optax.apply_updates(local, steps), state

    updates = []
    for k in range(6):
        local, state = params, optimizer.init(params)
        for _ in range(3):
            local, state = step(local, state, jax.tree.map(lambda leaf, k=k: leaf[k], batch))
        updates.append(flat(params) - flat(local))
    norms = np.linalg.norm(updates, axis=1)
    clip_norm = float(np.median(norms))
    update = clients.local_training(softmax, optimizer, steps=3)
    sent = jax.jit(lambda: update.clipped_sum(params, batch, clip_norm))()
    assert by_vmap.relative_error(sent.total, one_by_one(np.array(updates), clip_norm).sum(axis=0)) < 1e-4
    np.testing.assert_allclose(sent.norms, norms, rtol=1e-4)
    np.testing.assert_allclose(sent.losses, mean_losses(params, batch), rtol=1e-5)


BROKEN = {1: math.nan, 3: math.inf, 4: 1e25}  # the last one's square is beyond float32


def kinds(update: Update, noise_multiplier: float = 1.0) -> dict[str, Client]:
    return {
        "aggregated": clients.gaussian(update, noise_multiplier=noise_multiplier),
        "each": clients.gaussian(update, noise_multiplier=noise_multiplier, each=True),
        "randomized": clients.randomized(update, epsilon=1.0),
    }


@partial(jax.jit, static_argnames="name")
def sent(batch: jax.Array, clip_norm: Any, *, name: str) -> dict[str, Sent]:
    """What 6 clients send, without noise and of every kind with that of the round."""
    update, found = UPDATES[name], {}
    for kind, client in kinds(update).items():
        own = client.send(jax.random.split(KEY, 6), PARAMS, batch, clip_norm)
        found[kind] = own._replace(total=client.noise(KEY, own.total, clip_norm, 6))
    clipped, unclipped = (update.clipped_sum(PARAMS, batch, c) for c in (clip_norm, None))
    return found | {"clipped": clipped, "unclipped": unclipped}


@pytest.mark.parametrize("name", UPDATES)
def test_clients_that_are_not_finite_add_nothing_and_poison_nobody(name):
    clip_norm = 0.4
    sound = np.random.default_rng(2).normal(size=(6, 5, 3)).astype(np.float32)
    broken, zeroed = sound.copy(), sound.copy()
    for k, value in BROKEN.items():
        broken[k, 2, 0] = value
        zeroed[k] = 0
    rest = np.delete(sound, list(BROKEN), axis=0).mean(axis=1, dtype=np.float64)
    of_broken, of_zeroed = (sent(batch, clip_norm, name=name) for batch in (broken, zeroed))
    for kind, wanted in (("clipped", one_by_one(rest, clip_norm)), ("unclipped", rest)):
        np.testing.assert_allclose(flat(of_broken[kind].total), wanted.sum(axis=0), rtol=1e-5, atol=1e-6)
    for kind, found in of_broken.items():
        assert np.flatnonzero(~np.isfinite(found.norms)).tolist() == list(BROKEN)
        np.testing.assert_allclose(flat(found.total), flat(of_zeroed[kind].total), rtol=1e-6)  # as clients with zeros


@pytest.mark.parametrize("name", UPDATES)
def test_a_clip_norm_of_zero_lets_nothing_through(name):
    """A schedule may end there; updates of zero must not make 0/0 of it."""
    batch = np.repeat([0.0, 1.0], 3)[:, None, None] * np.ones((6, 5, 3), np.float32)
    found = sent(batch.astype(np.float32), 0.0, name=name)
    assert (flat(found.pop("unclipped").total) == 3).all()
    assert len(found) == 4
    assert all((flat(message.total) == 0).all() for message in found.values())


@pytest.mark.parametrize("name", UPDATES)
def test_messages_of_a_narrow_model_are_wide(name):
    """bfloat16 has 128 different normals; messages are float32 whatever the model is."""
    params = {"a": jnp.zeros(2, jnp.bfloat16), "b": jnp.zeros(1, jnp.bfloat16)}
    batch = jnp.ones((2, 5, 3), jnp.bfloat16)
    for client in (*kinds(UPDATES[name]).values(), clients.exact(UPDATES[name])):
        sent = jax.eval_shape(lambda client=client: client.send(jax.random.split(KEY, 2), params, batch, 0.3))
        noised = jax.eval_shape(lambda total, client=client: client.noise(KEY, total, 0.3, 2), sent.total)
        assert {leaf.dtype for leaf in jax.tree.leaves((sent.total, noised))} == {jnp.dtype(jnp.float32)}


@pytest.mark.parametrize("name", UPDATES)
def test_messages_keep_their_type_where_jax_computes_in_64_bits(name):
    """A server's optimiser keeps a state of the type of the first model, wide: a message has that type too."""
    with jax.enable_x64(True):
        params = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), PARAMS)
        batch = jnp.ones((2, 5, 3), jnp.float32)
        for client in (*kinds(UPDATES[name]).values(), clients.exact(UPDATES[name])):
            sent = jax.eval_shape(lambda client=client: client.send(jax.random.split(KEY, 2), params, batch, 0.3))
            assert {leaf.dtype for leaf in jax.tree.leaves(sent)} == {jnp.dtype(jnp.float32)}


# noise in law

M, C, Z, DRAWS = 7, 0.3, 1.5, 20_000
BATCH = jnp.asarray(np.random.default_rng(3).normal(size=(M, 5, 3)) * [[[1.0]], *[[[0.1]]] * (M - 1)], jnp.float32)
CLIPPED = one_by_one(np.asarray(BATCH, np.float64).mean(axis=1), C)
DIRECTIONS = np.linalg.qr(np.random.default_rng(4).normal(size=(3, 3)))[0]


def totals(client: Client) -> np.ndarray:
    """[DRAWS, 3]: what the server adds up in rounds that differ in their key alone."""

    def one(key: jax.Array) -> jax.Array:
        send_key, noise_key = jax.random.split(key)
        sent = client.send(jax.random.split(send_key, M), PARAMS, BATCH, C)
        return ravel_pytree(client.noise(noise_key, sent.total, C, M))[0]

    return np.asarray(jax.jit(jax.vmap(one))(jax.random.split(KEY, DRAWS)), np.float64)


@pytest.fixture(scope="module")
def noisy() -> dict[str, np.ndarray]:
    right = kinds(FEDSGD, Z)
    return {name: totals(right[name]) for name in ("aggregated", "each")}


def departures(found: np.ndarray) -> tuple[float, float]:
    """How far ``found`` is from N(sum of clipped updates, M (C Z)^2 I).

    The largest error of a mean or a covariance in standard errors, and the least p-value of Kolmogorov-Smirnov tests
    along DIRECTIONS.
    """
    noise = (found - CLIPPED.sum(axis=0)) / (math.sqrt(M) * C * Z)
    means = noise.mean(axis=0) * math.sqrt(DRAWS)
    covariance = (noise.T @ noise / DRAWS - np.eye(3)) * math.sqrt(DRAWS) / np.sqrt(1 + np.eye(3))
    p_value = min(stats.kstest(column, "norm")[1] for column in (noise @ DIRECTIONS).T)
    return float(max(np.abs(means).max(), np.abs(covariance).max())), float(p_value)


def test_noise_drawn_once_is_in_law_that_of_every_client(noisy):
    for found in noisy.values():
        errors, p_value = departures(found)
        assert errors < 4.5
        assert p_value > 1e-3
    for direction in DIRECTIONS.T:
        assert apart(noisy["aggregated"] @ direction, noisy["each"] @ direction) > 1e-3


def test_noise_of_a_wrong_law_is_found_out(noisy):
    """m for sqrt(m) (or one draw for all clients), no C, no sqrt(m), 6% too much, updates twice as long."""
    center = CLIPPED.sum(axis=0)
    noise = noisy["aggregated"] - center
    wrong = [center + factor * noise for factor in (math.sqrt(M), 1 / C, 1 / math.sqrt(M), 1.06)]
    for found in (*wrong, noisy["aggregated"] + center):
        errors, p_value = departures(found)
        assert errors > 6
        assert p_value < 1e-3


def test_what_randomised_clients_send_is_unbiased():
    """The mean of many sums is the sum of clipped updates."""
    found = totals(clients.randomized(FEDSGD, epsilon=2.0))

    def errors(found: np.ndarray) -> float:
        return float(np.abs((found.mean(axis=0) - CLIPPED.sum(axis=0)) / found.std(axis=0)).max() * math.sqrt(DRAWS))

    assert errors(found) < 4
    assert errors(found / 3) > 6  # Algorithm 2, line 4 as printed, short by the factor d
    assert errors(found / C) > 6
    assert errors(found * 2) > 6


# one message

WORST = jnp.array([[[0.0, 3.0, 4.0]], [[0.0, -3.0, -4.0]]])  # opposite gradients, longer than C
CLAIM = dpaudit.Claim(2.0, 1e-3)
UNIT_STD = gaussian.noise_std(epsilon=CLAIM.epsilon, delta=CLAIM.delta, clip_norm=1.0)  # of sensitivity 2


@pytest.mark.parametrize("each", [False, True])
def test_a_message_has_the_law_of_the_gaussian_mechanism(each):
    reference = gaussian.mechanism(epsilon=CLAIM.epsilon, delta=CLAIM.delta, clip_norm=C)
    ours = clients.message(clients.gaussian(FEDSGD, noise_multiplier=UNIT_STD, each=each), PARAMS, C, CLAIM)
    examples = jnp.array([[0.0, 6.0, 8.0], [0.0, 0.0, 0.0]])  # of mean WORST[0]

    def draws(mechanism: dpaudit.Mechanism, x: Any, seed: int) -> np.ndarray:
        keys = jax.random.split(jax.random.key(seed), DRAWS)
        return np.asarray(jax.jit(jax.vmap(lambda key: mechanism.apply(key, x)))(keys), np.float64)

    found, wanted = draws(ours, examples, 1), draws(reference, WORST[0, 0], 2)
    std = gaussian.noise_std(epsilon=CLAIM.epsilon, delta=CLAIM.delta, clip_norm=C)
    np.testing.assert_allclose(found.mean(axis=0), [0, 0.6 * C, 0.8 * C], atol=4 * std / math.sqrt(DRAWS))
    np.testing.assert_allclose(found.std(axis=0), std, rtol=4 / math.sqrt(2 * DRAWS))
    for column in range(3):
        assert apart(found[:, column], wanted[:, column]) > 1e-3
        assert apart(found[:, column], wanted[:, column] / 2) < 1e-3  # the noise for sensitivity C
    assert ours.claim == CLAIM


def audited(noise_multiplier: float) -> dpaudit.AuditResult:
    """One client's message on the worst pair, by the likelihood ratio of its Gaussian release."""
    client = clients.gaussian(FEDSGD, noise_multiplier=noise_multiplier)

    def log_prob(release: jax.Array, examples: jax.Array) -> jax.Array:
        gradient = examples.mean(axis=0)
        clipped = gradient * jnp.minimum(1, C / jnp.linalg.norm(gradient))
        return -jnp.sum((release - clipped) ** 2) / (2 * (C * noise_multiplier) ** 2)

    mechanism = clients.message(client, PARAMS, C, CLAIM)._replace(log_prob=log_prob)
    attack = dpaudit.distinguish.likelihood_ratio
    return dpaudit.audit(mechanism, *WORST, key=KEY, trials=100_000, distinguisher=attack)


@pytest.mark.integration
def test_an_audit_clears_noise_for_2c_and_calls_noise_for_c_a_violation():
    right, wrong = audited(UNIT_STD), audited(UNIT_STD / 2)
    assert (right.method.split(",")[0], right.delta) == ("likelihood ratio", CLAIM.delta)
    assert right.verdict == "consistent"
    assert 1.2 < right.epsilon_lower <= CLAIM.epsilon
    assert wrong.verdict == "violation"
    assert wrong.epsilon_lower > 1.5 * CLAIM.epsilon


def test_a_randomised_message_is_on_its_gradients_side_as_often_as_promised():
    """Algorithm 1 for |g| >= C: with probability e^epsilon/(1 + e^epsilon); and of the length that undoes its bias."""
    epsilon = 1.5
    mechanism = clients.message(clients.randomized(FEDAVG, epsilon=epsilon), PARAMS, C, dpaudit.Claim(epsilon))
    found = np.asarray(jax.jit(jax.vmap(lambda key: mechanism.apply(key, WORST[0])))(jax.random.split(KEY, DRAWS)))
    length = ldp_sgd.unbiasing_factor(3, epsilon=epsilon, clip_norm=C)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), length, rtol=1e-5)
    right, promised = int((found @ np.asarray(WORST[0, 0]) > 0).sum()), 1 / (1 + math.exp(-epsilon))
    assert stats.binomtest(right, DRAWS, promised).pvalue > 1e-3
    assert stats.binomtest(right, DRAWS, promised + 0.04).pvalue < 1e-6  # 15 deviations away, 4.9 are enough


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: clients.gaussian(FEDSGD, noise_multiplier=0.0), "noise_multiplier: expected a finite number > 0"),
        (lambda: clients.randomized(FEDSGD, epsilon=-1.0), "epsilon: expected a finite number > 0, got -1.0"),
        (
            lambda: clients.message(clients.exact(FEDAVG), PARAMS, 0.0, CLAIM),
            "clip_norm: expected a finite number > 0",
        ),
        (lambda: clients.local_training(linear, optax.sgd(1), steps=0), "steps: expected a whole number >= 1, got 0"),
        (lambda: clients.local_training(linear, NOTHING, steps=1), "optimizer: expected an optax.GradientTransf"),
        (lambda: clients.gradients(NOTHING), "loss_fn: expected a function, got None"),
    ],
)
def test_bad_input_is_refused(make, message):
    with pytest.raises(_validate.InputError, match=message):
        make()


@pytest.mark.parametrize(
    "wrong, message", [({"rule": 0.5}, "rule: .* Rule"), ({"client": FEDSGD}, "client: .* Client")]
)
def test_what_is_no_client_or_rule_is_refused(wrong, message):
    given = {"client": clients.exact(FEDSGD), "rule": clip_size.fixed(1.0)} | wrong
    with pytest.raises(_validate.InputError, match=f"^{message} of dpaudit.federated, got "):
        federated(**given, clients_per_round=3, optimizer=optax.sgd(0.1))


@pytest.mark.parametrize("multiplier", [np.int8(100), np.uint8(100), np.float16(100)])
def test_noise_of_a_multiplier_of_a_narrow_type_is_that_of_the_number(multiplier):
    """2 * np.int8(100) is -56."""
    total = {"a": jnp.zeros(2), "b": jnp.zeros(1)}
    narrow, plain = (
        clients.gaussian(FEDSGD, noise_multiplier=each).noise(KEY, total, np.int8(2), 1)
        for each in (multiplier, 100.0)
    )
    np.testing.assert_allclose(ravel_pytree(narrow)[0], ravel_pytree(plain)[0], rtol=1e-6)
    assert np.abs(ravel_pytree(plain)[0]).max() > 20
