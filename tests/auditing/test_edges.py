"""Edges where something once went wrong: what is no number, what is too large, what belongs to another audit."""

import math
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

import dpaudit
from dpaudit import AuditResult, Claim, _validate, play
from dpaudit.auditing.bounds import estimate, one_run
from dpaudit.auditing.conclude import from_counts
from dpaudit.audits import craft, engines, ldp_client, oracle
from dpaudit.mechanisms import laplace, ldp_sgd
from tests.processes import environment

KEY = jax.random.key(0)
ONE = {"epsilons": [1.0], "clip_norm": 1.0}


def opposite(key):
    return 3 * jnp.ones(7), -3 * jnp.ones(7)


def not_numbers(key):
    return jnp.full(3, jnp.nan), jnp.ones(3)


def doubled(key, x, *, epsilon, clip_norm):
    return ldp_sgd.randomize(key, x, epsilon=2 * epsilon, clip_norm=clip_norm)


def broken(key, x, *, epsilon, clip_norm):
    return x * jnp.nan


def shifted(shift, file):
    return play(KEY, lambda k, w: jax.random.normal(k, (3,)) + w * shift, jnp.sum, 50, checkpoint=file)


def test_a_checkpoint_belongs_to_one_mechanism_and_its_data(tmp_path):
    first = shifted(jnp.ones(3), tmp_path / "game")
    np.testing.assert_array_equal(shifted(jnp.ones(3), tmp_path / "game"), first)
    with pytest.raises(_validate.InputError, match=r"^checkpoint: expected one of this audit"):
        shifted(jnp.full(3, 2.0), tmp_path / "game")
    with pytest.raises(_validate.InputError, match=r"^checkpoint: expected one of this audit"):
        play(KEY, lambda k, w: jax.random.normal(k, (3,)) - w, jnp.sum, 50, checkpoint=tmp_path / "game")
    with pytest.raises(_validate.InputError, match=r"^checkpoint: expected a file in a folder that exists"):
        shifted(jnp.ones(3), tmp_path / "nowhere" / "game")


def test_bfloat16_scores_can_be_resumed(tmp_path):
    def run():
        score = lambda z: jnp.sum(z).astype(jnp.bfloat16)  # noqa: E731
        return play(KEY, lambda k, w: jax.random.normal(k, (3,)), score, 50, checkpoint=tmp_path / "game")

    np.testing.assert_array_equal(run(), run())


@pytest.mark.parametrize("engine", [engine for engine in ldp_client.ENGINES if engine != "kernel"])  # of one pair
def test_gradients_that_are_not_numbers_are_refused(engine):
    wanted = "^craft: expected finite gradients, got NaN or infinity in 100 of 100 pairs$"
    with pytest.raises(_validate.InputError, match=wanted):
        ldp_client.audit_craft(KEY, Partial(not_numbers), **ONE, trials=200, repeats=2, engine=engine)


def test_a_mechanism_that_releases_nan_is_refused():
    with pytest.raises(
        _validate.InputError, match=r"^mechanism: expected releases of numbers, got NaN in 4000 of 4000"
    ):
        ldp_client.audit_craft(KEY, craft.dummy(5, 1.0), **ONE, trials=2000, repeats=2, randomize=broken)


def test_the_shipped_laplace_passes_its_own_audit():
    """Floating-point noise would not: the last bits of a release tell these inputs apart in every audit."""
    mechanism, x0, x1 = laplace.mechanism(epsilon=1.0, clip_norm=0.5), jnp.array([-0.5, 0]), jnp.array([0.5, 0])

    def gaps(key, x):
        return x + jax.random.laplace(key, x.shape)

    for seed in range(3):
        key = jax.random.key(seed)
        settings: dict[str, Any] = {"key": key, "trials": 20_000, "confidence": 0.999}
        settings["distinguisher"] = dpaudit.distinguish.likelihood_ratio
        right = dpaudit.audit(mechanism, x0, x1, **settings)
        assert right.verdict == "consistent"
        wrong = dpaudit.audit(mechanism._replace(apply=gaps), x0, x1, **settings)
        assert wrong.verdict == "violation"


@pytest.mark.integration
def test_meshes_of_make_mesh_serve():
    code = """
import jax, jax.numpy as jnp, numpy as np
from dpaudit import play
game = (jax.random.key(0), lambda k, w: jax.random.normal(k, (3,)), jnp.sum, 50)
for mesh in (((8,), ("t",)), ((2, 4), ("h", "c"))):
    np.testing.assert_array_equal(play(*game), play(*game, mesh=jax.make_mesh(*mesh)))
"""
    done = subprocess.run([sys.executable, "-c", code], env=environment(8), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-500:]


def test_log_prob_at_large_and_whole_epsilon():
    mechanism = ldp_sgd.mechanism(epsilon=20, clip_norm=1)
    assert mechanism.log_prob is not None
    w, x = jnp.array([-0.6, -0.5, 0.3]), jnp.array([2.0, 0, 0])
    assert float(jax.jit(mechanism.log_prob)(w, x)) == pytest.approx(math.log(2 / (1 + math.exp(20))), rel=1e-4)


def test_json_keeps_every_infinity():
    for threshold in (-math.inf, math.inf):
        found = from_counts(5, 0, 10, 10, claim=None, method="x", threshold=threshold)
        assert AuditResult.from_json(found.to_json()) == found


def test_the_closed_form_holds_at_large_epsilon():
    ends = oracle.pair(np.ones(2), -np.ones(2))
    for epsilon in (25.0, 40.0):
        assert oracle.optimal_test(ends, epsilon=epsilon, clip_norm=1.0).epsilon == pytest.approx(epsilon, rel=1e-9)
    fpr, fnr = oracle.ldp_sgd_tradeoff(np.ones(2), -np.ones(2), epsilon=40.0, clip_norm=1.0)
    assert np.min(fpr + fnr) < 1e-10


@pytest.mark.parametrize("crafted", [craft.dummy(1898, 1.0), Partial(opposite)], ids=["dummy", "opposite"])
def test_the_closed_form_never_exceeds_the_promise(crafted):
    at = {"epsilons": [4.0, 16.0], "clip_norm": 1.0}
    for row in ldp_client.audit_craft(KEY, crafted, **at, trials=10, engine="exact"):
        assert row["epsilon"] * (1 - 1e-6) <= row["epsilon_exact"] <= row["epsilon"] * (1 + 1e-9)
    assert (oracle.wedges(engines.pairs(KEY, crafted, 1), epsilon=1.0, clip_norm=1.0) >= 0).all()


def test_rates_that_are_not_numbers_do_not_become_epsilon_zero():
    assert np.isnan(estimate.epsilon_from_rates([math.nan, 0.1], [0.1, math.nan])).all()


@pytest.mark.parametrize("errors", [(11, 0), (-1, 0), (0, 11)])
def test_impossible_counts_are_refused(errors):
    with pytest.raises(_validate.InputError, match=r"^false_(posi|nega)tives: expected a count in 0\.\.10, got "):
        from_counts(errors[0], errors[1], 10, 10, claim=None, method="x")


@pytest.mark.filterwarnings("error")
def test_huge_claims_do_not_warn():
    assert from_counts(0, 0, 10, 10, claim=Claim(1000.0), method="x").verdict == "underpowered"


audit: Any = dpaudit.audit  # whatever the types say, people will call it like this


def noisy(key, x):
    return x + jax.random.normal(key)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: audit(noisy, 0.0, 1.0, key=KEY, claim=4.0), "claim: expected a Claim or None, got 4.0"),
        (lambda: audit(5, 0.0, 1.0, key=KEY), "mechanism: expected a Mechanism or a function"),
        (lambda: audit(noisy, 0.0, 1.0, key=0), "key: expected a key, as made by jax.random.key, got 0"),
        (lambda: audit(noisy, "a", "b", key=KEY), "x0: expected numbers, got 'a'"),
        (
            lambda: audit(noisy, 0.0, 1.0, key=KEY, distinguisher=jnp.sum),
            "distinguisher: expected a Distinguisher or None",
        ),
        (lambda: _validate.positive(epsilon=10**400), "epsilon: expected a finite number > 0"),
        (lambda: _validate.positive(epsilon=np.array("4")), "epsilon: expected a finite number > 0"),
        (lambda: craft.dummy(5, -1.0), "clip_norm: expected a finite number > 0, got -1.0"),
        (
            lambda: craft.benign(jnp.dot, np.ones((5, 2)), np.ones(3)),
            "labels: expected one for each of 5 images, got 3",
        ),
        (
            lambda: engines.full(KEY, craft.dummy(3, 1.0), 9, epsilons=[-1.0], clip_norm=1.0, pair_key=KEY),
            "epsilon: expected a finite number > 0, got -1.0",
        ),
        (
            lambda: ldp_client.audit_craft(KEY, craft.dummy(3, 1.0), **ONE, engine="plane", randomize=doubled),
            "engine: expected full, the only one that runs a mechanism of your own, got plane",
        ),
        (
            lambda: ldp_sgd.server_update(jnp.zeros(3), jnp.ones((2, 3)), epsilon=1.0, clip_norm=0.0, radius=1.0),
            "clip_norm: expected a finite number > 0, got 0.0",
        ),
        (
            lambda: ldp_sgd.server_update(jnp.zeros(3), jnp.ones(3), epsilon=1.0, clip_norm=1.0, radius=1.0),
            "releases: expected an array of shape [n, d]",
        ),
        (
            lambda: ldp_sgd.server_update(jnp.zeros(1), jnp.ones((2, 3)), epsilon=1.0, clip_norm=1.0, radius=1.0),
            "parameters: expected shape [3], as of one release, got shape [1]",
        ),
        (
            lambda: ldp_sgd.randomize_tree(KEY, {"n": jnp.arange(3)}, epsilon=1.0, clip_norm=1.0),
            "gradients: expected floating-point arrays, got a leaf of type int32",
        ),
        (lambda: one_run.ceiling(5, [], delta=0.0, confidence=0.95), "plans: expected at least one Plan, got []"),
        (
            lambda: one_run.ceiling(5, [one_run.Plan(4, 2)], delta=0.0, confidence=0.95),
            "plans: expected 1 to 5 guesses in all, the number of canaries",
        ),
    ],
)
def test_refusals_name_the_argument(call, message):
    with pytest.raises(_validate.InputError) as refused:
        call()
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(
    ("x0", "x1", "scale"),
    [
        (np.float64(1), np.float64(1) + 1e-9, 1e-11),
        ([2**24, 0.5], [2**24 + 1.0, 0.5], 0.01),
        (np.int64(5), 2**32 + np.int64(5), 0.01),
    ],
)
def test_inputs_that_are_equal_in_32_bits_are_refused(x0, x1, scale):
    """A mechanism would be played on one input, and keep any promise; in 64 bits this one tells the two apart."""
    mechanism = dpaudit.Mechanism(lambda key, x: jax.tree.leaves(x)[0] + scale * jax.random.laplace(key), Claim(2.0))
    with pytest.raises(
        dpaudit.InputError, match="x1: expected an input other than x0 in the types of JAX, of 32 bits"
    ):
        dpaudit.audit(mechanism, x0, x1, key=KEY, trials=2_000)
    with jax.enable_x64(True):
        assert dpaudit.audit(mechanism, x0, x1, key=KEY, trials=2_000).verdict == "violation"
