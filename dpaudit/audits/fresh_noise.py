"""Refuses noise that the steps of a training, or the rounds of a federation, share.

Audits by canaries add up the evidence of steps as if the noise of each were drawn afresh. If it is not, two sums tell
their difference exactly, whatever the noise, and the scores of canaries hardly show it.
"""

from typing import Any

import numpy as np

from dpaudit import _validate

REPEATED = 1e-9  # chance that sound noise is taken for noise that two steps share
TOGETHER = 1024  # steps that are compared with all others at a time
NOISE = 0.2  # least share of noise in the squared length of a federation's sums, whose scores are by that length


def refuse_repeated(x: Any, absent: np.ndarray) -> None:
    """Refuses coordinates [steps, m] in which canaries that are absent, [steps, m], have the same noise in two steps.

    With independent noise, n canaries that are absent in both steps have a cosine r with
    Pr[|r| > a] <= (1 - a^2)^((n - 1)/2).

    Raises:
      InputError: names the two steps and the correlation of their noise.
    """
    away, there = np.where(absent, np.asarray(x, np.float64), 0.0), absent.astype(np.float64)
    for first in range(0, len(away), TOGETHER):
        part = slice(first, first + TOGETHER)
        n = there[part] @ there.T
        size = np.sqrt((away[part] ** 2 @ there.T) * (there[part] @ (away**2).T))
        cosine = (away[part] @ away.T) / np.where(size > 0, size, 1.0)
        chance = len(away) ** 2 * np.maximum(1 - cosine**2, 0.0) ** (np.maximum(n - 1, 0) / 2)
        np.fill_diagonal(chance[:, part], 1.0)
        i, j = np.unravel_index(chance.argmin(), chance.shape)
        if chance[i, j] < REPEATED:
            got = (
                f"noise of steps {j} and {first + i} with a correlation of {cosine[i, j]:.2f} ({n[i, j]:.0f} canaries)"
            )
            raise _validate.expected("make", "a training that draws the noise of every step afresh", got)


def refuse_alike(overlap: np.ndarray, dimension: int) -> None:
    """Refuses rounds of which two have noisy sums with a cosine beyond what fresh noise and a weak signal give.

    Let at least a share s of two sums' squared lengths be independent noise in D dimensions, and q^2 = s (1 - s). If
    the cosines of noise with noise and with signals are at most b, theirs is at most
    (1 - s + s b + 2 q b)/(1 + 2 q b). A cosine of independent noise is beyond b with the chance above.

    Args:
      overlap: [rounds, rounds], cosines between sums.
      dimension: D, of a sum.

    Raises:
      InputError: names the two rounds and their cosine.
    """
    by_chance = np.sqrt(1 - (REPEATED / len(overlap) ** 2) ** (2 / max(dimension - 1, 1)))
    apart = np.abs(overlap - np.diag(np.diag(overlap)))
    i, j = np.unravel_index(apart.argmax(), apart.shape)
    mixed = 2 * np.sqrt(NOISE * (1 - NOISE)) * by_chance
    if apart[i, j] > (1 - NOISE + NOISE * by_chance + mixed) / (1 + mixed) + 1e-6:  # of float32
        wanted = "one that draws the noise of every round afresh, and sums of which noise is more than a fifth"
        raise _validate.expected("client", wanted, f"sums of rounds {j} and {i} with a cosine of {overlap[i, j]:.2f}")
