"""Generates populations of millions of clients without storing anything about any of them.

    everyone = iid(key, len(train.labels), len(test.labels))       # ten million clients, 5 training rows each
    drawn = sample_clients(round_key, everyone.clients, 1_000)     # [1000] distinct client numbers
    rows = jax.vmap(everyone.train)(drawn)                         # [1000, 5] rows of the training data

A client's rows are a function of its number and a key, and are drawn again whenever they are needed. All rows are
drawn with replacement, within a client and across clients.
"""

from bisect import bisect_left
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.tree_util import Partial
from scipy.stats import binom

from dpaudit import _validate
from dpaudit.kernels import philox

CLIENTS = 10_000_000
LARGEST = (1 << 31) - 1  # client numbers are int32
TOO_FEW = 1e-30  # the largest probability that a sample of clients runs out of distinct draws


class Population(NamedTuple):
    """Clients 0 to clients - 1, numbered by int32.

    Attributes:
      clients: how many there are.
      train: ``train(client) -> [examples]`` rows of the training data that a client trains on, int32.
      test: ``test(client) -> [tests]`` rows of the test data that a client is tested on, int32. They follow the
        client's own labels, as the test of a model for this client should; a model for everyone is tested on the
        whole test data.
      rows: the number of rows of the training data that ``train`` draws from; :func:`dpaudit.federated.rounds.run`
        refuses data with fewer. None if unknown, in which case JAX silently replaces missing rows by the last one.

    ``train`` and ``test`` are pure functions and pytrees, so they can be arguments of jitted functions and be mapped
    over clients.
    """

    clients: int
    train: Partial
    test: Partial
    rows: int | None = None


class ByLabel(NamedTuple):
    """The rows of a data set sorted by label.

    Attributes:
      rows: [n], row numbers.
      first: [labels], where in ``rows`` each label begins.
      count: [labels], how many rows each label has.
    """

    rows: jax.Array
    first: jax.Array
    count: jax.Array


def iid(
    key: jax.Array,
    rows: int,
    test_rows: int | None = None,
    *,
    clients: int = CLIENTS,
    examples: int = 5,
    tests: int = 1,
) -> Population:
    """Makes clients whose rows are drawn uniformly from all rows.

    Args:
      key: JAX random key, of any type, consumed.
      rows: how many the training data has, at least ``examples``.
      test_rows: how many the test data has, at least ``tests``; None for no test data: clients have no tests.
      clients: size of the population.
      examples: training rows of a client, >= 1.
      tests: test rows of a client, >= 0.

    Returns:
      A :class:`Population`.

    Raises:
      InputError: a size out of range; data smaller than a client's share.

    Source: paper 002, section 4.1.
    """
    key, clients, examples, tests = _sizes(key, clients, examples, 0 if test_rows is None else tests)
    rows = _share("rows", _validate.at_least(1, rows=rows), examples)
    if test_rows is not None:
        test_rows = _share("test_rows", _validate.at_least(1, test_rows=test_rows), tests)
    train_key, test_key = jax.random.split(key)
    return Population(
        clients,
        Partial(_of_all, train_key, _bounds(examples, rows)),
        Partial(_of_all, test_key, _bounds(tests, test_rows or rows)),
        rows,
    )


def shards(
    key: jax.Array,
    labels: Any,
    test_labels: Any = None,
    *,
    shards: int = 200,
    per_client: int = 2,
    clients: int = CLIENTS,
    examples: int = 5,
    tests: int = 1,
) -> Population:
    """Makes clients that have few labels, from ``per_client`` shards of the training data sorted by label.

    The sorted rows are cut into equal shards; a client has a uniformly random subset of them, and draws uniformly from
    the rows in it. A test row is drawn uniformly from those with the label of one more such draw.

    Args:
      key: JAX random key, of any type, consumed.
      labels: [rows], whole numbers >= 0, of the training data.
      test_labels: [test rows], of the test data, the same labels; None for no test data: clients have no tests.
      shards: how many, a divisor of the number of rows.
      per_client: distinct shards of a client, at most all.
      clients, examples, tests: as for :func:`iid`.

    Returns:
      A :class:`Population`.

    Raises:
      InputError: a size out of range; data smaller than a client's share; labels that are not whole numbers >= 0.

    Source: McMahan et al. 2017, section 3 (there every shard has one owner; here clients outnumber shards).
    """
    key, clients, examples, tests = _sizes(key, clients, examples, 0 if test_labels is None else tests)
    names, train, test = _tables(labels, test_labels, examples, tests)
    shards, per_client = _validate.at_least(1, shards=shards), _validate.at_least(1, per_client=per_client)
    if len(names) % shards:
        raise _validate.expected("shards", f"a divisor of the {len(names)} rows", shards)
    if per_client > shards:
        raise _validate.expected("per_client", f"at most the {shards} shards", per_client)
    cut = train.rows.reshape(shards, -1)
    last = jnp.arange(shards - per_client, shards, dtype=jnp.int32)
    size = per_client * cut.shape[1]
    own_key, train_key, like_key, test_key = jax.random.split(key, 4)
    like = Partial(_of_shards, own_key, like_key, cut, last, _bounds(tests, size))
    return Population(
        clients,
        Partial(_of_shards, own_key, train_key, cut, last, _bounds(examples, size)),
        Partial(_like, test_key, like, names, test),
        len(names),
    )


def dirichlet(
    key: jax.Array,
    labels: Any,
    test_labels: Any = None,
    *,
    alpha: float,
    clients: int = CLIENTS,
    examples: int = 5,
    tests: int = 1,
) -> Population:
    """Makes clients, each with its own label proportions q ~ Dirichlet(alpha p), p those of the training data.

    Labels are drawn from q, and rows uniformly from those with the label; training and test rows share one q. The mean
    of q is p and its variance p (1 - p)/(alpha + 1): a small alpha gives clients of one label, a large one
    :func:`iid`. For Dirichlet(a, ..., a) over equally frequent labels, alpha is a times their number.

    q itself is integrated out: the i-th label (from 0) is a new draw from p with probability alpha/(alpha + i), else a
    copy of one of the i draws before it. The distribution is exactly the same, without a Gamma draw for every label.

    Args:
      key: JAX random key, of any type, consumed.
      labels: [rows], whole numbers >= 0, of the training data.
      test_labels: [test rows], of the test data, the same labels; None for no test data: clients have no tests.
      alpha: concentration in all, > 0.
      clients, examples, tests: as for :func:`iid`.

    Returns:
      A :class:`Population`.

    Raises:
      InputError: a size or alpha out of range; data smaller than a client's share; labels that are not whole numbers
        >= 0.

    Source: Hsu, Qi and Brown 2019, section 3; the urn: Blackwell and MacQueen 1973.
    """
    key, clients, examples, tests = _sizes(key, clients, examples, 0 if test_labels is None else tests)
    alpha = _validate.positive(alpha=alpha)
    names, train, test = _tables(labels, test_labels, examples, tests)
    own_key, train_key, test_key = jax.random.split(key, 3)
    urn = own_key, jnp.asarray(alpha, jnp.float32), _bounds(examples + tests, len(names))
    places = jnp.arange(examples + tests, dtype=jnp.int32)
    return Population(
        clients,
        Partial(_like, train_key, Partial(_of_urn, *urn, places[:examples]), names, train),
        Partial(_like, test_key, Partial(_of_urn, *urn, places[examples:]), names, test),
        len(names),
    )


def sample_clients(key: jax.Array, clients: int, count: int) -> jax.Array:
    """Samples distinct clients in random order, all lists equally likely, without listing the population.

    Independent draws are kept if they are new, until there are ``count``. The number of draws is fixed so that it
    fails with probability below 1e-30; if that takes more draws than there are clients, all clients are permuted.

    Args:
      key: JAX random key, of any type, consumed.
      clients: how many there are; static.
      count: how many to take, at most all; static.

    Returns:
      [count] int32, from 0 to clients - 1.

    Raises:
      InputError: a size out of range.
    """
    clients = _numbered(clients)
    count = _validate.at_least(1, count=count)
    if count > clients:
        raise _validate.expected("count", f"at most the {clients} clients", count)
    draws = _enough(clients, count)
    if draws >= clients:
        return jax.random.permutation(key, jnp.arange(clients, dtype=jnp.int32))[:count]
    return _first_distinct(_below(key, _bounds(draws, clients)), count)


def _enough(clients: int, count: int) -> int:
    """Returns how many draws contain ``count`` distinct clients up to probability ``TOO_FEW``.

    Until there are ``count``, a draw is new with probability at least 1 - (count - 1)/clients.
    """
    sizes = range(count, clients)
    new = 1 - (count - 1) / clients
    return sizes.start + bisect_left(sizes, True, key=lambda draws: binom.cdf(count - 1, draws, new) < TOO_FEW)


def _first_distinct(draws: jax.Array, count: int) -> jax.Array:
    """Returns the first ``count`` different values, in order."""
    order = jnp.argsort(draws, stable=True)
    ranked = draws[order]
    new = jnp.append(True, ranked[1:] != ranked[:-1])
    return draws[jnp.sort(jnp.where(new, order, len(draws)))[:count]]


def _below(key: jax.Array, bounds: jax.Array) -> jax.Array:
    """Draws uniform whole numbers from 0 to bound - 1, one for each bound: floor(U bound), U of 64 random bits.

    Every number has probability 1/bound up to 2^-64. For bounds from 2^16 on, ``jax.random.randint`` is off by up to
    2^-32.
    """
    high, low = jax.random.bits(key, (2, *bounds.shape), jnp.uint32)
    with jax.enable_x64(True):
        high, low, wide = (lax.convert_element_type(x, jnp.uint64) for x in (high, low, bounds))
        word = np.uint64(32)
        return lax.convert_element_type((high * wide + (low * wide >> word)) >> word, jnp.int32)


def _of_all(key: jax.Array, bounds: jax.Array, client: jax.Array) -> jax.Array:
    return _below(jax.random.fold_in(key, client), bounds)


def _of_shards(
    own_key: jax.Array, key: jax.Array, cut: jax.Array, last: jax.Array, bounds: jax.Array, client: jax.Array
) -> jax.Array:
    """Draws rows of the client's own shards; ``bounds`` holds the number of rows in these, once for each draw."""
    own = _subset(jax.random.fold_in(own_key, client), last)
    place = _below(jax.random.fold_in(key, client), bounds)
    return cut[own[place // cut.shape[1]], place % cut.shape[1]]


def _subset(key: jax.Array, last: jax.Array) -> jax.Array:
    """Draws a uniformly random subset of 0..n-1 of size k; ``last`` is the end n - k..n - 1 of that range.

    Floyd's algorithm (Bentley and Floyd 1987): k draws and k^2 comparisons, for a few out of few.
    """
    draws = _below(key, last + 1)

    def take(i: Any, own: jax.Array) -> jax.Array:
        return own.at[i].set(jnp.where(jnp.any(own == draws[i]), last[i], draws[i]))

    return lax.fori_loop(0, len(last), take, jnp.full_like(last, -1))


def _of_urn(
    own_key: jax.Array, alpha: jax.Array, bounds: jax.Array, places: jax.Array, client: jax.Array
) -> jax.Array:
    """Draws training rows whose labels are the draws number ``places`` of the client's urn.

    A new draw is the label of a uniformly random row; any other goes back to the draw it repeats.
    """
    new_key, old_key, row_key = jax.random.split(jax.random.fold_in(own_key, client), 3)
    every = jnp.arange(len(bounds), dtype=jnp.int32)
    new = jax.random.uniform(new_key, every.shape, jnp.float32) < 1 / (1 + every / alpha)
    origin = jnp.where(new, every, _below(old_key, every))
    for _ in range(len(bounds).bit_length()):  # each time, twice as far back
        origin = origin[origin]
    return _below(row_key, bounds)[origin[places]]


def _like(key: jax.Array, rows: Partial, names: jax.Array, table: ByLabel, client: jax.Array) -> jax.Array:
    """Draws a row of ``table`` for each training row ``rows(client)``, uniformly among those with its label."""
    label = names[rows(client)]
    return table.rows[table.first[label] + _below(jax.random.fold_in(key, client), table.count[label])]


def _bounds(count: int, bound: int) -> jax.Array:
    return jnp.full(count, bound, jnp.int32)


def _tables(labels: Any, test_labels: Any, examples: int, tests: int) -> tuple[jax.Array, ByLabel, ByLabel]:
    """Returns the rank of each row's label [rows], and the rows of both data sets by rank (both of the training data
    if there is no test data)."""
    values, names = np.unique(_labels("labels", labels, examples), return_inverse=True)
    train = _by_label(names)
    if test_labels is None:
        return jnp.asarray(names, jnp.int32), train, train
    test_values, test_names = np.unique(_labels("test_labels", test_labels, tests), return_inverse=True)
    odd = np.setxor1d(values, test_values)
    if odd.size:
        which = "without" if odd[0] in values else "with"
        raise _validate.InputError(f"test_labels: expected the labels of the training data, got some {which} {odd[0]}")
    return jnp.asarray(names, jnp.int32), train, _by_label(test_names)


def _by_label(names: np.ndarray) -> ByLabel:
    count = np.bincount(names)
    rows = np.argsort(names, kind="stable")
    return ByLabel(*(jnp.asarray(x, jnp.int32) for x in (rows, np.cumsum(count) - count, count)))


def _labels(name: str, labels: Any, share: int) -> np.ndarray:
    labels = np.asarray(labels)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise _validate.expected(
            name, "an array of whole numbers, shape [rows]", f"{labels.dtype} {list(labels.shape)}"
        )
    wrong = np.flatnonzero(labels < 0)
    if wrong.size:
        raise _validate.expected(name, "whole numbers >= 0", f"{labels[wrong[0]]} in row {wrong[0]}")
    _share(name, len(labels), share)
    return labels


def _share(name: str, rows: int, share: int) -> int:
    if rows < share:
        raise _validate.expected(name, f"at least a client's share of {share} rows", rows)
    return rows


def _numbered(clients: int) -> int:
    clients = _validate.at_least(1, clients=clients)
    if clients > LARGEST:
        raise _validate.expected("clients", f"at most {LARGEST}", clients)
    return clients


def _sizes(key: jax.Array, clients: int, examples: int, tests: int) -> tuple[jax.Array, int, int, int]:
    return (
        philox.from_key(_validate.key(key=key)),  # other keys may draw differently in another batch
        _numbered(clients),
        _validate.at_least(1, examples=examples),
        _validate.at_least(0, tests=tests),
    )
