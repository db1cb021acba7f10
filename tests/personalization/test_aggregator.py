"""The boundary: what crosses, that nothing else does, and that the server is a function of what crossed."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpaudit._validate import InputError
from dpaudit.personalization.boundary import aggregator, processes, protocol
from dpaudit.personalization.boundary.aggregator import run
from dpaudit.personalization.boundary.protocol import silent
from tests.personalization import telling
from tests.personalization.rounds import DEVICES, PROTOCOL, add, release, start, update, users

NAMES = ["sums", "counts"]


def same(one, other):
    return all(np.array_equal(*pair) for pair in zip(*map(jax.tree.leaves, (one, other)), strict=True))


def played(key, everyone):
    """(state after, memory after, transcript) of three rounds: one program for all tests."""
    return run(jax.random.key(key), PROTOCOL, *start(), everyone, rounds=3)


@pytest.mark.integration
def test_replay_of_a_run_in_two_pieces_is_exact():
    state, _ = start()
    middle, memory, first = played(0, users(12))
    end, _, second = run(jax.random.key(1), PROTOCOL, middle, memory, users(12), rounds=3)
    assert same(aggregator.replay(PROTOCOL, state, first + second), end)
    assert same(aggregator.replay(PROTOCOL, state, first), middle)
    assert not same(middle, end)
    assert (first + second).values("sums").shape == (6, 40, 3)


@pytest.mark.integration
def test_round_is_what_its_parts_are_by_hand():
    (params, _), memory = start()
    everyone = users(12)
    devices_key, release_key = aggregator.round_keys(jax.random.key(0), 0, NAMES, memory)
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
    began = [(0, start()[1]), (1, start()[1]), (1, jax.tree.map(lambda leaf: leaf + 1, start()[1]))]
    pairs = [aggregator.round_keys(jax.random.key(0), t, NAMES, memory) for t, memory in began]
    pairs.append(aggregator.round_keys(jax.random.key(0), 0, ["sums"], start()[1]))
    assert len({tuple(np.ravel(jax.random.key_data(key))) for pair in pairs for key in pair}) == 8


def test_a_key_of_the_old_kind_is_that_of_the_new_kind_and_what_is_no_key_is_one_line():
    again = run(jax.random.PRNGKey(0), PROTOCOL, *start(), users(12), rounds=3)
    assert same(again, played(0, users(12)))
    with pytest.raises(InputError, match=r"^key: expected a key, as made by jax.random.key, got 0$"):
        run(0, PROTOCOL, *start(), users(12), rounds=3)  # pyright: ignore[reportArgumentType]


def twice(key, total, memory):
    """a(t) and b(2t), both handed the key of the round; one user moves t by 1."""
    a, first = HALF.release(key, total, memory[0], sensitivity=1.0)
    b, second = WHOLE.release(key, 2 * total, memory[1], sensitivity=2.0)
    return (a, b), (first, second)


HALF, WHOLE = (processes.gaussian(name, noise_multiplier=z) for name, z in (("a", 20.0), ("b", 10.0)))
SUM = protocol.each(
    protocol.everything,
    lambda key, model, user: user,
    lambda total, messages: jnp.sum(messages, 0) + (0 if total is None else total),
)
TWICE = protocol.Protocol(lambda state: state, SUM, twice, lambda state, releases: state)


def test_processes_that_are_handed_one_key_do_not_share_noise():
    """With the same draws n, a = t + 20 n and b = 2t + 20 n: b - a is t, at an accounted epsilon of 0.48."""
    memory = HALF.init(jnp.zeros(400)), WHOLE.init(jnp.zeros(400))
    _, _, told = run(jax.random.key(0), TWICE, (), memory, jnp.ones((3, 400)), rounds=2)
    assert told.epsilon(1e-5) < 0.7
    off = np.asarray(told.values("b") - told.values("a") - 3.0)
    expected = np.sqrt(20**2 + 20**2)
    assert abs(off.std() / expected - 1) < 4 / np.sqrt(2 * off.size) < 0.11  # independent: they do not cancel


def test_a_run_that_goes_on_with_its_old_key_draws_noise_and_devices_anew():
    nobody = users(12) | {"weights": jnp.zeros_like(users(12)["weights"])}
    state, memory, first = played(0, nobody)
    _, _, second = run(jax.random.key(0), PROTOCOL, state, memory, nobody, rounds=3)
    noise = [np.asarray(told.values("sums"), np.float64) for told in (first, second)]
    off = (noise[0] - noise[1]).std() / (np.sqrt(2) * 10.0)
    assert abs(off - 1) < 4 / np.sqrt(2 * noise[0].size) < 0.16
    assert (first + second).mu() == pytest.approx(np.sqrt(6 * (1 / 4 + 1 / 16)), rel=1e-12)


def test_a_run_that_begins_anew_with_its_old_key_is_not_accounted():
    """The same noise on the totals of other users: the difference of two transcripts is exact."""
    first, again = played(0, users(12))[2], played(0, users(12, decoys=1))[2]
    wanted = r"new noise for every release: .*, got the same noise in 'sums' number 0 and 'sums' number 0"
    for account in (lambda told: told.epsilon(1e-5), lambda told: told.mu(), lambda told: told.event()):
        with pytest.raises(InputError, match=wanted):
            account(first + again)
    assert (first + played(1, users(12))[2]).mu() == pytest.approx(np.sqrt(2) * first.mu(), rel=1e-12)


@pytest.mark.parametrize("part, tell", telling.WHERE, ids=lambda value: getattr(value, "__name__", value))
def test_what_runs_on_raw_data_has_no_effects(part, tell):
    with pytest.raises(
        InputError, match=r"^(devices|release): expected a function without effects, .*, got "
    ) as error:
        run(jax.random.key(0), telling.protocol(part, tell), *start(), users(3), rounds=1)
    assert len(str(error.value).splitlines()) == 1
    assert telling.SEEN == []


def test_what_is_no_effect_is_let_through():
    """References that a program makes for itself, loops, branches and derivatives of one's own."""

    def keeps(x):
        ref = jax.new_ref(jnp.zeros_like(x))
        ref[...] = jax.lax.cond(jnp.sum(x) > 0, jnp.sin, jnp.cos, x)
        return jax.grad(lambda x: jnp.sum(telling.quiet(x)))(ref[...])

    x = jnp.arange(3.0)
    np.testing.assert_allclose(silent("compute", keeps, x)(x), keeps(x), rtol=1e-6)


@pytest.mark.integration
def test_the_server_may_print(capfd):
    def chatty(state, releases):
        jax.debug.print("sums {}", jnp.sum(releases[0].value))
        return update(state, releases)

    run(jax.random.key(0), PROTOCOL._replace(update=chatty), *start(), users(3), rounds=1)
    jax.effects_barrier()
    assert "sums " in capfd.readouterr().out


@pytest.mark.integration
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
        (lambda releases, total: (total[0],), "release: expected only what Process.release makes, got"),
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
        protocol.each(DEVICES.select, DEVICES.compute, DEVICES.add, chunk=0)


@pytest.mark.integration
def test_the_boundary_needs_no_cryptography():
    script = "import sys; sys.modules['cryptography'] = None; import dpaudit.personalization.boundary.{}"
    modules = "aggregator", "transcript", "inference", "messages"
    program = "; ".join(script.format(module) for module in modules)
    subprocess.run([sys.executable, "-c", program], check=True)
    with pytest.raises(subprocess.CalledProcessError, match="non-zero exit status"):
        subprocess.run([sys.executable, "-c", script.format("parties")], check=True, capture_output=True)
