"""What a ledger could count too little: users who left a stream of correlated noise, and a stream named twice."""

import pickle
from functools import partial

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import ComposedDpEvent, GaussianDpEvent

from dpaudit._validate import InputError
from dpaudit.personalization.boundary import processes
from dpaudit.personalization.boundary.aggregator import run
from dpaudit.personalization.boundary.budget import Budget, spent
from dpaudit.personalization.boundary.ledger import Ledger, Stream
from dpaudit.personalization.boundary.processes import Memory
from dpaudit.personalization.boundary.protocol import Protocol, each, everything
from dpaudit.training import matrix_noise
from dpaudit.training.sampling import participation

DELTA, Z, ROUNDS = 1e-6, 1.0, 16
STRATEGY = matrix_noise.tree(participation(ROUNDS, most=1))
FTRL = processes.correlated("ftrl", STRATEGY, Z)
PLAIN = processes.gaussian("plain", noise_multiplier=4.0)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


def true_cost(rounds):
    """The epsilon of a user in round 0 alone after so many rounds: the length of that column of C, in noise."""
    column = float(np.linalg.norm(STRATEGY.matrix()[:rounds, 0]))
    return dp_accounting.get_epsilon_gaussian(Z * STRATEGY.sensitivity(STRATEGY.pattern) / column, DELTA)


def correlated():
    """A protocol that releases the users' sum by correlated noise."""
    devices = each(everything, lambda key, model, user: user, clip_norm=1.0)

    def release(key, total, memory):
        out, memory = FTRL.release(key, total, memory, sensitivity=1.0)
        return (out,), memory

    return Protocol(lambda state: state, devices, release, lambda state, releases: state)


def test_a_user_who_left_is_charged_for_what_later_releases_tell(path):
    protocol, ledger, users, start = correlated(), Ledger(path), jnp.ones((3, 2)), FTRL.init(jnp.zeros(2))
    common = {"ledger": ledger, "trusted": True}
    _, memory, _ = run(jax.random.key(0), protocol, 0.0, start, users, 1, who=["anna", "bert", "cleo"], **common)
    assert ledger.spent(DELTA, "anna") == pytest.approx(true_cost(1))
    run(jax.random.key(1), protocol, 0.0, memory, users[1:], ROUNDS - 1, who=["bert", "cleo"], **common)
    assert true_cost(ROUNDS) > 1.5 * true_cost(1)
    for found in (ledger, Ledger(path)):
        assert found.spent(DELTA, "anna") >= true_cost(ROUNDS) * (1 - 1e-9)
        assert found.spent(DELTA, "dora") == 0


def test_a_run_stops_where_the_budget_of_a_user_who_left_ends(path):
    """Nobody can be left out of releases that are correlated with those that they took part in."""
    ledger = Ledger(path)
    ledger.charge("0", [Stream(PLAIN, 0)], 3, who=["anna"])  # who has less left than the others
    ledger.charge("1", [Stream(FTRL, 0)], 1, who=["anna", "bert"])
    budget = Budget(spent(ComposedDpEvent([PLAIN.event(3), FTRL.event(5)]), DELTA), DELTA)
    admitted = ledger.charge("2", [Stream(FTRL, 1)], ROUNDS - 1, budget=budget, who=["bert"])
    assert 0 < admitted.rounds < ROUNDS - 1
    assert ledger.spent(DELTA) <= budget.epsilon * (1 + 1e-9)
    wanted = "budget: expected one that pays for a round of all who ever took part in ftrl, whose noise is correlated"
    rest = Stream(FTRL, 1 + admitted.rounds)
    with pytest.raises(InputError, match=wanted):
        ledger.charge("3", [rest], 8, budget=budget, who=["bert"])
    assert ledger.charge("4", [Stream(FTRL, 0)], ROUNDS, budget=Budget(99, DELTA), who=["bert"]).rounds == ROUNDS


def test_a_user_who_left_independent_releases_costs_no_more(path):
    ledger = Ledger(path)
    ledger.charge("1", [Stream(PLAIN, 0)], 1, who=["anna", "bert"])
    before = ledger.spent(DELTA, "anna")
    assert ledger.charge("2", [Stream(PLAIN, 1)], 9, budget=Budget(9, DELTA), who=["bert"]).rounds == 9
    assert ledger.spent(DELTA, "anna") == before < ledger.spent(DELTA, "bert")


def test_a_stream_is_charged_once_in_a_run(path):
    """Continued twice at once, it was charged as one: two releases for the price of one."""
    ledger = Ledger(path)
    ledger.charge("1", [Stream(PLAIN, 0)], 1, who=["anna"])
    size = path.stat().st_size
    for began in (1, 0):
        with pytest.raises(InputError, match=r"streams: expected every process once, .* got plain, plain"):
            ledger.charge("2", [Stream(PLAIN, began)] * 2, 1, who=["anna"])
    assert path.stat().st_size == size


def test_a_run_that_began_between_two_parts_of_another_is_not_charged_for_it(path):
    """Both have the process's name and as many releases; the first user left, the second part is by somebody else."""
    ledger, users, start = Ledger(path), jnp.ones((1, 2)), FTRL.init(jnp.zeros(2))
    play = partial(run, protocol=correlated(), state=0.0, users=users, ledger=ledger, trusted=True)
    _, mine, told = play(jax.random.key(0), memory=start, rounds=4, who=["anna"])
    _, other, _ = play(jax.random.key(1), memory=start, rounds=4, who=["bert"])
    kept = pickle.loads(pickle.dumps(jax.tree.map(np.asarray, mine)))  # as in a file, from one process to the next
    _, mine, then = play(jax.random.key(0), memory=kept, rounds=4, ledger=Ledger(path), who=["carl"])
    play(jax.random.key(1), memory=other, rounds=4, who=["bert"])
    _, _, last = play(jax.random.key(0), memory=mine, rounds=4, who=["carl"])
    assert (told + then + last).epsilon(DELTA) == pytest.approx(true_cost(12))
    for found in (ledger, Ledger(path)):
        assert found.spent(DELTA, "anna") == found.spent(DELTA, "carl") == pytest.approx(true_cost(12))
        assert found.spent(DELTA, "bert") == pytest.approx(true_cost(8))
    with pytest.raises(InputError, match="memory: expected the memory of the run that 'ftrl' was last charged for"):
        play(jax.random.key(2), memory=kept, rounds=1, who=["carl"])  # a part that was already continued
    Ledger(path.with_name("other")).charge("1", [Stream(FTRL, 0)], 8, who=["anna"])
    with pytest.raises(InputError, match="memory: expected the memory of the run that 'ftrl' was last charged for"):
        play(jax.random.key(2), memory=kept, rounds=1, ledger=Ledger(path.with_name("other")), who=["carl"])


def test_a_memory_of_an_earlier_version_continues_the_only_stream_that_it_can_be_of(path):
    """It does not name the run that it began in; another stream of the name may have gone on from it since."""
    ledger = Ledger(path)
    summed = processes.Process("sum", lambda n: GaussianDpEvent(4 / n**0.5), PLAIN.noise)  # one event: correlated

    def cost(n):
        return spent(summed.event(n), DELTA)

    ledger.charge("1", [Stream(summed, 0)], 4, who=["anna"])
    ledger.charge("2", [Stream(summed, 0)], 2, who=["bert"])
    ledger.charge("3", [Stream(summed, 4)], 1, who=["carl"])
    assert ledger.spent(DELTA, "anna") == ledger.spent(DELTA, "carl") == pytest.approx(cost(5))
    size = path.stat().st_size
    with pytest.raises(InputError, match="memory: expected one that tells which of 2 streams of 'sum' it continues"):
        ledger.charge("4", [Stream(summed, 2)], 1, who=["carl"])  # bert's, or anna's before she had four
    with pytest.raises(InputError, match="memory: expected the memory of the run that 'sum' was last charged for"):
        ledger.charge("4", [Stream(summed, 2, "1")], 1, who=["carl"])
    assert path.stat().st_size == size
    ledger.charge("4", [Stream(summed, 2, "2")], 2, who=["carl"])  # run 2, which files have always named
    for found in (ledger, Ledger(path)):
        assert found.spent(DELTA, "anna") == pytest.approx(cost(5))
        assert found.spent(DELTA, "bert") == pytest.approx(cost(4))
    old = Memory(jnp.int32(2), (), ())
    assert (old.first, pickle.loads(pickle.dumps(old)).first) == ((), ())
