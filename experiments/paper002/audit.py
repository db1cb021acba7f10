"""Audits of federated learning under local privacy: one message, and whole runs by canary clients.

    python -m experiments.paper002.audit                     # MNIST, where it is found: under five minutes
    python -m experiments.paper002.audit --quick --out DIR   # bundled digits: under a minute

One message is audited against the epsilon that it claims, as it ships and with the noise of half the sensitivity. A
run is audited against what is accounted for a client in the server's sums: as it ships, with its noise halved, and
with its clipping skipped.

Expect a Gaussian message with the noise of sensitivity C to be found out by 200 trials read as a Gaussian curve, and
by millions where nothing is assumed; sound runs at or below what is accounted; and their faults in the transcript.
"""

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpaudit import Claim, InputError, data, distinguish
from dpaudit._engine import hosts
from dpaudit.audits import federated_canary
from dpaudit.federated import accounting, clients, clip_size, population
from dpaudit.federated.clients import Client, Loss, Update
from dpaudit.mechanisms import gaussian
from dpaudit.training import models
from dpaudit.training.models import accuracy
from experiments.common import Rows, as_command, options

EPSILON, DELTA, CLIP_NORM = 8.0, 1e-7, 0.05
NOISE = gaussian.noise_std(epsilon=EPSILON, delta=DELTA, clip_norm=1.0)  # of sensitivity 2 C
ABSENCE = math.log(2 * math.exp(EPSILON) - 1)  # LDP-SGD that keeps EPSILON between a client's presence and absence
CONFIDENCE = 0.95
HALFWAY = distinguish.projection._replace(threshold=0.0)

MakeClient = Callable[[Update], Client]
WIRE: dict[
    str, tuple[float, dict[str, tuple[float, MakeClient]]]
] = {  # delta, and (true epsilon, client) by calibration
    "Gaussian": (
        DELTA,
        {
            "sound": (EPSILON, partial(clients.gaussian, noise_multiplier=NOISE)),
            "sensitivity C": (
                accounting.gaussian(1, noise_multiplier=NOISE / 2, delta=DELTA),
                partial(clients.gaussian, noise_multiplier=NOISE / 2),
            ),
        },
    ),
    "LDP-SGD": (
        0.0,
        {
            "sound": (EPSILON, partial(clients.randomized, epsilon=EPSILON)),
            "sensitivity C": (ABSENCE, partial(clients.randomized, epsilon=ABSENCE)),
        },
    ),
}


def unclipped(loss_fn: Loss) -> Update:
    update = clients.gradients(loss_fn)
    return update._replace(clipped_sum=lambda params, batch, clip_norm: update.clipped_sum(params, batch, None))


RUNS: dict[str, dict[str, Any]] = {
    "sound": {},
    "noise halved": {"client": partial(clients.gaussian, noise_multiplier=NOISE / 2)},
    "clipping skipped": {"update": unclipped},
}


def message(rows: Rows, client: str, dimension: int, trials: int, *, curve: str) -> None:
    """Audits one message of one client; its bound assumes nothing, or a Gaussian curve at a threshold known
    beforehand."""
    delta, calibrations = WIRE[client]
    for calibration, (true, make) in calibrations.items():
        result = federated_canary.message(
            jax.random.fold_in(jax.random.key(rows.seed), len(rows.rows)),
            make,
            jnp.zeros(dimension),
            Claim(EPSILON, delta),
            clip_norm=CLIP_NORM,
            trials=trials,
            confidence=CONFIDENCE,
            mesh=hosts.mesh("trials"),
            distinguisher=None if curve == "any" and delta else HALFWAY,
        )
        found = (
            federated_canary.as_gaussian(result)
            if curve == "Gaussian"
            else (result.epsilon_lower, result.epsilon_upper)
        )
        setting = {"seat": "message", "client": client, "fault": calibration, "curve": curve, "dimension": dimension}
        setting |= {"delta": delta, "confidence": CONFIDENCE, "claimed": EPSILON, "true": true}
        rows.add("epsilon_lower", setting, found[0], found, scale=f"{trials:,} trials")
    rows.finish_part(f"message of {client}, {curve} curve")


def run(rows: Rows, name: str, others: int, canaries: int, m: int, count: int) -> None:
    """Whole runs with ``others`` clients and canaries, m of all in a round, seen round by round or at the end."""
    try:
        train, test = (data.load(name, split=split, data_dir=rows.data_dir) for split in data.SPLITS)
    except InputError as error:
        print(f"{name} is left out: {error}")
        return
    model = models.model_for(train.inputs.shape[1:], train.num_classes)
    loss = models.cross_entropy(model)
    model_key, population_key, run_key = jax.random.split(jax.random.key(rows.seed), 3)
    sound = federated_canary.Federation(
        lambda params, example: loss(params, *example),
        models.initial_parameters(model_key, model, train.inputs.shape[1:]),
        population.iid(population_key, len(train.labels), clients=others),
        (jnp.asarray(train.inputs), jnp.asarray(train.labels)),
        clients_per_round=m,
        rounds=count,
        rule=clip_size.fixed(CLIP_NORM),
        optimizer=optax.sgd(1.0),
        client=partial(clients.gaussian, noise_multiplier=NOISE),
    )
    for fault, changed in RUNS.items():
        found, params = federated_canary.one_run(run_key, sound._replace(**changed), canaries=canaries)
        times = round(np.mean(found.taken.sum(axis=0)))
        right = accuracy(model, params, test.inputs, test.labels)
        messages = accounting.gaussian(times, noise_multiplier=NOISE, delta=DELTA)
        spent = federated_canary.accounted(times, noise_multiplier=NOISE, clients_per_round=m, delta=DELTA)
        federation = {"data": train.label, "clients": others + canaries, "clients_per_round": m, "rounds": count}
        federation |= {"participations": times, "delta": DELTA, "confidence": CONFIDENCE}
        scale = f"1 run, {canaries} canaries, test accuracy {right:.1%}"
        for seat, of in (("transcript", federated_canary.transcript), ("final model", federated_canary.final_model)):
            seen = of(found, times, delta=DELTA, confidence=CONFIDENCE)
            setting = {"seat": seat, "fault": fault, "accounted": spent, "messages": messages} | federation
            rows.add("mu", setting, seen.mu, (seen.mu_lower, seen.mu_upper), scale=scale)
            bounds = seen.epsilon_lower, seen.epsilon_upper
            rows.add("epsilon_lower", setting, seen.epsilon_lower, bounds, scale=scale)
        rows.finish_part(f"{m} of {others + canaries} clients, {fault}: {_lowers(rows.rows[-3::2])} of {spent:.3f}")


def _lowers(rows: Iterable[dict[str, Any]]) -> str:
    return ", ".join(f"{row['setting']['seat']} {row['ours']:.3f}" for row in rows)


REPRODUCIBLE = {"message": message, "run": run}


def main() -> None:
    chosen = options(__doc__ or "").parse_args()
    rows = Rows("federated", "federated_audit", chosen.out, chosen.seed, data_dir=chosen.data_dir)
    rows.run(message, "Gaussian", 26_010, 200, curve="Gaussian")
    if chosen.quick:
        rows.run(message, "LDP-SGD", 2, 400_000, curve="any")
        rows.run(run, "digits", 50, 100, 150, 40)
        return
    rows.run(message, "Gaussian", 2, 4_000_000, curve="any")
    rows.run(message, "LDP-SGD", 2, 4_000_000, curve="any")
    rows.run(run, "mnist", 200, 200, 400, 200)
    rows.run(run, "mnist", 500, 500, 200, 200)


if __name__ == "__main__":
    as_command(main)
