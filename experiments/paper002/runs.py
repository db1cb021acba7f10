"""Runs federations, one for each setting, noise and trial, and keeps a record of each."""

import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpaudit import _platform, _validate, data
from dpaudit._engine import hosts
from dpaudit._engine.fingerprint import Identity, of_run
from dpaudit._engine.long_run import Parts
from dpaudit.federated import clients, clip_size, population
from dpaudit.federated.clip_size import Rule
from dpaudit.federated.rounds import Server, diverged, federated, simulate
from dpaudit.mechanisms import gaussian
from dpaudit.report.rows import read_rows
from dpaudit.training import models
from experiments.common import kept_records
from experiments.paper002.published import DELTA, EPSILON

LOOKS = 100  # at the model, evenly over the rounds
NON_PRIVATE = "non-private"
FIXED, BUDGETS = (0.01, 0.05, 0.1, 0.5, 1.0), (0.01, 0.05, 1.0)


class Scale(NamedTuple):
    """Of a federation.

    Of m clients ``simulated`` are computed; each stands for m/simulated with the same update. The noise on the mean of
    all messages is that of m clients. It is several tens of times as long as the mean of 20 clipped updates is off
    that of 1,000, so that a run by 20 learns as one by 1,000 does, for a small part of the time.
    """

    rounds: int  # T
    clients_per_round: int  # m
    simulated: int


RULES: dict[str, Callable[[Scale, float, Any], Rule]] = {  # of a message's noise over C and the first model as well
    **{f"clip{c}": lambda scale, noise, params, c=c: clip_size.fixed(c) for c in FIXED},
    "0.05to0.01(20%)": lambda scale, noise, params: clip_size.switch(0.05, 0.01, scale.rounds // 5),
    "0.05to0.01(60%)": lambda scale, noise, params: clip_size.switch(0.05, 0.01, scale.rounds * 3 // 5),
    **{
        f"poly({c0}){power}": lambda scale, noise, params, c0=c0, power=power: clip_size.polynomial(
            c0, scale.rounds, power
        )
        for c0 in (0.01, 0.05)
        for power in (0.5, 1.0, 2.0)
    },
    "quantile(0.01)10%": lambda scale, noise, params: clip_size.adaptive_quantile(0.01, quantile=0.1),
    "quantile(0.01)50%": lambda scale, noise, params: clip_size.adaptive_quantile(0.01, quantile=0.5),
    "adaptive0.01": lambda scale, noise, params: clip_size.adaptive_median(0.01, every=scale.rounds // 10),
    "adaptive0.05": lambda scale, noise, params: clip_size.adaptive_median(0.05, every=scale.rounds // 10),
    **{  # not the paper's
        f"budget({c0})": lambda scale, noise, params, c0=c0: clip_size.noise_budget(
            c0, params, rounds=scale.rounds, noise_multiplier=noise, clients_per_round=scale.clients_per_round
        )
        for c0 in BUDGETS
    },
}


class Run(NamedTuple):
    """One federation, from its first round to its last.

    The noise's standard deviation over C sigma is 1 as Algorithm 3 prints it, 2 as Section 3.1.2 demands.
    """

    name: str  # of the setting, of RULES or NON_PRIVATE
    sensitivity: int | None  # of the noise; None for no noise
    trial: int  # from 0


def runs(starts: Sequence[str], sensitivities: Iterable[int], trials: int) -> list[Run]:
    """Those of the settings whose names begin with one of ``starts``, trial after trial."""
    settings = [name for name in (NON_PRIVATE, *RULES) if name.startswith(tuple(starts))]
    if not settings:
        raise _validate.expected("--only", f"the beginning of one of {', '.join((NON_PRIVATE, *RULES))}", starts)
    private = [(name, sensitivity) for sensitivity in sensitivities for name in settings if name != NON_PRIVATE]
    exact = [(NON_PRIVATE, None)] if NON_PRIVATE in settings else []
    return [Run(*setting, trial) for trial in range(trials) for setting in (*exact, *private)]


def noise_multiplier(sensitivity: int) -> float:
    """Returns the standard deviation of a message's noise over C: 1.4042 for the sensitivity 2C of local privacy."""
    return gaussian.noise_std(epsilon=EPSILON, delta=DELTA, clip_norm=sensitivity / 2)


class Bench:
    """The data, and a server for each setting, compiled once for all of its trials."""

    def __init__(self, dataset: str, scale: Scale, seed: int, data_dir: str | None = None):
        self.scale, self.seed = scale, seed
        train, test = (data.load(dataset, split=split, data_dir=data_dir) for split in data.SPLITS)
        self.name, self.image_shape = train.label, train.inputs.shape[1:]
        self.train, self.test = ((jnp.asarray(part.inputs), jnp.asarray(part.labels)) for part in (train, test))
        self.model = models.model_for(self.image_shape, train.num_classes)
        self.server, self._identified = cache(self._server), cache(self._identity)

    def keys(self, trial: int) -> jax.Array:
        """Returns the keys of the clients, the first model and the rounds; a trial has the same in every setting."""
        return jax.random.split(jax.random.fold_in(jax.random.key(self.seed), trial), 3)

    def first(self, trial: int) -> Any:
        """Returns the model that every setting of a trial begins with."""
        return models.initial_parameters(self.keys(trial)[1], self.model, self.image_shape)

    def _server(self, name: str, sensitivity: int | None) -> Server:
        stands_for = self.scale.clients_per_round // self.scale.simulated
        loss = models.cross_entropy(self.model)
        update = clients.gradients(lambda params, example: loss(params, *example))
        if sensitivity is None:
            client, rule, learning_rate = clients.exact(update), clip_size.fixed(1.0), 0.1
        else:
            noise = noise_multiplier(sensitivity)
            client = clients.gaussian(update, noise_multiplier=noise / np.sqrt(stands_for))
            # noise_budget sees trial 0's first model in all trials, which so share a program. C is proportional to its
            # length, whose standard deviation over 40 keys is 0.6% (1.8% for the network of digits).
            rule, learning_rate = repeated(RULES[name](self.scale, noise, self.first(0)), stands_for), 1.0
        m, mesh, optimizer = self.scale.simulated, hosts.mesh("clients"), optax.sgd(learning_rate)
        even = mesh is None or m % mesh.size == 0
        return federated(client, rule, clients_per_round=m, optimizer=optimizer, mesh=mesh if even else None)

    def identity(self, name: str, sensitivity: int | None) -> Identity:
        """Identifies a setting's records, whatever the trial, which their names tell."""
        return self._identified(name, sensitivity, _platform.current())

    def _identity(self, name: str, sensitivity: int | None, platform: str) -> Identity:
        del platform  # of which each has a program of its own
        server, (people_key, _, rounds_key) = self.server(name, sensitivity), self.keys(0)
        everyone = population.iid(people_key, len(self.train[1]), len(self.test[1]))

        def step(key: jax.Array, state: Any, given: Any) -> Any:
            return server.step(key, state, everyone.clients, *given)

        start = server.init(self.first(0))
        return of_run(step, key=rounds_key, start=start, data=(everyone.train, self.train), test=len(self.test[1]))

    def play(self, run: Run, checkpoint: Path | None = None, progress: Callable[[int], None] | None = None) -> Parts:
        """Returns the whole run, or what is missing of it."""
        people_key, _, rounds_key = self.keys(run.trial)
        everyone = population.iid(people_key, len(self.train[1]), len(self.test[1]))
        server, before = self.server(run.name, run.sensitivity), time.perf_counter()

        def evaluate(params: Any) -> dict[str, float]:
            nonlocal before
            before, since = time.perf_counter(), before
            right, loss = _tested(params, *self.test, model=self.model)
            return {"accuracy": float(right), "loss": float(loss), "seconds": before - since}

        return simulate(
            rounds_key,
            server,
            self.first(run.trial),
            everyone,
            self.train,
            self.scale.rounds,
            every=max(1, self.scale.rounds // LOOKS),
            checkpoint=checkpoint,
            evaluate=evaluate,
            progress=progress,
        )


def repeated(rule: Rule, times: int) -> Rule:
    """Returns the rule, each of whose reports counts as many times."""
    if rule.release is None or times == 1:
        return rule
    release = rule.release
    return rule._replace(release=lambda key, reports: release(key, jnp.repeat(reports, times, axis=0)))


@partial(jax.jit, static_argnames="model")
def _tested(params: Any, images: jax.Array, labels: jax.Array, *, model: Any) -> tuple[jax.Array, jax.Array]:
    network = models.logits(model)

    def one(example: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        logits = network(params, example[0])
        return jnp.argmax(logits) == example[1], optax.softmax_cross_entropy_with_integer_labels(logits, example[1])

    right, losses = jax.lax.map(one, (images, labels), batch_size=100)
    return jnp.mean(right), jnp.mean(losses)


def record(bench: Bench, run: Run, parts: Parts) -> dict[str, Any]:
    """Returns the record of a run: curves at every look, histograms of norms at every tenth of the rounds.

    ``clip_norm`` is that of the last round before a look; ``norm`` and ``clipped`` are means over the rounds since the
    look before; ``histogram`` holds the shares of Info.histogram, ``released`` the noisy shares of a histogram rule.
    """
    looks, info = parts.evaluations, parts.info
    ends = looks["step"].astype(int)
    since = np.r_[0, ends[:-1]]
    tenths = np.arange(1, 11) * (ends[-1] // 10)
    drawn = info.histogram.sum(axis=1) + info.dropped
    histogram_rule = np.ndim(info.released) == 2
    kept = {
        "accuracy": looks["accuracy"],
        "loss": looks["loss"],
        "clip_norm": info.clip_norm[ends - 1],
        "norm": np.add.reduceat(info.norm.astype(float), since) / (ends - since),
        "clipped": np.add.reduceat(info.clipped / drawn, since) / (ends - since),
        "histogram": (info.histogram / drawn[:, None])[tenths - 1],
        "released": np.asarray(info.released)[tenths - 1] if histogram_rule else (),
    }
    return {
        "dataset": bench.name,
        **bench.scale._asdict(),
        **run._asdict(),
        "round": ends.tolist(),
        "tenths": tenths.tolist(),
        **{name: short(values) for name, values in kept.items()},
        "diverged": diverged(info),
        "seconds_per_round": float(np.median(looks["seconds"] / (ends - since))),
        "device": jax.devices()[0].device_kind,
        "identity": bench.identity(run.name, run.sensitivity),
    }


def short(values: Any) -> Any:
    """Lists of five significant digits; None for what is not finite."""
    if np.ndim(values):
        return [short(value) for value in values]
    return float(f"{values:.5g}") if np.isfinite(values) else None


def play_all(bench: Bench, wanted: Sequence[Run], work: str | None) -> list[dict[str, Any]]:
    """Returns the record of every run, found in ``work`` or made and kept there."""

    def folder(run: Run) -> Path | None:
        return None if work is None else _folder(work, bench, run)

    return kept_records(
        wanted,
        lambda run, shown: record(bench, run, bench.play(run, folder(run), shown)),
        lambda run: None if (kept := folder(run)) is None else kept.with_suffix(".json"),
        lambda run: bench.identity(run.name, run.sensitivity),
        lambda kept: f"{100 * kept['accuracy'][-1]:.2f}%",
        bench.scale.rounds,
    )


def _folder(work: str, bench: Bench, run: Run) -> Path:
    """Returns the folder of the run's checkpoint; its record lies beside it."""
    noise = "exact" if run.sensitivity is None else f"{run.sensitivity}C"
    rounds, clients_per_round, simulated = bench.scale
    scale = f"{bench.name}-{rounds}x{clients_per_round}by{simulated}-seed{bench.seed}"
    return Path(work) / scale / noise / run.name / str(run.trial)


def all_records(work: str) -> list[dict[str, Any]]:
    """Returns the records of every run that has ended in ``work``, in the order of the settings."""
    return in_order(read_rows(file)[0] for file in sorted(Path(work).glob("*/*/*/*.json")))


def in_order(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns records in the order of noises, settings and trials."""
    place = {name: i for i, name in enumerate((NON_PRIVATE, *RULES))}
    return sorted(records, key=lambda row: (row["sensitivity"] or 0, place[row["name"]], row["trial"]))
