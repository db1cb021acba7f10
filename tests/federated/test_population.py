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
TEST_LABELS = np.random.default_rng(2).permutation(np.repeat([0, 1, 2], [10, 10, 20]))
ONE_LABEL = np.zeros(100, int)
P = np.array([0.6, 0.3, 0.1])  # of LABELS
MAKERS = {
    "iid": lambda key, **sizes: iid(key, 100, 40, **sizes),
    "shards": lambda key, **sizes: shards(key, LABELS, TEST_LABELS, shards=10, **sizes),
    "dirichlet": lambda key, **sizes: dirichlet(key, LABELS, TEST_LABELS, alpha=0.5, **sizes),
}
every = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


one = jax.jit(lambda rows, client: rows(client))
many = jax.jit(lambda rows, clients: jax.vmap(rows)(clients))


def drawn(rows, clients):
    return np.asarray(many(rows, jnp.arange(clients)))


def shares(labels):
    return np.bincount(labels.ravel(), minlength=3) / labels.size


def follows(values, law):
    """p-value of whole numbers 0, 1, ... having probabilities proportional to ``law``."""
    law = np.asarray(law, float)
    return chisquare(np.bincount(values.ravel(), minlength=len(law)), law / law.sum() * values.size).pvalue


@every
@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", philox.IMPL], ids=str)
def test_a_clients_rows_depend_on_key_and_number_alone(make, impl):
    people = make(jax.random.key(3, impl=impl))
    other = make(jax.random.key(4, impl=impl))
    numbers = jnp.array([9_999_999, 0, 7, 0])
    for rows, others, size in ((people.train, other.train, 5), (people.test, other.test, 1)):
        together = np.asarray(many(rows, numbers))
        assert together.shape == (4, size)
        assert together.dtype == np.int32
        assert np.array_equal(together, [one(rows, number) for number in numbers])
        assert np.array_equal(together, many(rows, numbers[::-1])[::-1])
        assert not np.array_equal(together, many(others, numbers))
    assert len(np.unique(many(people.train, numbers), axis=0)) == 3


@every
def test_populations_are_data_to_a_compiled_program(make):
    traces = []

    @jax.jit
    def rows(train):
        traces.append(train)
        return jax.vmap(train)(jnp.arange(3))

    first, second = (rows(make(jax.random.key(seed)).train) for seed in (0, 1))
    assert len(traces) == 1
    assert not np.array_equal(first, second)


def test_iid_rows_are_uniform_and_independent():
    people = iid(KEY, 20, 10)
    train, test = drawn(people.train, 20_000), drawn(people.test, 20_000)
    assert follows(train, np.ones(20)) > 1e-3
    assert follows(test, np.ones(10)) > 1e-3
    assert follows(drawn(iid(KEY, 20).train, 20_000), [*np.ones(19), 1.1]) < 1e-6
    pairs = {"draws": train[:, :2].T, "clients": (train[:-1, 0], train[1:, 0]), "test": (train[:, 0], test[:, 0])}
    for mine, other in pairs.values():
        found: Any = chi2_contingency(np.histogram2d(mine, other, bins=[20, other.max() + 1])[0])
        assert found.pvalue > 1e-3


def test_a_client_of_shards_has_a_random_subset_of_them():
    people = shards(KEY, LABELS, TEST_LABELS, shards=5, per_client=2, examples=60, tests=30)
    train, test = drawn(people.train, 5_000), drawn(people.test, 5_000)
    place = np.empty(100, int)
    place[np.argsort(LABELS, kind="stable")] = np.arange(100)
    owned = [tuple(np.unique(row)) for row in place[train] // 20]
    subsets = list(combinations(range(5), 2))
    counts = np.array([owned.index(subset) for subset in subsets if subset in owned])
    assert len(counts) == 10
    assert follows(np.array([subsets.index(subset) for subset in owned]), np.ones(10)) > 1e-3
    assert follows(train[:, 0], np.ones(100)) > 1e-3  # one draw a client: all rows alike

    knows = np.array([np.isin(range(3), LABELS[row]) for row in train])
    assert knows[np.arange(5_000)[:, None], TEST_LABELS[test]].all()
    assert not knows[np.arange(4_999)[:, None], TEST_LABELS[test[1:]]].all()  # of the next client
    within = P[TEST_LABELS] / np.bincount(TEST_LABELS)[TEST_LABELS]
    assert follows(test[:, 0], within) > 1e-3
    assert follows(test[:, 0], np.ones(40)) < 1e-6


def test_a_client_of_one_shard_has_its_rows_alone():
    rows = drawn(shards(KEY, np.arange(100) // 10, shards=10, per_client=1).train, 2_000) // 10
    assert (rows == rows[:, :1]).all()
    assert follows(rows[:, 0], np.ones(10)) > 1e-3


@pytest.mark.parametrize("alpha", [0.05, 1.0, 20.0])
def test_dirichlet_labels_have_the_law_of_drawn_proportions(alpha):
    """Of n labels, those of one kind are beta-binomial(n, alpha p, alpha (1 - p)), training and test together."""
    people = dirichlet(KEY, LABELS, TEST_LABELS, alpha=alpha, examples=8, tests=4)
    labels = np.hstack([LABELS[drawn(people.train, 40_000)], TEST_LABELS[drawn(people.test, 40_000)]])
    for label, p in enumerate(P):
        seen = (labels == label).sum(axis=1)
        assert follows(seen, _law(alpha, p)) > 1e-3
        assert follows(seen, _law(2 * alpha, p)) < 1e-6
    ends = (labels[:, [0, -1]] == 1).sum(axis=1)  # one training and one test label: as any two
    assert follows(ends, betabinom.pmf(range(3), 2, alpha * 0.3, alpha * 0.7)) > 1e-3


def _law(alpha, p):
    return betabinom.pmf(range(13), 12, alpha * p, alpha * (1 - p))


def test_dirichlet_proportions_have_the_stated_mean_and_variance():
    alpha, n, clients = 2.0, 300, 4_000
    labels = np.tile(LABELS, 3)
    seen = labels[drawn(dirichlet(KEY, labels, alpha=alpha, examples=n).train, clients)]
    seen_shares = [(seen == label).mean(axis=1) for label in range(3)]
    for share, p in zip(seen_shares, P, strict=True):
        assert abs(share.mean() - p) < 4 * share.std() / np.sqrt(clients)
        squares = (share - p) ** 2
        error = squares.std() / np.sqrt(clients)

        def variance(alpha, p=p):
            return p * (1 - p) / (alpha + 1) * (1 + alpha / n)  # and that of n draws

        assert abs(squares.mean() - variance(alpha)) < 4 * error < abs(squares.mean() - variance(2 * alpha))


def test_dirichlet_rows_are_uniform_within_a_label():
    people = dirichlet(KEY, LABELS, TEST_LABELS, alpha=0.3)
    train, test = drawn(people.train, 20_000), drawn(people.test, 20_000)
    within = P[TEST_LABELS] / np.bincount(TEST_LABELS)[TEST_LABELS]
    assert follows(train[:, -1], np.ones(100)) > 1e-3
    assert follows(test[:, 0], within) > 1e-3
    assert follows(test[:, 0], np.ones(40)) < 1e-6
    same = train[LABELS[train[:, 0]] == LABELS[train[:, 1]]]  # a label that is repeated is not the row repeated
    zeros = same[LABELS[same[:, 0]] == 0]
    assert abs((zeros[:, 0] == zeros[:, 1]).mean() - 1 / 60) < 4 * np.sqrt(1 / 60 / len(zeros))


@pytest.mark.parametrize("alpha", [1e-30, 1e30])
def test_dirichlet_at_its_ends_is_one_label_or_iid(alpha):
    labels = LABELS[drawn(dirichlet(KEY, LABELS, alpha=alpha).train, 5_000)]
    if alpha < 1:
        assert (labels == labels[:, :1]).all()
    else:
        assert follows(labels, P) > 1e-3


@pytest.mark.parametrize(
    ("make", "squares"),
    [
        (lambda **sizes: iid(KEY, 100, 100, **sizes), P**2),
        (
            lambda **sizes: shards(KEY, LABELS, LABELS, shards=10, **sizes),
            np.mean(
                [shares(np.sort(LABELS).reshape(10, 10)[list(two)]) ** 2 for two in combinations(range(10), 2)], 0
            ),
        ),
        (lambda **sizes: dirichlet(KEY, LABELS, LABELS, alpha=0.5, **sizes), P**2 + P * (1 - P) / 1.5),
    ],
    ids=MAKERS.keys(),
)
def test_training_and_test_rows_have_the_labels_in_common_and_nothing_else(make, squares):
    """With one data set for both, a training and a test row are the same with probability sum_k E[q_k^2]/n_k."""
    people = make(examples=1, tests=1)
    same = (drawn(people.train, 40_000) == drawn(people.test, 40_000)).mean()
    chance = (squares / np.bincount(LABELS)).sum()
    assert abs(same - chance) < 4 * np.sqrt(chance / 40_000)


@pytest.mark.parametrize(
    "make",
    [
        lambda **sizes: iid(KEY, 100, 100, **sizes),
        lambda **sizes: shards(KEY, ONE_LABEL, ONE_LABEL, shards=1, per_client=1, **sizes),
        lambda **sizes: dirichlet(KEY, ONE_LABEL, ONE_LABEL, alpha=0.5, **sizes),
    ],
    ids=MAKERS.keys(),
)
def test_with_one_label_training_and_test_rows_are_independent(make):
    """Their sum modulo 100 is uniform; drawn with one key, it would be even."""
    people = make(examples=1, tests=1)
    assert follows((drawn(people.train, 20_000) + drawn(people.test, 20_000)) % 100, np.ones(100)) > 1e-3


def test_without_test_data_there_are_no_tests():
    for people in (iid(KEY, 100), shards(KEY, LABELS, shards=10), dirichlet(KEY, LABELS, alpha=1.0)):
        assert drawn(people.test, 3).shape == (3, 0)


@pytest.mark.parametrize(("clients", "count"), [(5, 3), (30, 2)])
def test_every_list_of_distinct_clients_is_equally_likely(clients, count):
    """By permutation, and by draws."""
    assert (population._enough(clients, count) < clients) == (clients == 30)
    lists = {chosen: i for i, chosen in enumerate(permutations(range(clients), count))}
    samples = np.asarray(
        many(Partial(partial(sample_clients, clients=clients, count=count)), jax.random.split(KEY, 100 * len(lists)))
    )
    assert follows(np.array([lists[tuple(sample)] for sample in samples.tolist()]), np.ones(len(lists))) > 1e-3
    ordered = np.sort(samples, axis=1)
    assert follows(np.array([lists[tuple(sample)] for sample in ordered.tolist()]), np.ones(len(lists))) < 1e-6


@pytest.mark.parametrize("clients", [1, 40, 5_000])
def test_all_clients_are_a_permutation(clients):
    sample = sample_clients(KEY, clients, clients)
    assert sample.dtype == jnp.int32
    assert np.array_equal(np.sort(sample), np.arange(clients))
    assert clients == 1 or not np.array_equal(sample, np.arange(clients))


@pytest.mark.parametrize("clients", [3 << 29, 10_000_000, 20_000])
def test_sampled_clients_are_distinct_and_uniform(clients):
    sample = np.asarray(jax.jit(lambda key: sample_clients(key, clients, 12_000))(KEY))
    assert len(np.unique(sample)) == 12_000
    assert 0 <= sample.min() < sample.max() < clients
    thirds = sample.astype(np.int64) * 3 // clients
    assert follows(thirds, np.ones(3)) > 1e-3
    assert follows(thirds, [1.2, 1, 1]) < 1e-6
    assert follows(np.diff(thirds) % 3, np.ones(3)) > 1e-3


def test_whole_numbers_are_64_bit_fractions_of_their_bounds():
    bounds = jnp.tile(jnp.array([1, 3, 60_000, 10_000_000, 3 << 29, population.LARGEST], jnp.int32), 2_000)
    high, low = np.asarray(jax.random.bits(KEY, (2, len(bounds)), jnp.uint32)).tolist()
    exact = [((h << 32) + w) * bound >> 64 for h, w, bound in zip(high, low, bounds.tolist(), strict=True)]
    assert np.array_equal(population._below(KEY, bounds), exact)
    coarse = np.asarray(jax.random.randint(KEY, (12_000,), 0, 3 << 29, jnp.int32))  # why it is not used
    assert follows(coarse >> 29, np.ones(3)) < 1e-6


def test_the_first_distinct_draws_are_kept_in_order():
    for seed in range(20):
        draws = np.random.default_rng(seed).integers(0, 15, 40)
        kept = list(dict.fromkeys(draws.tolist()))
        for count in (1, len(kept) // 2, len(kept)):
            assert population._first_distinct(jnp.asarray(draws), count).tolist() == kept[:count]


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
        (lambda: shards(KEY, LABELS, shards=4, per_client=5), "per_client: expected at most the 4 shards there are"),
        (lambda: shards(KEY, LABELS[:4]), "labels: expected at least a client's share of 5 rows, got 4"),
        (lambda: dirichlet(KEY, LABELS, alpha=0.0), "alpha: expected a finite number > 0, got 0.0"),
        (lambda: dirichlet(KEY, LABELS - 1, alpha=1.0), r"labels: expected whole numbers >= 0, got -1 in row \d+"),
        (lambda: dirichlet(KEY, LABELS / 2, alpha=1.0), r"labels: expected .* shape \[rows\], got float64 \[100\]"),
        (lambda: dirichlet(KEY, LABELS, LABELS + 1, alpha=1.0), "test_labels: .* training data, got some without 0"),
        (lambda: dirichlet(KEY, LABELS, [0, 1, 2, 3], alpha=1.0), "test_labels: .* training data, got some with 3"),
        (lambda: sample_clients(KEY, 5, 6), "count: expected at most the 5 clients there are, got 6"),
        (lambda: sample_clients(KEY, 5, 0), "count: expected a whole number >= 1, got 0"),
        (lambda: sample_clients(KEY, 0, 1), "clients: expected a whole number >= 1, got 0"),
    ],
)
def test_what_cannot_be_drawn_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()
