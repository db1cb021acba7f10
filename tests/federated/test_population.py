"""Virtual clients: the law of their rows, and of who is drawn."""

from functools import partial
from itertools import combinations, permutations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial
from scipy.stats import betabinom, chi2_contingency, chisquare

from dpaudit import InputError
from dpaudit.federated import population
from dpaudit.federated.population import dirichlet, iid, sample_clients, shards
from dpaudit.kernels import philox

KEY = jax.random.key(11)
LABELS = np.random.default_rng(1).permutation(np.repeat([0, 1, 2], [60, 30, 10]))
TEST_LABELS = np.random.default_rng(2).permutation(np.repeat([0, 1, 2], [25, 25, 50]))
P = np.array([0.6, 0.3, 0.1])  # of LABELS
WITHIN = P[TEST_LABELS] / np.bincount(TEST_LABELS)[TEST_LABELS]  # of a test row, where labels are as in LABELS
MAKERS = {  # of few shapes, as the programs take long to compile
    "iid": lambda key, labels=LABELS, test_labels=TEST_LABELS: iid(key, len(labels), len(test_labels)),
    "shards": lambda key, labels=LABELS, test_labels=TEST_LABELS: shards(
        key, labels, test_labels, shards=5, examples=32, tests=8
    ),
    "dirichlet": lambda key, labels=LABELS, test_labels=TEST_LABELS, alpha=0.5: dirichlet(
        key, labels, test_labels, alpha=alpha, examples=8, tests=4
    ),
}
ASKED = 20_000  # clients at a time
every = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
traces: list[Partial] = []


@jax.jit
def asked(rows, clients):
    traces.append(rows)
    return jax.vmap(rows)(clients)


def drawn(rows, clients):
    """Of clients with these numbers, or of the first so many."""
    numbers = np.arange(clients) if isinstance(clients, int) else np.asarray(clients)
    return np.asarray(asked(rows, np.resize(numbers, ASKED)))[: len(numbers)]


def follows(values, law):
    """p-value of whole numbers 0, 1, ... having probabilities proportional to ``law``."""
    law = np.asarray(law, float)
    return chisquare(np.bincount(values.ravel(), minlength=len(law)), law / law.sum() * values.size).pvalue


@pytest.mark.integration
@every
@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", philox.IMPL], ids=str)
def test_a_clients_rows_depend_on_key_and_number_alone(make, impl):
    people = make(jax.random.key(3, impl=impl))
    other = make(jax.random.key(4, impl=impl))
    numbers = [9_999_999, 0, 7, 0]
    for rows, others in ((people.train, other.train), (people.test, other.test)):
        together = drawn(rows, numbers)
        assert together.dtype == np.int32
        assert np.array_equal(together, drawn(rows, numbers[::-1])[::-1])
        between = np.ravel(list(zip(numbers, range(100, 104), strict=True)))  # each beside a client of its own
        assert np.array_equal(together, drawn(rows, between)[::2])
        assert not np.array_equal(together, drawn(others, numbers))
    assert len(np.unique(drawn(people.train, numbers), axis=0)) == 3


@every
def test_populations_are_data_to_a_compiled_program(make):
    first, traced = drawn(make(jax.random.key(0)).train, 3), len(traces)
    second = drawn(make(jax.random.key(1), LABELS[::-1]).train, 3)
    assert len(traces) == traced > 0
    assert not np.array_equal(first, second)


def test_iid_rows_are_uniform_and_independent():
    people = iid(KEY, 20, 10)
    train, test = drawn(people.train, 20_000), drawn(people.test, 20_000)
    assert (train.shape, test.shape) == ((20_000, 5), (20_000, 1))
    assert follows(train, np.ones(20)) > 1e-3
    assert follows(test, np.ones(10)) > 1e-3
    assert follows(train, [*np.ones(19), 1.1]) < 1e-6
    pairs = {"draws": train[:, :2].T, "clients": (train[:-1, 0], train[1:, 0]), "test": (train[:, 0], test[:, 0])}
    for mine, other in pairs.values():
        found: Any = chi2_contingency(np.histogram2d(mine, other, bins=[20, other.max() + 1])[0])
        assert found.pvalue > 1e-3


def test_a_client_of_shards_has_a_random_subset_of_them():
    people = MAKERS["shards"](KEY)
    train, test = drawn(people.train, 5_000), drawn(people.test, 5_000)
    assert (train.shape, test.shape) == ((5_000, 32), (5_000, 8))
    place = np.empty(100, int)
    place[np.argsort(LABELS, kind="stable")] = np.arange(100)
    owned = [tuple(np.unique(row)) for row in place[train] // 20]
    subsets = list(combinations(range(5), 2))
    assert follows(np.array([subsets.index(subset) for subset in owned]), np.ones(10)) > 1e-3
    assert follows(train[:, 0], np.ones(100)) > 1e-3  # one draw a client: all rows alike

    knows = np.array([np.isin(range(3), LABELS[row]) for row in train])
    assert knows[np.arange(5_000)[:, None], TEST_LABELS[test]].all()
    assert not knows[np.arange(4_999)[:, None], TEST_LABELS[test[1:]]].all()  # of the next client
    assert follows(test[:, 0], WITHIN) > 1e-3
    assert follows(test[:, 0], np.ones(100)) < 1e-6


def test_a_client_of_one_shard_has_its_rows_alone():
    rows = drawn(shards(KEY, np.arange(100) // 10, shards=10, per_client=1).train, 2_000) // 10
    assert (rows == rows[:, :1]).all()
    assert follows(rows[:, 0], np.ones(10)) > 1e-3


@pytest.mark.parametrize("alpha", [0.05, 1.0, 20.0])
def test_dirichlet_labels_have_the_law_of_drawn_proportions(alpha):
    """Of n labels, those of one kind are beta-binomial(n, alpha p, alpha (1 - p)), training and test together."""
    people = MAKERS["dirichlet"](KEY, alpha=alpha)
    labels = np.hstack([LABELS[drawn(people.train, ASKED)], TEST_LABELS[drawn(people.test, ASKED)]])
    assert labels.shape == (ASKED, 12)
    for label, p in enumerate(P):
        seen = (labels == label).sum(axis=1)
        assert follows(seen, _law(alpha, p)) > 1e-3
        assert follows(seen, _law(2 * alpha, p)) < 1e-6
    ends = (labels[:, [0, -1]] == 1).sum(axis=1)  # one training and one test label: as any two
    assert follows(ends, betabinom.pmf(range(3), 2, alpha * 0.3, alpha * 0.7)) > 1e-3


def _law(alpha, p):
    return betabinom.pmf(range(13), 12, alpha * p, alpha * (1 - p))


def test_dirichlet_rows_are_uniform_within_a_label():
    people = MAKERS["dirichlet"](KEY, alpha=0.3)
    train, test = drawn(people.train, 20_000), drawn(people.test, 20_000)
    assert follows(train[:, -1], np.ones(100)) > 1e-3
    assert follows(test[:, 0], WITHIN) > 1e-3
    assert follows(test[:, 0], np.ones(100)) < 1e-6
    same = train[LABELS[train[:, 0]] == LABELS[train[:, 1]]]  # a label that is repeated is not the row repeated
    zeros = same[LABELS[same[:, 0]] == 0]
    assert abs((zeros[:, 0] == zeros[:, 1]).mean() - 1 / 60) < 4 * np.sqrt(1 / 60 / len(zeros))


@pytest.mark.parametrize("alpha", [1e-30, 1e30])
def test_dirichlet_at_its_ends_is_one_label_or_iid(alpha):
    labels = LABELS[drawn(MAKERS["dirichlet"](KEY, alpha=alpha).train, 5_000)]
    if alpha < 1:
        assert (labels == labels[:, :1]).all()
    else:
        assert follows(labels, P) > 1e-3


def shares(labels):
    return np.bincount(labels.ravel(), minlength=3) / labels.size


SQUARES = {  # E[q_k^2], of the proportions of a client's labels
    "iid": P**2,
    "shards": np.mean(
        [shares(np.sort(LABELS).reshape(5, 20)[list(two)]) ** 2 for two in combinations(range(5), 2)], 0
    ),
    "dirichlet": P**2 + P * (1 - P) / 1.5,
}


@pytest.mark.parametrize("name", MAKERS)
def test_training_and_test_rows_have_the_labels_in_common_and_nothing_else(name):
    """With one data set for both, a training and a test row are the same with probability sum_k E[q_k^2]/n_k."""
    people = MAKERS[name](KEY, LABELS, LABELS)
    same = (drawn(people.train, ASKED)[:, 0] == drawn(people.test, ASKED)[:, 0]).mean()
    chance = (SQUARES[name] / np.bincount(LABELS)).sum()
    assert abs(same - chance) < 4 * np.sqrt(chance / ASKED)


@every
def test_training_and_test_rows_of_one_label_are_independent(make):
    """Of the 98 rows with label 0: their sum modulo 98 is uniform; drawn with one key, it would be even."""
    labels = np.array([0] * 98 + [1, 2])
    people = make(KEY, labels, labels)
    train, test = drawn(people.train, 20_000)[:, 0], drawn(people.test, 20_000)[:, 0]
    assert follows((train + test)[(train < 98) & (test < 98)] % 98, np.ones(98)) > 1e-3


def test_without_test_data_there_are_no_tests():
    for people in (iid(KEY, 100), shards(KEY, LABELS, shards=10), dirichlet(KEY, LABELS, alpha=1.0)):
        assert jax.eval_shape(people.test, 0).shape == (0,)


@pytest.mark.parametrize(("clients", "count"), [(5, 3), (30, 2)])
def test_every_list_of_distinct_clients_is_equally_likely(clients, count):
    """By permutation, and by draws."""
    assert (population._enough(clients, count) < clients) == (clients == 30)
    lists = {chosen: i for i, chosen in enumerate(permutations(range(clients), count))}
    sample = jax.jit(jax.vmap(partial(sample_clients, clients=clients, count=count)))
    samples = np.asarray(sample(jax.random.split(KEY, 100 * len(lists))))
    assert follows(np.array([lists[tuple(sample)] for sample in samples.tolist()]), np.ones(len(lists))) > 1e-3
    ordered = np.sort(samples, axis=1)
    assert follows(np.array([lists[tuple(sample)] for sample in ordered.tolist()]), np.ones(len(lists))) < 1e-6


@pytest.mark.parametrize("clients", [1, 40])
def test_all_clients_are_a_permutation(clients):
    sample = sample_clients(KEY, clients, clients)
    assert sample.dtype == jnp.int32
    assert np.array_equal(np.sort(sample), np.arange(clients))
    assert clients == 1 or not np.array_equal(sample, np.arange(clients))


@pytest.mark.parametrize("clients", [3 << 29, 20_000])
def test_sampled_clients_are_distinct_and_uniform(clients):
    sample = np.asarray(jax.jit(lambda key: sample_clients(key, clients, 12_000))(KEY))
    assert len(np.unique(sample)) == 12_000
    assert 0 <= sample.min() < sample.max() < clients
    thirds = sample.astype(np.int64) * 3 // clients
    assert follows(thirds, np.ones(3)) > 1e-3
    assert follows(thirds, [1.2, 1, 1]) < 1e-6
    assert follows(np.diff(thirds) % 3, np.ones(3)) > 1e-3


def test_whole_numbers_are_64_bit_fractions_of_their_bounds():
    bounds = np.tile(np.array([1, 3, 60_000, 10_000_000, 3 << 29, population.LARGEST], np.int32), 2_000)
    high, low = np.asarray(jax.random.bits(KEY, (2, len(bounds)), jnp.uint32)).tolist()
    exact = [((h << 32) + w) * bound >> 64 for h, w, bound in zip(high, low, bounds.tolist(), strict=True)]
    assert np.array_equal(jax.jit(population._below)(KEY, bounds), exact)
    coarse = np.asarray(jax.random.randint(KEY, (12_000,), 0, 3 << 29, jnp.int32))  # why it is not used
    assert follows(coarse >> 29, np.ones(3)) < 1e-6


def test_the_first_distinct_draws_are_kept_in_order():
    draws = np.random.default_rng(0).integers(0, 12, (20, 100))
    for count in (1, 6, 12):
        kept = jax.jit(jax.vmap(partial(population._first_distinct, count=count)))(draws)
        assert kept.tolist() == [list(dict.fromkeys(row))[:count] for row in draws.tolist()]


@pytest.mark.parametrize(("clients", "count"), [(100, 1), (1_000, 3), (1_000, 100), (10_000, 4_000)])
def test_draws_suffice_and_are_not_many(clients, count):
    """Against the chain of the number of distinct draws."""
    draws = population._enough(clients, count)
    chance = np.eye(count)[0]  # of k distinct ones, k < count
    for _ in range(draws):
        stays = np.arange(count) / clients
        chance = chance * stays + np.append(0, (chance * (1 - stays))[:-1])
    assert chance.sum() < population.TOO_FEW
    assert draws < min(2 * count + 20, clients)


def test_memory_does_not_grow_with_the_population():
    def temporary(sample):
        sizes: Any = jax.jit(sample).lower(KEY).compile().memory_analysis()
        return sizes.temp_size_in_bytes

    small, large = (temporary(partial(sample_clients, clients=clients, count=100)) for clients in (10_000, 10_000_000))
    assert 0 < large <= small < 10_000
    assert temporary(lambda key: jax.random.permutation(key, 100_000)[:100]) > 100_000


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: iid(KEY, 4), "rows: expected at least a client's share of 5 rows, got 4"),
        (lambda: iid(KEY, 9, 2, tests=3), "test_rows: expected at least a client's share of 3 rows, got 2"),
        (lambda: iid(KEY, 0), "rows: expected a whole number >= 1, got 0"),
        (lambda: iid(KEY, 9, clients=0), "clients: expected a whole number >= 1, got 0"),
        (lambda: iid(KEY, 9, clients=1 << 31), "clients: expected at most 2147483647, got 2147483648"),
        (lambda: iid(KEY, 9, examples=0), "examples: expected a whole number >= 1, got 0"),
        (lambda: iid(KEY, 9, 9, tests=-1), "tests: expected a whole number >= 0, got -1"),
        (lambda: iid(7, 9), "key: expected a key, as made by jax.random.key, got 7"),  # pyright: ignore
        (lambda: shards(KEY, LABELS, shards=7), "shards: expected a divisor of the 100 rows, got 7"),
        (lambda: shards(KEY, LABELS), "shards: expected a divisor of the 100 rows, got 200"),
        (lambda: shards(KEY, LABELS, shards=0), "shards: expected a whole number >= 1, got 0"),
        (lambda: shards(KEY, LABELS, shards=4, per_client=5), "per_client: expected at most the 4 shards, got 5"),
        (lambda: shards(KEY, LABELS[:4]), "labels: expected at least a client's share of 5 rows, got 4"),
        (lambda: dirichlet(KEY, LABELS, alpha=0.0), "alpha: expected a finite number > 0, got 0.0"),
        (lambda: dirichlet(KEY, LABELS - 1, alpha=1.0), r"labels: expected whole numbers >= 0, got -1 in row \d+"),
        (lambda: dirichlet(KEY, LABELS / 2, alpha=1.0), r"labels: expected .* shape \[rows\], got float64 \[100\]"),
        (lambda: dirichlet(KEY, LABELS, LABELS + 1, alpha=1.0), "test_labels: .* training data, got some without 0"),
        (lambda: dirichlet(KEY, LABELS, [0, 1, 2, 3], alpha=1.0), "test_labels: .* training data, got some with 3"),
        (lambda: sample_clients(KEY, 5, 6), "count: expected at most the 5 clients, got 6"),
        (lambda: sample_clients(KEY, 5, 0), "count: expected a whole number >= 1, got 0"),
        (lambda: sample_clients(KEY, 0, 1), "clients: expected a whole number >= 1, got 0"),
    ],
)
def test_what_cannot_be_drawn_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()
