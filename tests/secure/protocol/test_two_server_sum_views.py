"""Audits what a server sees against what a simulator makes up from the output alone.

World 1 is a real session on shares that the adversary chose; world 0 draws the output from its exact law and, knowing
no more than it and the server's own part, makes up all the rest. A network is trained to tell the two apart; a server
learns nothing else if it cannot. It reads every bit that a coordinate's gates turn on, and the lowest ones of each
longer word.
"""

from collections.abc import Sequence
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpaudit.auditing.attacks import learned
from dpaudit.auditing.bounds import estimate
from dpaudit.auditing.conclude import from_counts
from dpaudit.auditing.result import AuditResult
from dpaudit.secure.circuits import garbling
from dpaudit.secure.circuits.garbling import BLOCK, CHUNK, GateKeys
from dpaudit.secure.crypto.randomness import Source, Stream
from dpaudit.secure.noise import binomial
from dpaudit.secure.protocol import two_server_sum
from tests.secure import sessions
from tests.secure.sessions import Session, given

LAW = binomial.binomial(coins=1, step_bits=1)
KIND = two_server_sum.noisy(LAW, ring_bits=4)
SHARES = 3, -2
LOW = 2  # bits of a word that the network reads
COUNT = 4 * CHUNK  # coordinates of a session, each a trial
OWN_BYTES, LABEL_BYTES = KIND.mixed * COUNT // 8, KIND.ring_bits * COUNT * BLOCK  # what a server draws for a block


@cache
def real(seed: bytes, first: tuple[int, bytes] = (-1, b""), second: tuple[int, bytes] = (-1, b"")) -> Session:
    """Runs a session; a server that asks for as many bytes as ``first`` or ``second`` says gets those bytes."""
    sources = given(Stream(b"first " + seed).draw, *first), given(Stream(b"other " + seed).draw, *second)
    return sessions.play(KIND, [(np.full(COUNT, SHARES[0]), np.full(COUNT, SHARES[1]))], sources=sources)


def output(source: Source) -> np.ndarray:
    """Computes what ideal servers would open."""
    return SHARES[0] - SHARES[1] + binomial.sample(LAW, COUNT, source)


def binary(values: np.ndarray, bits: int) -> np.ndarray:
    """Splits numbers into bits: [..., n] -> [..., bits, n]."""
    return values[..., None, :] >> np.arange(bits)[:, None] & 1


def rows(opened: np.ndarray, *parts: np.ndarray) -> np.ndarray:
    """Makes rows [n, bits], one per coordinate; the noise, which the adversary knows, first."""
    noises = binary(opened - SHARES[0] + SHARES[1] + LAW.reach, 3)
    return np.concatenate([part.reshape(-1, COUNT) for part in (noises, *parts)]).T.astype(np.float32)


def evaluators(
    opened: np.ndarray,
    own: np.ndarray,
    labels: np.ndarray,
    tables: Sequence[np.ndarray],
    seed: bytes,
    decoding: np.ndarray | None,
) -> np.ndarray:
    """Makes H2's rows. It has a last bit of every wire; without a decoding, one that gives the output."""
    gates = tuple(gate._replace(last=()) for gate in KIND.gates.gates)
    laid_open = KIND.gates._replace(gates=gates, outputs=tuple(range(2, 2 + KIND.gates.inputs + len(gates))))
    chunks = garbling.evaluate(laid_open, garbling.chunks(labels), tables, GateKeys(seed))
    wires = np.concatenate(list(chunks), axis=1)
    read = wires[np.array(KIND.gates.outputs) - 2]
    if decoding is None:
        decoding = read ^ binary(opened + SHARES[1] + LAW.reach, KIND.ring_bits)
    halves = np.concatenate(tables, axis=-1)[:, :, 0].astype(np.uint8)
    return rows(opened, own, wires, binary(labels[..., 0], LOW), binary(halves, LOW), decoding, read ^ decoding)


def real_evaluator(session: Session) -> np.ndarray:
    (side,) = session.second
    (labels,), (packed,) = session.payloads("labels"), session.payloads("decoding")
    mine = np.frombuffer(labels, np.uint8).reshape(KIND.ring_bits, COUNT, BLOCK)
    decoding = np.unpackbits(np.frombuffer(packed, np.uint8)).reshape(KIND.ring_bits, COUNT)
    inputs = np.concatenate([mine, side.prepared.labels])
    seed = side.prepared.seed.tobytes()
    return evaluators(side.opened, side.bits(KIND), inputs, side.prepared.tables, seed, decoding)


def simulated_evaluator(source: Source) -> np.ndarray:
    opened, own = output(source), two_server_sum.fair_bits(source, (KIND.mixed, COUNT))
    labels = np.frombuffer(source(KIND.gates.inputs * COUNT * BLOCK), np.uint8)
    size = KIND.gates.ands, 2, 2, CHUNK
    tables = [np.frombuffer(source(8 * int(np.prod(size))), np.uint64).reshape(size) for _ in range(COUNT // CHUNK)]
    return evaluators(opened, own, labels.reshape(-1, COUNT, BLOCK), tables, source(BLOCK), None)


def garblers(opened: np.ndarray, own: np.ndarray, zeros: np.ndarray, corrections: np.ndarray) -> np.ndarray:
    """Makes H1's rows, from its bits [mixed, n] and a byte of the transfers' labels and of what it was sent for each.

    It also compares the noise with that of its own bits, and adds its own bit to what it was sent.
    """
    guess = binomial.from_bits(LAW, own.T) == opened - SHARES[0] + SHARES[1]
    return rows(opened, guess, own, binary(zeros, LOW), binary(corrections, LOW), corrections & 1 ^ own)


def real_garbler(session: Session) -> np.ndarray:
    (sent,) = session.payloads("cot.corrections")  # a row a base transfer
    bits = np.unpackbits(np.frombuffer(sent, np.uint8).reshape(128, -1)[:8], axis=1, bitorder="little")
    corrections = (1 << np.arange(8)) @ bits.astype(np.int64)
    (side,) = session.first
    zeros = session.zeros(KIND, 0)[..., 0]
    return garblers(side.opened, side.bits(KIND), zeros, corrections.reshape(KIND.mixed, COUNT))


def simulated_garbler(source: Source) -> np.ndarray:
    made_up = np.frombuffer(source(2 * KIND.mixed * COUNT), np.uint8).reshape(2, KIND.mixed, COUNT)
    return garblers(output(source), two_server_sum.fair_bits(source, (KIND.mixed, COUNT)), *made_up)


def told(made_up: Sequence[np.ndarray], seen: Sequence[np.ndarray], steps: int = 400) -> AuditResult:
    """Audits the two worlds' rows: a network learns from half of the sessions, the others are counted."""
    half = len(seen) // 2
    worlds = [
        np.stack([np.concatenate(rows[part]) for rows in (made_up, seen)]) for part in (slice(half), slice(half, None))
    ]
    score = learned.train(jax.random.key(0), jnp.asarray(worlds[0]), steps=steps, batch=256, layers=2, hidden=64)
    scores = np.asarray(jax.jit(jax.vmap(jax.vmap(score)))(worlds[1]))
    count = scores.shape[1]
    return from_counts(*estimate.errors(scores, 0.0), count, count, claim=None, method="learned", confidence=0.999)


SEEDS = [b"session %2d" % number for number in range(16)]


def stream(seed: bytes) -> Source:
    return Stream(b"made " + seed + b"!").draw


@pytest.mark.integration
def test_the_evaluators_view_can_be_made_up() -> None:
    made_up = [simulated_evaluator(stream(seed)) for seed in SEEDS[:2]]
    result = told(made_up, [real_evaluator(real(seed)) for seed in SEEDS[:2]])
    assert result.epsilon_lower == 0
    assert abs(result.accuracy - 0.5) < 4 * 0.5 / (2 * COUNT) ** 0.5


@pytest.mark.integration
def test_a_bit_that_the_labels_give_away_is_told() -> None:
    """The share's labels for zero all end in a zero, so that an active label ends in the bit that it hides."""
    ends = np.frombuffer(Stream(b"labels that tell").draw(LABEL_BYTES), np.uint8).reshape(-1, BLOCK).copy()
    ends[:, 0] &= 0xFE
    sessions = [real(seed, first=(LABEL_BYTES, ends.tobytes())) for seed in SEEDS[:2]]
    result = told([simulated_evaluator(stream(seed)) for seed in SEEDS[:2]], list(map(real_evaluator, sessions)))
    assert result.epsilon_lower > 1


def decoded(seen: np.ndarray, session: Session) -> np.ndarray:
    """Makes H2's rows with the coin of a session's noise that decoding one inner wire would reveal."""
    coin = session.first[0].bits(KIND)[0] ^ session.second[0].bits(KIND)[0]
    return np.concatenate([seen[:, :3], coin[:, None].astype(np.float32), seen[:, 4:]], axis=1)


def test_an_inner_wire_that_is_decoded_is_told() -> None:
    sessions = [real(seed) for seed in SEEDS[:2]]
    seen = [decoded(real_evaluator(session), session) for session in sessions]
    made_up = [
        decoded(simulated_evaluator(stream(seed)), session)
        for seed, session in zip(SEEDS[:2], sessions[::-1], strict=True)
    ]
    assert told(made_up, seen).epsilon_lower > 1


def test_the_garblers_view_can_be_made_up() -> None:
    made_up = [simulated_garbler(stream(seed)) for seed in SEEDS[:2]]
    result = told(made_up, [real_garbler(real(seed)) for seed in SEEDS[:2]])
    assert result.epsilon_lower == 0
    assert abs(result.accuracy - 0.5) < 4 * 0.5 / (2 * COUNT) ** 0.5


@pytest.mark.parametrize("leak", ["bits of zero", "choices in the open"])
def test_what_gives_the_evaluators_bits_away_is_told(leak: str) -> None:
    made_up = [simulated_garbler(stream(seed)) for seed in SEEDS[:2]]
    if leak == "bits of zero":
        seen = [real_garbler(real(seed, second=(OWN_BYTES, bytes(OWN_BYTES)))) for seed in SEEDS[:2]]
    else:
        sessions = [real(seed) for seed in SEEDS[:2]]
        seen = [real_garbler(session) for session in sessions]
        for part, session in zip(seen, sessions, strict=True):
            part[:, -KIND.mixed :] = (session.first[0].bits(KIND) ^ session.second[0].bits(KIND)).T
    assert told(made_up, seen).epsilon_lower > 1


@pytest.mark.slow
def test_both_views_can_be_made_up_for_many_trials() -> None:
    sessions = [real(seed) for seed in SEEDS]
    for seen, made_up in ((real_evaluator, simulated_evaluator), (real_garbler, simulated_garbler)):
        result = told([made_up(stream(seed)) for seed in SEEDS], list(map(seen, sessions)), steps=5_000)
        assert result.negatives == len(SEEDS) * COUNT // 2
        assert result.epsilon_lower == 0
        assert abs(result.accuracy - 0.5) < 4 * 0.5 / (2 * result.negatives) ** 0.5
