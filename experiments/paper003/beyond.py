"""Goes beyond the paper: the same training seen by the strongest adversary, and many targets at once."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy.special import logit

from dpaudit.auditing.bounds import one_run
from dpaudit.auditing.bounds.one_run import Plan
from dpaudit.audits import training_canary
from dpaudit.training.dp_sgd import dp_sgd
from dpaudit.training.dropout import mc_dropout, membership
from dpaudit.training.dropout.membership import FINEST
from dpaudit.training.many import train_many
from dpaudit.training.neighbouring import Rows
from experiments.paper003.bench import CLIP_NORM, DELTA, LEARNING_RATE, Bench
from experiments.paper003.questions import CONFIDENCE, DETERMINISTIC, Book

CANARIES = 1_000  # of one training, each with a coin in every step
RUNS = 10  # single networks, each with all targets: a hundredth of the paper's 1,000 trainings of one target
SAMPLES = 100  # T, of so many targets


def recipe(bench: Bench, key: jax.Array) -> training_canary.Recipe:
    """Returns the training of all networks, on D'; a canary is a record more."""
    rows = bench.rows.members
    return training_canary.Recipe(
        lambda params, example, key: bench.loss(params, *example, key),
        bench.first(key),
        (jnp.asarray(bench.images[rows]), jnp.asarray(bench.labels[rows])),
        steps=bench.scale.steps,
        clip_norm=CLIP_NORM,
        noise_multiplier=bench.noise,
        batch_size=bench.scale.batch_size,
        optimizer=optax.sgd(LEARNING_RATE),
        make=partial(dp_sgd, dropout=True),
    )


def white_box(book: Book, key: jax.Array) -> None:
    """Audits by a gradient canary what every step's noisy sum reveals, of one training and of as many as a target
    has."""
    init_key, step_key, play_key = jax.random.split(key, 3)
    own = recipe(book.bench, init_key)
    found, _ = training_canary.per_step(step_key, own, canaries=CANARIES)
    lower = training_canary.epsilon_lower(found, own, delta=DELTA, confidence=CONFIDENCE)
    book.write("white_box", {"by": "one training"}, lower, guesses=len(found.scores))
    if book.bench.scale.repeats > 1:
        played(book, play_key, training_canary.white_box(own, delta=DELTA))


def played(book: Book, key: jax.Array, mechanism: Any) -> None:
    """Plays the same game as the targets', with as many networks, for an adversary who sees every step."""
    coin_key, run_key, audit_key = jax.random.split(key, 3)
    count = book.bench.scale.trainings
    member = jax.random.bernoulli(coin_key, 0.5, (count,))

    def score(key: jax.Array, present: jax.Array) -> jax.Array:
        release = mechanism.apply(key, present)
        return mechanism.log_prob(release, training_canary.PRESENT) - mechanism.log_prob(
            release, training_canary.ABSENT
        )

    scores = train_many(score, (jax.random.split(run_key, count), member.astype(jnp.float32)))
    seen = np.asarray(scores, np.float64)[:, None], np.asarray(member)
    risk = membership.audit(audit_key, *seen, delta=DELTA, confidence=CONFIDENCE)
    more = {"of_all": risk.estimate.value, "networks": count, "ceiling": most(book, key)}
    book.write("white_box", {"by": "as many trainings"}, risk.honest.epsilon_lower, **more)


def most(book: Book, key: jax.Array) -> float:
    """Returns the largest bound that so many networks can give: that of an attack which is never wrong."""
    member = np.arange(book.bench.scale.trainings) % 2 == 1
    risk = membership.audit(key, member[:, None].astype(float), member, delta=DELTA, confidence=CONFIDENCE)
    return risk.honest.epsilon_lower


def many_targets(book: Book, key: jax.Array, shadows: Any) -> None:
    """Audits every record of D' as a target, in the data by a coin of its own: one network bounds epsilon by itself.

    A target's score is the logit of the mean probability of its class, less the same of the shadow models: a record
    that is easy for all tells nothing of its membership.
    """
    bench, n = book.bench, book.bench.scale.records
    learn, rows = bench.learner(n, bench.scale.steps), bench.all_of(bench.rows.members)
    plans = [Plan(count, count) for count in (n // 40, n // 10, n // 4)]  # before any coin is seen
    coin_key, run_key, look_key = jax.random.split(key, 3)
    included = jax.random.bernoulli(coin_key, 0.5, (RUNS, n))

    def look(key: jax.Array, params: Any, rows: Rows) -> dict[str, jax.Array]:
        images, labels = rows.records
        sampled = mc_dropout.statistics(key, bench.probabilities, params, images, samples=SAMPLES)
        seen = {"mean": sampled.mean, DETERMINISTIC: mc_dropout.predict(bench.probabilities, params, images)}
        return {name: told[jnp.arange(n), labels] for name, told in seen.items()}

    arguments = jax.random.split(run_key, RUNS), included.astype(jnp.float32)
    trained = bench.together(learn, arguments, shared=(rows,))
    own, others = (
        bench.together(look, (jax.random.split(look_key, len(jax.tree.leaves(params)[0])), params), shared=(rows,))
        for params in (trained, shadows)
    )
    for name, told in own.items():
        scores = _logit(told) - _logit(others[name]).mean(axis=0)
        pairs = zip(scores, np.asarray(included), strict=True)
        found = [one_run.audit(*pair, plans, delta=DELTA, confidence=CONFIDENCE) for pair in pairs]
        lower = [run.epsilon_lower for run in found]
        ceiling = one_run.ceiling(n, plans, delta=DELTA, confidence=CONFIDENCE)
        right = float(np.mean([run.correct / sum(run.plan) for run in found]))
        more = {"each": lower, "right": right, "targets": n, "runs": RUNS, "ceiling": ceiling, "samples": SAMPLES}
        book.write("one_run", {"seen": name}, float(np.mean(lower)), **more)


def _logit(probabilities: Any) -> np.ndarray:
    return logit(np.clip(np.asarray(probabilities, np.float64), FINEST, 1 - FINEST))
