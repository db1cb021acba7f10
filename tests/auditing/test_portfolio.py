"""The family that a plain audit plays: it finds what no single attack does, in one program, and accuses nobody."""

import math
import random
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpaudit
from dpaudit import Claim, _validate, distinguish
from dpaudit.auditing.attacks import choose, features, frequencies, network, pilot, scoring
from dpaudit.auditing.bounds import sequential
from dpaudit.auditing.bounds.estimate import epsilon_bounds, errors
from dpaudit.mechanisms import laplace, sampling

KEY = jax.random.key(8)
X0, X1 = jnp.zeros(3), jnp.array([1.0, 0.0, 0.0])


def noisy(key, shape=(3,), scale=1.0):
    return scale * sampling.normal(key, shape)


def shifted(key, x):
    return noisy(key) + 3 * x


def spread(key, x):
    return noisy(key) * (1 + 2 * x[0])


def in_one_place(key, x):
    return noisy(key, (40,)).at[17].add(3 * x[0])


def shared_noise(key, x):
    """Noise that is drawn once for two rows, and rows that are no neighbours in the release."""
    rows = x[:2] + noisy(key, (1,), 10.0)
    return jnp.concatenate([rows[:1], noisy(key, (4,)), rows[1:]])


def off_the_grid(key, x):
    up, down = jnp.floor(sampling.exponential(key, (2,)))
    return up - down + 0.75 * x[0]


def residue(key, x):
    """Uniform whole numbers whose parity tells the world in nine of ten."""
    number_key, lie_key = jax.random.split(key)
    lie = jax.random.bernoulli(lie_key, 0.1)
    return (1 << 28) + 2 * jax.random.randint(number_key, (2,), 0, 1 << 20) + jnp.int32(x[0] > 0) * (1 - lie)


def symbol(key, x):
    """The middle one of three categories is likelier in one world."""
    return jax.random.categorical(key, jnp.log(jnp.array([1.0, 1.0 + 30 * x[0], 1.0])))


def pattern(key, x):
    """A conjunction: all four bits are 1 much more often in one world, none of them much by itself."""
    bits_key, all_key = jax.random.split(key)
    bits = jax.random.bernoulli(bits_key, 0.5, (6,))
    return bits | jax.random.bernoulli(all_key, 0.3 * x[0])


def missing(key, x):
    coin_key, noise_key = jax.random.split(key)
    return noisy(noise_key, (5,)).at[3].set(jnp.where(jax.random.bernoulli(coin_key, 0.2 * x[0]), jnp.nan, 0.0))


def high_bit(key, x):
    """Uniform words, one bit of which tells the world in nine of ten."""
    words_key, lie_key = jax.random.split(key)
    words = jax.random.bits(words_key, (3,), jnp.uint32)
    told = jnp.uint32(x[0] > 0) ^ jax.random.bernoulli(lie_key, 0.1).astype(jnp.uint32)
    return words.at[1].set((words[1] & jnp.uint32(0xFFFDFFFF)) | (told << 17))


def largest(key, x):
    return noisy(key, (20,)) * 100 + 1e4 * x[0] * (jnp.arange(20) == 11)


LEAKS = [
    shifted,
    spread,
    in_one_place,
    shared_noise,
    off_the_grid,
    residue,
    symbol,
    pattern,
    missing,
    high_bit,
    largest,
]


def plain(mechanism, x0=X0, x1=X1, **more) -> dpaudit.AuditResult:
    settings: dict[str, Any] = {"key": KEY, "trials": 4_000, "claim": Claim(1.0), "confidence": 0.999}
    return dpaudit.audit(mechanism, x0, x1, **(settings | more))


def of_strength(leak, strength):
    """The leak of ``strength`` times its input, which is data: all strengths are one compiled program."""
    strength = jnp.full(1, strength, jnp.float32)  # a number by itself would be written into the program
    return lambda key, x: leak(key, strength * x)


@pytest.mark.parametrize("leak", LEAKS)
def test_a_leak_is_found_without_a_word_and_its_twin_is_not_accused(leak):
    found = plain(of_strength(leak, 1))
    assert found.verdict == "violation"
    assert found.method.startswith(f"{found.attacks[0].name}, chosen from {len(found.attacks)} attacks")
    assert found.attacks[0].bound >= 0.99 * max(one.bound for one in found.attacks if one.accuracy is not None)
    assert dpaudit.AuditResult.from_json(found.to_json()) == found
    twin = plain(of_strength(leak, 0))
    assert twin.verdict != "violation"
    assert twin.epsilon_lower < 0.5


@pytest.mark.integration
def test_noise_of_few_seeds_is_found_by_releases_that_come_twice():
    def few_seeds(key, x, places=15):
        seed = jax.random.bits(key, (), jnp.uint32) >> (32 - places)
        return x + noisy(jax.random.key(seed), scale=10.0)

    found = plain(few_seeds, trials=40_000)
    assert (found.verdict, found.attacks[0].name) == ("violation", "frequencies of exact releases")
    assert plain(lambda key, x: few_seeds(key, x, 32), trials=40_000).verdict != "violation"
    assert plain(lambda key, x: few_seeds(key, 0 * x), trials=40_000).verdict != "violation"


def line(factor, shift):
    """The same compiled program for all factors and shifts."""
    factor, shift = jnp.full(1, factor, jnp.float32), jnp.full(1, shift, jnp.float32)
    return lambda z: factor * z + shift


ALIKE = {
    "negated": line(-1, 0),
    "permuted": lambda z: z[::-1] if z.ndim else z,
    "shifted": line(1, 2.0**10),
    "scaled": line(2.0**-20, 0),
}


@pytest.mark.parametrize("change", ALIKE)
@pytest.mark.parametrize("leak", [shifted, spread, shared_noise, off_the_grid])
def test_what_hides_nothing_changes_no_verdict(leak, change):
    assert plain(lambda key, x: ALIKE[change](leak(key, x))).verdict == "violation"


def test_a_named_distinguisher_is_played_alone():
    found = plain(symbol, distinguisher=distinguish.projection)
    assert (found.attacks, found.method) == (
        (),
        "projection, threshold from the first quarter of the trials; Clopper-Pearson",
    )


def test_an_attack_of_one_s_own_is_played_beside_the_family():
    """A product of signs that only it reads."""

    def hidden(key, x):
        signs_key, flip_key, size_key = jax.random.split(key, 3)
        signs = jnp.sign(jax.random.normal(signs_key, (9,)))
        lie = jnp.where(jax.random.bernoulli(flip_key, 0.05), -1.0, 1.0)
        signs = jnp.append(signs, lie * jnp.prod(signs) * jnp.where(x[0] > 0, 1.0, -1.0))
        return signs * jax.random.uniform(size_key, (10,), minval=0.5, maxval=2.0)

    own = distinguish.Distinguisher(lambda *_: jnp.prod, None, "product")
    assert plain(hidden).epsilon_lower < 1
    found = plain(hidden, attacks=(own,))
    assert found.verdict == "violation"
    assert found.attacks[0].name == "product"


@pytest.mark.integration
def test_useless_attacks_spend_no_error():
    """The best of 21 scores, of which one attains epsilon and 20 see nothing, in 120 audits at 80%."""
    truth, audits, n, aside, useless = math.log(3), 120, 300, 100, 20
    rng, wrong, bold = np.random.default_rng(0), [], []
    settings: dict[str, Any] = {"delta": 0.0, "confidence": 0.8}
    for _ in range(audits):
        scores = rng.normal(size=(2, n, useless + 1))
        scores[..., 7] = rng.random((2, n)) < np.array([[0.25], [0.75]])
        seen = [choose.look(scores[:, :aside, i], **settings) for i in range(useless + 1)]
        chosen = choose.best(seen)[0]
        counts = errors(scores[:, aside:, chosen], *seen[chosen].rule)
        wrong.append(epsilon_bounds(*counts, n - aside, n - aside, **settings)[0] > truth)
        bold.append(epsilon_bounds(*counts, n - aside, n - aside, delta=0.0, confidence=0.2)[0] > truth)
    limit = 0.2 + 3 * math.sqrt(0.16 / audits)
    assert np.mean(wrong) <= limit < np.mean(bold)


@pytest.mark.slow
def test_useless_attacks_spend_no_error_in_whole_audits():
    directions = np.random.default_rng(0).normal(size=(100, 4)).astype(np.float32)
    own = [
        distinguish.Distinguisher(lambda *_, w=w: lambda z: jnp.sum(z * w), None, f"direction {i}")
        for i, w in enumerate(directions)
    ]

    def response(key, x):
        coin_key, noise_key = jax.random.split(key)
        return jnp.append(noisy(noise_key), jnp.where(jax.random.bernoulli(coin_key, 0.25), 1 - x[0], x[0]))

    truth, audits = math.log(3), 60
    wrong = [
        plain(response, key=jax.random.key(seed), attacks=own, trials=1000, confidence=0.8).epsilon_lower > truth
        for seed in range(audits)
    ]
    assert np.mean(wrong) <= 0.2 + 3 * math.sqrt(0.16 / audits)


@pytest.mark.parametrize("trials", [300, 20_000])
def test_the_right_noise_is_never_accused_and_nearly_used_up(trials):
    mechanism, end = laplace.mechanism(epsilon=1.0, clip_norm=0.5), jnp.array([0.5, 0.0, 0.0])
    lower = [plain(mechanism, -end, end, key=jax.random.key(i), trials=trials).epsilon_lower for i in range(4)]
    assert max(lower) <= 1.0
    if trials == 20_000:
        assert np.mean(lower) > 0.75


@pytest.mark.slow
def test_hundreds_of_right_mechanisms_are_not_accused():
    mechanism, end = laplace.mechanism(epsilon=1.0, clip_norm=0.5), jnp.array([0.5, 0.0, 0.0])
    lower = [plain(mechanism, -end, end, key=jax.random.key(i), trials=4000).epsilon_lower for i in range(400)]
    assert sum(bound > 1.0 for bound in lower) <= 3


def test_it_stops_early():
    found = plain(shifted, until=sequential.violation(), trials=100_000)
    assert found.verdict == "violation"
    assert found.trials < 10_000
    assert found.attacks


def test_few_trials_play_one_attack():
    assert plain(shifted, trials=200).method.startswith("projection, threshold from")
    assert plain(shifted, trials=300).attacks


@pytest.mark.integration
def test_numpy_and_the_devices_choose_alike_and_batches_make_no_difference(monkeypatch):
    """An audit of few trials is read by NumPy, one of many by a compiled program."""
    found = {}
    for way, most in (("NumPy", scoring.HOST_PAIRS), ("devices", 0)):
        monkeypatch.setattr(scoring, "HOST_PAIRS", most)
        found[way] = plain(shared_noise)
        assert plain(shared_noise, batch=1) == found[way]
        whole = plain(shared_noise, until=sequential.violation(), trials=20_000)
        assert plain(shared_noise, until=sequential.violation(), trials=20_000, batch=5000) == whole
    one, other = found.values()
    assert (one.method, one.verdict) == (other.method, other.verdict)
    assert one.epsilon_lower == pytest.approx(other.epsilon_lower, abs=0.02)


@pytest.mark.integration
def test_large_releases_are_played():
    """Of 20,000 numbers the pilot is 209 releases of each world; the direction is known."""
    x1 = jnp.full(20_000, 0.07)

    def large(key, x):
        return x + jax.random.normal(key, x.shape)

    found = plain(large, jnp.zeros(20_000), x1, trials=1_000)
    assert found.verdict == "violation"


def raises(*_):
    raise RuntimeError("out of luck")


def on_the_host(*_) -> Any:
    return lambda z: float(np.asarray(z).sum())


BAD: list[tuple[Any, str]] = [
    ((jnp.sum,), "^attacks: expected a sequence of Distinguishers, got "),
    (
        (distinguish.Distinguisher(raises, None, "mine"),),
        r"^attacks: expected a score of every release, got RuntimeError: out of luck \(raised by mine\)$",
    ),
    (
        (distinguish.Distinguisher(lambda *_: raises, None, "mine"),),
        r"^attacks: expected a score of every release, got RuntimeError: out of luck \(raised by mine\)$",
    ),
    (
        (distinguish.Distinguisher(on_the_host, None, "mine"),),
        r"^attacks: expected scores that jax.jit can trace, got mine, which needs a number \(Tracer",
    ),
    (
        (distinguish.Distinguisher(lambda *_: lambda z: z[0] + random.random(), None, "mine"),),
        r"^attacks: expected a score that depends on the release alone, got mine, which changes each time",
    ),
    (
        (distinguish.Distinguisher(cast(Any, lambda *_: lambda z: z), None, "mine"),),
        r"^attacks: expected one number for each release, got shape \[3\] \(from mine\)$",
    ),
    (
        (distinguish.Distinguisher(cast(Any, lambda *_: lambda z: "high"), None, "mine"),),
        "^attacks: expected ",
    ),
]


@pytest.mark.parametrize("attacks, message", BAD)
def test_attacks_that_cannot_be_played_are_refused_in_one_line(attacks, message):
    with pytest.raises(_validate.InputError, match=message) as refused:
        plain(shifted, attacks=attacks)
    assert "\n" not in str(refused.value)
    named = message.replace("^attacks", "^distinguisher").replace(
        "a sequence of Distinguishers", "a Distinguisher or None"
    )
    with pytest.raises(_validate.InputError, match=named) as refused:
        plain(shifted, distinguisher=attacks[0])
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("attacks", [distinguish.lowest_bits, None])
def test_what_is_no_sequence_of_attacks_is_refused(attacks):
    with pytest.raises(_validate.InputError, match=r"^attacks: expected a sequence of Distinguishers, got "):
        plain(shifted, attacks=attacks)


def test_attacks_beside_a_named_one_are_refused():
    own = distinguish.Distinguisher(lambda *_: jnp.sum, None, "mine")
    with pytest.raises(
        _validate.InputError, match=r"^attacks: expected none where a distinguisher is named, got \['mine'\]$"
    ):
        plain(shifted, distinguisher=distinguish.projection, attacks=[own])


def test_numpy_and_jax_read_the_same():
    """What the pilot is fitted on is what trials are scored by: every part of the family, on awkward numbers."""
    rng = np.random.default_rng(0)
    leaves = [
        rng.normal(size=(2, 40, 3)).astype(np.float32),
        rng.integers(-(1 << 31), 1 << 31, (2, 40), dtype=np.int32),
        rng.integers(0, 2, (2, 40, 2)).astype(bool),
        rng.integers(0, 250, (2, 40)).astype(np.uint8),
        rng.normal(size=(2, 40)).astype(jnp.bfloat16),
    ]
    leaves[0][0, 0], leaves[0][0, 1] = [np.nan, np.inf, 0.0], [-np.inf, -0.0, 1e-40]
    reference = [leaf[0, 2] for leaf in leaves]
    seen = features.View(np, leaves, reference, lead=2)
    sight = pilot.sight(seen, None, pilot.coordinates_of_words(leaves, 2))
    numbers = features.read(np, seen, sight)
    fitted, ratios = frequencies.tables(numbers)
    whole = frequencies.patterns(numbers[..., : len(sight.chosen)])
    net = network.fitted(numbers, ratios, np.arange(numbers.shape[-1]))
    assert numbers.shape[-1] == len(features.names(sight))

    def one(*release):
        own = features.View(jnp, release, reference)
        read = features.read(jnp, own, sight)
        of_tables = fitted.read(jnp, read)
        pair = features.project(jnp, own.numbers, sight)
        return read, of_tables, whole.read(jnp, read[: len(sight.chosen)]), net.read(jnp, read, of_tables), pair

    by_jax = jax.jit(jax.vmap(jax.vmap(one)))(*leaves)
    by_numpy = numbers, ratios, whole.read(np, numbers[..., : len(sight.chosen)])
    for a, b in zip(by_jax[:2], by_numpy[:2], strict=True):
        np.testing.assert_allclose(np.asarray(a)[0, 2:], b[0, 2:], rtol=2e-4, atol=2e-4)
    np.testing.assert_allclose(by_jax[2], by_numpy[2], atol=1e-5)
    logit = net.read(np, numbers, ratios)
    np.testing.assert_allclose(np.asarray(by_jax[3])[1], logit[1], rtol=1e-3, atol=1e-2)
    assert np.isfinite(by_jax[4]).all()


def test_lowest_bits_are_exact():
    numbers = np.array([1.0, 0.75, 3.0, -96.0, 2.0**-149, 0.0, np.inf, 1 + 2.0**-23, -0.0], np.float32)
    expected = [0, -2, 0, 5, -149, features.NO_BIT, features.NO_NUMBER, -23, features.NEGATIVE]
    for xp in (np, jnp):
        np.testing.assert_array_equal(features.lowest_bit(xp, xp.asarray(numbers)), expected)


def test_the_sign_of_a_zero_is_read():
    def signed(key, x):
        hidden = jax.random.bernoulli(key, shape=(60,))
        return jnp.where(hidden, jnp.copysign(0.0, x), jax.random.normal(key, (60,)) + 1)

    x1 = jnp.ones(60)
    assert plain(signed, x1.at[55].set(-1.0), x1, trials=2_000).verdict == "violation"


def test_a_gap_of_floating_point_counts_where_it_is_asked_for():
    def gaps(key, x):
        return x[0] + 2 * jax.random.laplace(key)

    x0, x1 = jnp.ones(1), jnp.zeros(1)
    assert plain(gaps, x0, x1).verdict == "consistent"
    found = plain(gaps, x0, x1, attacks=(distinguish.lowest_bits,), trials=20_000)
    assert (found.verdict, found.attacks[0].name) == ("violation", "lowest bits")
