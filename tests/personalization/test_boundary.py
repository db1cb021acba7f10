"""The boundary: what crosses, that nothing else does, and that the server is a function of what crossed."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpaudit.check import InputError
from dpaudit.personalization import boundary
from dpaudit.personalization.boundary import run
from tests.personalization.rounds import DEVICES, PROTOCOL, add, release, start, update, users


def same(one, other):
    return all(np.array_equal(*pair) for pair in zip(*map(jax.tree.leaves, (one, other)), strict=True))


def played(key, everyone):
    """(state after, memory after, transcript) of three rounds: one program for all tests."""
    return run(jax.random.key(key), PROTOCOL, *start(), everyone, rounds=3)


def test_replay_of_a_run_in_two_pieces_is_exact():
    state, _ = start()
    middle, memory, first = played(0, users(12))
    end, _, second = run(jax.random.key(1), PROTOCOL, middle, memory, users(12), rounds=3)
    assert same(boundary.replay(PROTOCOL, state, first + second), end)
    assert same(boundary.replay(PROTOCOL, state, first), middle)
    assert not same(middle, end)
    assert (first + second).values("sums").shape == (6, 40, 3)


def test_round_is_what_its_parts_are_by_hand():
    (params, _), memory = start()
    everyone = users(12)
    devices_key, release_key = boundary.round_keys(jax.random.key(0), 0)
    messages = []
    for place in range(12):
        user = {name: leaf[place] for name, leaf in everyone.items()}
        messages.append(DEVICES.compute(jax.random.fold_in(devices_key, place), params[user["items"]], user))
    total = add(None, jax.tree.map(lambda *leaves: jnp.stack(leaves), *messages))
    (sums, counts), _ = release(release_key, total, memory)
    transcript = played(0, everyone)[2]
    np.testing.assert_allclose(transcript.values("sums")[0], sums.value, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(transcript.values("counts")[0], counts.value, rtol=1e-4, atol=1e-4)


def test_noise_is_drawn_anew_in_every_round_and_is_not_what_devices_draw():
    """Releases of nobody are noise alone: were it the same twice, their difference would tell all of two rounds."""
    nobody = users(12) | {"weights": jnp.zeros_like(users(12)["weights"])}
    noise = np.asarray(played(0, nobody)[2].values("sums"), np.float64)
    for one, other in ((0, 1), (1, 2), (0, 2)):
        assert abs((noise[one] - noise[other]).std() / (np.sqrt(2) * 10.0) - 1) < 4 / np.sqrt(2 * noise[0].size) < 0.3
    keys = [jax.random.key_data(key) for t in range(3) for key in boundary.round_keys(jax.random.key(0), t)]
    assert len({tuple(np.ravel(key)) for key in keys}) == 6


def test_mapped_runs_are_each_accounted_by_themselves():
    state, memory = start()
    keys = jax.random.split(jax.random.key(0), 3)
    _, _, transcripts = jax.vmap(lambda key: run(key, PROTOCOL, state, memory, users(5), rounds=4))(keys)
    assert transcripts.values("counts").shape == (3, 4, 40)
    assert transcripts.mu() == pytest.approx(np.sqrt(4 * (1 / 4 + 1 / 16)), rel=1e-12)


def test_partial_broadcast_leaves_no_trace():
    one, other = (played(0, users(12, decoys=decoys))[2] for decoys in (0, 1))
    assert not same(users(12, decoys=0), users(12, decoys=1))
    assert same(one, other)
    changed = users(12) | {"values": users(12)["values"].at[0, 0].add(1.0)}  # of a row that counts
    assert not same(one, played(0, changed)[2])


@pytest.mark.parametrize(
    "bad, message",
    [
        (lambda releases, total: (total[0],), "release: expected nothing but what Process.release makes, got"),
        (lambda releases, total: releases[0], "release: expected a tuple of Releases, got"),
        (lambda releases, total: (*releases, releases[0]), "at most one Release of each process a round, got sums"),
        (
            lambda releases, total: (jax.tree.map(lambda leaf: 0 * leaf + leaf, releases[0]),),
            "release: expected Releases as Process.release made them, got one of 'sums' that was mapped",
        ),
    ],
)
def test_nothing_but_a_release_crosses(bad, message):
    def wrong(key, total, memory):
        releases, memory = release(key, total, memory)
        return bad(releases, total), memory

    with pytest.raises(InputError, match=message):
        run(jax.random.key(0), PROTOCOL._replace(release=wrong), *start(), users(3), rounds=1)


@pytest.mark.parametrize("where", ["update", "broadcast"])
def test_a_server_that_reaches_inside_is_refused(where):
    stolen = []

    def devices(key, model, users):
        stolen.append(jnp.sum(users["values"]))
        return DEVICES(key, model, users)

    def reaching(*given):
        return (
            jax.tree.map(lambda leaf: leaf + jnp.stack(stolen).sum().astype(leaf.dtype), honest(*given))
            if stolen
            else None
        )

    honest = getattr(PROTOCOL, where)
    bad = PROTOCOL._replace(**{"devices": devices, where: reaching})
    if where == "broadcast":  # which is asked first: there is something to reach for from the run before
        jax.eval_shape(lambda users: devices(jax.random.key(0), start()[0][0], users), users(12))
    with pytest.raises(jax.errors.UnexpectedTracerError, match="value leaked was"):
        run(jax.random.key(0), bad, *start(), users(12), rounds=1)


def test_server_keeps_its_structure():
    def wrong(state, releases):
        return update(state, releases)[0]

    with pytest.raises(InputError, match="update: expected a state of the structure that it is given"):
        run(jax.random.key(0), PROTOCOL._replace(update=wrong), *start(), users(3), rounds=1)
    with pytest.raises(InputError, match="rounds: expected a whole number >= 1, got 0"):
        run(jax.random.key(0), PROTOCOL, *start(), users(3), rounds=0)
    with pytest.raises(InputError, match="chunk: expected a whole number >= 1, got 0"):
        boundary.each(DEVICES.select, DEVICES.compute, DEVICES.add, chunk=0)


def test_the_boundary_needs_no_cryptography():
    script = "import sys; sys.modules['cryptography'] = None; import dpaudit.personalization.{}"
    modules = "boundary", "transcript", "inference", "terms"
    program = "; ".join(script.format(module) for module in modules)
    subprocess.run([sys.executable, "-c", program], check=True)
    with pytest.raises(subprocess.CalledProcessError, match="non-zero exit status"):
        subprocess.run([sys.executable, "-c", script.format("parties")], check=True, capture_output=True)
