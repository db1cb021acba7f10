"""Audits of whole trainings: what an adversary proves of sound and of faulty ones, beside the accounted epsilon.

    python -m experiments.paper003.audit                     # with MNIST, where it is found: half an hour
    python -m experiments.paper003.audit --quick --out DIR   # bundled digits: under a minute

Every audit is made three times: of DP-SGD as it ships, with its noise halved, and with its clipping skipped.

Expect every bound of a sound training at or below its accounted epsilon, 0.9 to 1 of it where the audit reads common
events (full batches, coins in every step) and less where it waits for rare ones; those of the faulty ones above it.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dpaudit import InputError, Mechanism, data, distinguish
from dpaudit import audit as run_audit
from dpaudit._engine import hosts
from dpaudit.auditing.bounds import gdp
from dpaudit.audits import training_canary
from dpaudit.audits.audited_training import train_audited
from dpaudit.training import accounting, models
from dpaudit.training.dp_sgd import Trainer, dp_sgd
from dpaudit.training.sampling import poisson
from experiments.common import Rows, as_command, options

RECORDS = 20  # digits behind the audits of many trainings
FAULTY = 100_000  # trainings of a faulty twin at most
CONFIDENCE = 0.95

Make = Callable[..., Trainer]
Found = tuple[float, float, str]  # the audited lower bound, the accounted epsilon, what was run


def noise_halved(loss_fn: Any, *, noise_multiplier: float, **settings: Any) -> Trainer:
    return dp_sgd(loss_fn, noise_multiplier=noise_multiplier / 2, **settings)


clipping_skipped = partial(dp_sgd, clipping=lambda norms, clip_norm: jnp.ones_like(norms))
TRAININGS: dict[str, Make] = {"sound": dp_sgd, "noise halved": noise_halved, "clipping skipped": clipping_skipped}


def compare(rows: Rows, setting: dict[str, Any], audit: Callable[[jax.Array, Make], Found]) -> None:
    """Runs one audit of the three trainings, a row each."""
    for training, make in TRAININGS.items():
        lower, spent, scale = audit(jax.random.fold_in(jax.random.key(rows.seed), len(rows.rows)), make)
        said = {"training": training, "accounted": spent, "confidence": CONFIDENCE}
        rows.add("epsilon_lower", setting | said, lower, scale=scale)
    lowers = ", ".join(f"{row['ours']:.3f}" for row in rows.rows[-len(TRAININGS) :])
    rows.finish_part(f"{setting}: {lowers} of {rows.rows[-1]['setting']['accounted']:.3f}")


def below_five(batch_size: int, steps: int, target: float, delta: float, make: Make) -> training_canary.Recipe:
    """Returns a training to be made thousands of times over: is a digit below five? Canary or target is one record
    more."""
    noise = _noise(batch_size, steps, target, delta)
    return training_canary.Recipe(
        _logistic, jnp.zeros(64), _digits(), steps, 0.5, noise, batch_size, optax.sgd(0.1), make
    )


@cache
def _noise(batch_size: int, steps: int, target: float, delta: float) -> float:
    return accounting.noise_multiplier(poisson(RECORDS + 1, batch_size), target, steps, delta=delta)


def played(key: jax.Array, mechanism: Mechanism, trials: int, *, gaussian: bool = False) -> Found:
    """Returns the bound of ``dpaudit.audit``; or that for a Gaussian trade-off curve, at a threshold known
    beforehand."""
    attack = distinguish.likelihood_ratio._replace(threshold=0.0) if gaussian else None
    pair = training_canary.ABSENT, training_canary.PRESENT
    how = {"distinguisher": attack, "confidence": CONFIDENCE, "mesh": hosts.mesh("trials")}
    found = run_audit(mechanism, *pair, key=key, trials=trials, **how)
    counts = round(found.fpr * found.negatives), round(found.fnr * found.positives), found.negatives, found.positives
    as_gaussian, _ = gdp.epsilon_bounds(*counts, delta=found.delta, confidence=CONFIDENCE)
    assert found.claim is not None
    lower = float(as_gaussian) if gaussian else found.epsilon_lower
    return lower, found.claim.epsilon, f"{trials:,} trainings"


def white_box(
    rows: Rows, batch_size: int, steps: int, target: float, delta: float, trials: int, *, gaussian: bool = False
) -> None:
    """Audits every step's noisy sum, of many trainings; the canary is in the data of one in two."""

    def audit(key: jax.Array, make: Make) -> Found:
        recipe = below_five(batch_size, steps, target, delta, make)
        count = trials if make is dp_sgd else min(trials, FAULTY)
        return played(key, training_canary.white_box(recipe, delta=delta), count, gaussian=gaussian)

    setting = {"audit": "white box", "rate": batch_size / (RECORDS + 1), "steps": steps, "delta": delta}
    compare(rows, setting | {"curve": "Gaussian" if gaussian else "any"}, audit)


def every_step(rows: Rows, steps: int, canaries: int) -> None:
    """Audits every step's noisy sum, of one training of a network, with coins in every step."""
    digits = data.load("digits")
    model = models.model_for(digits.inputs.shape[1:], digits.num_classes)
    params = models.initial_parameters(jax.random.key(rows.seed), model, digits.inputs.shape[1:])
    loss, delta, batch_size = models.cross_entropy(model), 1e-5, 128
    sampling = poisson(len(digits.inputs), batch_size)
    noise = accounting.noise_multiplier(sampling, 4.0, steps, delta=delta)
    sound = training_canary.Recipe(
        lambda params, example: loss(params, *example),
        params,
        (jnp.asarray(digits.inputs), jnp.asarray(digits.labels)),
        steps=steps,
        clip_norm=1.0,
        noise_multiplier=noise,
        batch_size=batch_size,
        optimizer=optax.adam(0.01),
    )

    def audit(key: jax.Array, make: Make) -> Found:
        recipe = sound._replace(make=make)
        found, _ = training_canary.per_step(key, recipe, canaries=canaries)
        lower = training_canary.epsilon_lower(found, recipe, delta=delta, confidence=CONFIDENCE)
        spent = accounting.epsilon(sampling, noise, steps, delta=delta)
        return lower, spent, f"1 training, {canaries:,} canaries, coins in every step"

    setting = {"audit": "white box, coins in every step", "rate": batch_size / len(digits.inputs), "steps": steps}
    compare(rows, setting | {"delta": delta, "data": "digits"}, audit)


def one_run(rows: Rows, name: str, batch_size: int, steps: int) -> None:
    """Audits every step's noisy sum, of one training with canaries that are there from beginning to end or not at
    all."""
    try:
        train, test = (data.load(name, split=split, data_dir=rows.data_dir) for split in data.SPLITS)
    except InputError as error:
        print(f"{name} is left out: {error}")
        return
    canaries, delta = 5_000, 1e-5

    def audit(key: jax.Array, make: Make) -> Found:
        row, _ = train_audited(
            key,
            train,
            test,
            epsilon=1.5,
            delta=delta,
            steps=steps,
            batch_size=batch_size,
            clip_norm=1.0,
            optimizer=optax.adam(0.005),
            canaries=canaries,
            confidence=CONFIDENCE,
            make=make,
        )
        scale = f"1 training, {canaries:,} canaries, test accuracy {row['accuracy']:.1%}"
        return row["epsilon_lower"], row["epsilon_accounted"], scale

    rate = batch_size / (len(train.inputs) + canaries)
    compare(rows, {"audit": "one run", "rate": rate, "steps": steps, "delta": delta, "data": train.label}, audit)


def black_box(rows: Rows, target: str, batch_size: int, trials: int) -> None:
    """Audits the loss of one record, of many trainings; it is in the data of one in two."""
    unlit = jnp.max(_digits()[0], axis=0) == 0
    images = {"watermark": 1.0 * unlit, "test digit": jnp.asarray(data.load("digits", split="test").inputs[0].ravel())}
    steps, delta = 10, 1e-2

    def audit(key: jax.Array, make: Make) -> Found:
        recipe = below_five(batch_size, steps, 4.0, delta, make)
        return played(key, training_canary.black_box(recipe, (images[target], jnp.float32(1.0)), delta=delta), trials)

    setting = {"audit": "black box", "rate": batch_size / (RECORDS + 1), "steps": steps, "delta": delta}
    compare(rows, setting | {"target": target}, audit)


@cache
def _digits() -> tuple[jax.Array, jax.Array]:
    digits = data.load("digits")
    images, small = digits.inputs[:RECORDS].reshape(RECORDS, -1), digits.labels[:RECORDS] < 5
    return jnp.asarray(images), jnp.where(small, 1.0, -1.0)


def _logistic(weights: jax.Array, example: tuple[jax.Array, jax.Array]) -> jax.Array:
    image, sign = example
    return jax.nn.softplus(-sign * (image @ weights))


REPRODUCIBLE = {"white_box": white_box, "every_step": every_step, "one_run": one_run, "black_box": black_box}


def main() -> None:
    chosen = options(__doc__ or "").parse_args()
    rows = Rows("training", "training_audit", chosen.out, chosen.seed, data_dir=chosen.data_dir)
    full, some, one = RECORDS + 1, 4, 1
    if chosen.quick:
        rows.run(white_box, full, 10, 4.0, 1e-2, 8_000, gaussian=True)
        rows.run(every_step, 10, 200)
        rows.run(black_box, "watermark", full, 8_000)
        return
    for delta in (1e-2, 1e-5):
        for target in (1.0, 4.0):
            rows.run(white_box, full, 10, target, delta, 100_000, gaussian=True)
            rows.run(white_box, full, 10, target, delta, 100_000)
        rows.run(white_box, some, 10, 4.0, delta, 100_000)
    rows.run(white_box, one, 100, 2.0, 1e-2, 100_000)
    rows.run(white_box, full, 10, 4.0, 1e-2, 1_000_000)
    rows.run(every_step, 100, 1_000)
    rows.run(one_run, "digits", 64, 300)
    rows.run(one_run, "mnist", 256, 300)
    rows.run(black_box, "watermark", full, 100_000)
    rows.run(black_box, "watermark", some, 100_000)
    rows.run(black_box, "test digit", some, 100_000)


if __name__ == "__main__":
    as_command(main)
