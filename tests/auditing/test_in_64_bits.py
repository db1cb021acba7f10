"""Audits where JAX computes in 64 bits."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

import dpaudit
from dpaudit import Claim, distinguish, domain
from dpaudit.auditing.attacks import portfolio, scoring
from dpaudit.auditing.bounds import sequential
from dpaudit.auditing.search_pairs import challengers, take
from tests.mechanisms.test_contract import CASES


def test_a_density_is_read_where_jax_computes_in_64_bits():
    """Scores beside the family have 32 bits, whether they are wanted or not."""
    with jax.enable_x64(True):
        seen = jax.eval_shape(lambda wanted: portfolio._seen(jnp.float32(0), wanted, [jnp.float64]), True)
    assert (seen.shape, seen.dtype) == ((2,), jnp.int32)


@pytest.mark.parametrize("kind", [jnp.float32, jnp.bfloat16])
def test_a_search_looks_among_inputs_of_the_domain_s_type(kind):
    """Else it certifies a pair of another type, and the population of a search for a user does not keep its own."""
    anybody = domain.box((3,), -1.0, 1.0, dtype=kind)

    def moved(key):
        members, fresh = (jax.vmap(anybody.draw)(keys) for keys in jax.random.split(key, (2, 4)))
        return challengers(key, anybody, members, fresh, jnp.arange(4), jnp.int32(0), take(members, 0))

    with jax.enable_x64(True):
        found = jax.eval_shape(moved, jax.random.key(0))
    assert len(found) == 3
    assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {jnp.dtype(kind)}


@pytest.mark.integration
@pytest.mark.parametrize("name", CASES)
def test_every_mechanism_is_audited_where_jax_computes_in_64_bits(name, monkeypatch):
    case = CASES[name]
    with jax.enable_x64(True):
        mechanism, pair = case.make(1.0), case.inputs[:2]
        plain = partial(dpaudit.audit, mechanism, *pair, key=jax.random.key(8), claim=Claim(1.0), confidence=0.999)
        for settings in ({}, {"attacks": (distinguish.lowest_bits,)}, {"until": sequential.violation()}):
            found = plain(trials=2000, **settings)
            assert found.verdict != "violation"
            assert found.attacks
        monkeypatch.setattr(scoring, "HOST_PAIRS", 0)
        assert plain(trials=2000).verdict != "violation"
