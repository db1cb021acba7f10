"""Times two ways to noise that neither server knows: a garbled circuit, as in SPGC, and transfers alone."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from dpaudit.secure.channel import Channel
from dpaudit.secure.crypto import shares
from dpaudit.secure.noise.binomial import Binomial
from dpaudit.secure.protocol import in_process, transfer_noise, two_server_sum
from dpaudit.secure.protocol.agreement import Terms
from dpaudit.secure.protocol.two_server_sum import Opening
from experiments.common import Rows

Step = Callable[[], list[np.ndarray]]  # what was opened, block by block


def noises(rows: Rows, noisy: Terms, depths: Mapping[int, str], rounds: int) -> None:
    """Measures a whole step by either: processor time of both servers, and bytes; ``depths`` of the transfers, and
    names."""
    by_circuit, ring_bits, dimension = noisy.opening(), noisy.ring_bits, noisy.dimension
    law = by_circuit.noise
    assert isinstance(law, Binomial)
    split = shares.split(np.zeros(dimension, np.int64), ring_bits=ring_bits)
    ways: dict[str, tuple[Opening, tuple[Any, Any]]] = {
        "circuit": (by_circuit, (two_server_sum.Garbler, two_server_sum.Evaluator)),
        "transfers alone": (
            transfer_noise.by_transfers(law, ring_bits=ring_bits), (transfer_noise.First, transfer_noise.Second),
        ),
    }  # fmt: skip

    def step(channel: Channel, first: bool, way: str, depth: int) -> Step:
        opening, kinds = ways[way]
        party, share = kinds[not first](channel, depth=depth), split[not first]
        return lambda: [
            party.open(opening, party.prepare(opening, part.stop - part.start), share[part])
            for part in by_circuit.blocks(dimension)
        ]

    for name in ways:
        for depth, transfer in depths.items():
            spent: list[list[float]] = []

            def play(channel: Channel, first: bool, way: str = name, depth: int = depth, spent: Any = spent) -> int:
                play_one, took = step(channel, first, way, depth), []
                refuse_another_law(np.concatenate(play_one()), law)
                before = moved(channel)
                for _ in range(rounds):
                    began = time.thread_time()
                    play_one()
                    took.append(time.thread_time() - began)
                spent.append(took)
                return moved(channel) - before

            ends = in_process.channels(600.0)
            payload, _ = in_process.together(ends, partial(play, first=True), partial(play, first=False))
            setting = {"d": dimension, "n": law.coins, "noise": name, "transfers": transfer}
            scale = f"{rounds} steps, both servers' threads"
            rows.spread("noise_seconds", setting, np.sum(spent, axis=0).tolist(), scale=scale)
            rows.add("noise_bytes", setting, payload / rounds / dimension, scale="a coordinate")
    rows.finish_part("noise from a circuit and from transfers alone")


def refuse_another_law(opened: np.ndarray, law: Binomial) -> None:
    """Ends the benchmark where the opened sums of zeros are not noise of the law, by its mean and its variance."""
    variance = law.step**2 * law.coins / 4 + 2 * (law.step**2 - 1) / 12  # of the coins, and of two uniforms
    count, found = len(opened), f"{opened.mean():.4g} ± {opened.std():.4g}, not 0 ± {variance**0.5:.4g}"
    if abs(opened.mean()) > 6 * np.sqrt(variance / count) or abs(opened.var() / variance - 1) > 6 * np.sqrt(2 / count):
        raise AssertionError(f"noise of another law: {found}")


def moved(channel: Channel) -> int:
    """Bytes of payload in both directions so far."""
    return sum(traffic.payload_bytes for traffic in (*channel.sent.values(), *channel.received.values()))
