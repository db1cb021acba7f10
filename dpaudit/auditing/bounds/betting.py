"""Tests a claim by bets against it, whose wealth may be inspected after every trial. NumPy float64 throughout.

Trials come in pairs, one of each world. Let X0 and X1 be 1 where the guess is world 1, in world 0 and in world 1; then
FPR = E X0 and FNR = 1 - E X1. If the mechanism is (epsilon, delta)-private, with u = e^epsilon + delta,

* E[X1 - e^epsilon X0] <= delta, and the same of the opposite guesses: E[(1 - X0) - e^epsilon (1 - X1)] <= delta;
* the sum of the two: FPR + FNR >= 2q, with q = (1 - delta)/(1 + e^epsilon).

A gambler who believes none of the three puts money on each, in bets that are fair or worse if they hold:

* on one side: the stake is multiplied by 1 + c (X1 - e^epsilon X0 - delta)/u, with a fixed share 0 < c < 1;
* on the sum: by the likelihood ratio of both guesses between error rates p < q and q. The two expectations are 1 + x
  and 1 + y with x + y = (FPR + FNR - 2q)(p/q - (1 - p)/(1 - q)) <= 0, so that of the product is at most 1.

The capital is split among the bets once, at the start. It is then a non-negative supermartingale for as long as the
claim holds, so the probability that it ever exceeds 1/alpha times its start is at most alpha (Ville 1939): an audit
that stops when this happens may look after every trial. All bets are constant, so the wealth depends on the counts of
the four outcomes alone, not on how trials were batched.

Against a promise that is a curve, one bet is enough (:func:`bet_on_line`): it is chosen by a line below the curve and
by estimates of both rates on trials set aside.

Source: Waudby-Smith and Ramdas 2024, "Estimating means of bounded random variables by betting", JRSSB 86.
"""

from typing import Any

import numpy as np
from scipy.special import betaln

from dpaudit.auditing.bounds.roots import increasing_root

GAPS = tuple(2.0**k for k in range(-9, 4))  # bets on the sum: how far the true epsilon may lie above the claim
SHARES = (0.95, 0.75, *(2.0**-k for k in range(1, 9)))  # bets on a side: c
ON_EXPECTED_GAP, ON_GAPS, ON_SIDES = 0.6, 0.2, 0.2  # how the capital is split
STAKES = (0.95, 0.5, 0.25, 0.125)  # bets on a line: shares of what would be best, were the rates as guessed
LARGEST = 60.0  # nats; no number of trials that can be played certifies as much

NONE, FALSE_ALARM, RIGHT, BOTH = range(4)  # the outcomes of a pair: who guessed world 1


def outcomes(guesses0: Any, guesses1: Any) -> np.ndarray:
    """Returns running counts of the four outcomes of pairs of trials.

    Args:
      guesses0, guesses1: [..., n], true where the guess is world 1, in world 0 and in world 1.

    Returns:
      [..., n, 4], after each pair: neither guessed world 1; only the trial of world 0 (both wrong); only that of
      world 1 (both right); both.
    """
    outcome = np.asarray(guesses0, bool) + 2 * np.asarray(guesses1, bool)
    return np.cumsum(outcome[..., None] == np.arange(4), axis=-2)


def error_counts(counts: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns (false positives, false negatives, pairs) of counts of outcomes, [..., 4]."""
    counts = np.asarray(counts)
    both_wrong = counts[..., FALSE_ALARM]
    return both_wrong + counts[..., BOTH], both_wrong + counts[..., NONE], counts.sum(-1)


def log_wealth(
    counts: Any, epsilon: Any, *, delta: float, expected_gap: float, both_events: bool = False
) -> np.ndarray:
    """Returns ln of the gambler's wealth after these outcomes, with bets that are fair if the loss is at most
    ``epsilon``.

    It falls with epsilon: each bet on a side is counted as the lesser of what it has won against epsilon and against
    0 (its gain first rises with epsilon, then falls), and the others fall already.

    Args:
      counts: of outcomes, [..., 4], as :func:`outcomes` gives them.
      epsilon: the claimed loss in nats, any shape that broadcasts with the counts' first axes.
      delta: of the claim.
      expected_gap: by how much a false claim is expected to be exceeded; most of the capital is put on it. It decides
        how soon a violation is found, never whether one may be called.
      both_events: half of the capital is put on the guesses as they are, half on their opposites.

    Returns:
      [...], 0 before the first pair. Evidence against the claim at confidence 1 - alpha where it reaches ln(1/alpha).
    """
    counts, epsilon = np.asarray(counts, np.float64), np.asarray(epsilon, np.float64)
    if both_events:  # the opposite guesses have the outcomes in the opposite order
        events = (
            log_wealth(own, epsilon, delta=delta, expected_gap=expected_gap) for own in (counts, counts[..., ::-1])
        )
        return np.logaddexp(*events) - np.log(2)
    errors = counts[..., NONE] + 2 * counts[..., FALSE_ALARM] + counts[..., BOTH]
    on_sum = _on_sum(errors, counts.sum(-1), epsilon, delta, expected_gap)
    on_sides = np.minimum(_on_sides(counts, epsilon, delta), _on_sides(counts, np.zeros(()), delta))
    share = np.full(on_sides.shape[-1], ON_SIDES / on_sides.shape[-1])
    return np.logaddexp(on_sum, _log_sum(np.log(share) + on_sides))


def _on_sum(
    errors: np.ndarray, pairs: np.ndarray, epsilon: np.ndarray, delta: float, expected_gap: float
) -> np.ndarray:
    """Returns ln of the wealth from the bets on FPR + FNR, which depends on the number of errors alone."""
    gaps = np.array([expected_gap, *GAPS])
    shares = np.array([ON_EXPECTED_GAP, *[ON_GAPS / len(GAPS)] * len(GAPS)])
    claimed, true = epsilon[..., None], epsilon[..., None] + gaps
    log_delta = np.log(delta) if delta > 0 else -np.inf
    wrong = np.logaddexp(0, claimed) - np.logaddexp(0, true)  # ln p/q
    right = np.logaddexp(true, log_delta) - np.logaddexp(claimed, log_delta) + wrong
    errors, pairs = errors[..., None], pairs[..., None]
    return _log_sum(np.log(shares) + errors * wrong + (2 * pairs - errors) * right)


def _on_sides(counts: np.ndarray, epsilon: np.ndarray, delta: float) -> np.ndarray:
    """Returns ln of the wealth from each bet on one of the two sides, [..., 2 len(SHARES)]."""
    c, u = np.array(SHARES), np.exp(epsilon)[..., None] + delta
    none, wrong, right, both = (counts[..., outcome, None] for outcome in range(4))
    always = wrong * np.log1p(-c) + right * np.log1p(c * (1 - delta) / u)
    lost, kept = np.log1p(-c + c / u), np.log1p(-c * delta / u)
    return np.concatenate([always + both * lost + none * kept, always + none * lost + both * kept], axis=-1)


def _log_sum(terms: np.ndarray) -> np.ndarray:
    """Returns ln of the sum of exponentials over the last axis."""
    top = terms.max(-1)
    return top + np.log(np.exp(terms - top[..., None]).sum(-1))


def bet_on_line(epsilon: float, delta: float, fpr: float, fnr: float) -> np.ndarray:
    """Returns the bet against a line of a promise that grows fastest if both rates are as guessed.

    The promise has e^epsilon FPR + FNR >= 1 - delta, and the same with the rates exchanged. Let (a, b) be the point of
    such a line at which a coin of rate ``fpr`` and one of rate ``fnr`` are hardest to tell from coins of a and b, in
    relative entropy, and s, t the slopes of both likelihood ratios. Each pair multiplies the stake by ::

        (1 + s (X - a)) (1 + t (Y - b)),  X a false positive, Y a false negative

    At the nearest point the entropy does not change along the line, so that (s, t) = -c (e^epsilon, 1), and if the
    promise is kept the factors' expectations 1 + x and 1 + y have x + y <= 0: their product is at most 1. Smaller
    stakes, s and t times a share, are as fair.

    Args:
      epsilon, delta: of the line; epsilon in nats.
      fpr, fnr: guessed on other trials, in (0, 1).

    Returns:
      [4]: (a, b, s, t) of the better of both lines; all 0, no bet, where the guess keeps the promise.

    Source: Grunwald, de Heide and Koolen 2024, Safe testing, Theorem 1: the nearest point of the hypothesis.
    """
    found, best = np.zeros(4), 0.0
    for swapped in (False, True):
        p, q = (fnr, fpr) if swapped else (fpr, fnr)
        steep, whole = np.exp(min(epsilon, 700.0)), 1 - delta
        if steep * p + q >= whole:
            continue
        low, high = max(p, (whole - 1) / steep), min((whole - q) / steep, 1.0)  # of a: on the line, above the guess

        def turned(a: np.ndarray, p: float = p, q: float = q, steep: float = steep, whole: float = whole) -> Any:
            """Increases in a, and is 0 where the entropy does not change along the line."""
            b = whole - steep * a
            return (a - p) * b * (1 - b) - steep * (b - q) * a * (1 - a)

        a = float(increasing_root(turned, np.array(low), np.array(high)))
        b = whole - steep * a
        s = (p - a) / (a * (1 - a)) if 0 < a < 1 else 0.0
        t = s / steep
        grown = np.array([s * (1 - a), -s * a, t * (1 - b), -t * b])
        if not (np.isfinite(grown).all() and grown.min() > -1):
            continue
        rate = p * np.log1p(grown[0]) + (1 - p) * np.log1p(grown[1])
        rate += q * np.log1p(grown[2]) + (1 - q) * np.log1p(grown[3])
        if rate > best:
            found, best = np.array([b, a, t, s] if swapped else [a, b, s, t]), float(rate)
    return found


def log_wealth_on_line(counts: Any, bet: np.ndarray) -> np.ndarray:
    """Returns ln of the wealth from a bet of :func:`bet_on_line`, with equal parts for all of ``STAKES``.

    Args:
      counts: of outcomes, [..., 4].
      bet: [4].

    Returns:
      [...], 0 before the first pair.
    """
    false_positives, false_negatives, pairs = (count[..., None] for count in error_counts(counts))
    (a, b, s, t), share = bet, np.array(STAKES)
    grown = false_positives * np.log1p(share * s * (1 - a)) + (pairs - false_positives) * np.log1p(-share * s * a)
    grown = grown + false_negatives * np.log1p(share * t * (1 - b))
    grown = grown + (pairs - false_negatives) * np.log1p(-share * t * b)
    return _log_sum(grown) - np.log(len(STAKES))


def epsilon_lower(
    counts: Any, *, delta: float, confidence: float, expected_gap: float = 1.0, both_events: bool = False
) -> np.ndarray:
    """Returns the largest epsilon that the gambler has refuted, a lower bound that holds at all times together.

    Args:
      counts: of outcomes, [..., 4].
      delta: in [0, 1).
      confidence: with at least this probability, no bound of the whole sequence exceeds the mechanism's epsilon.
      expected_gap, both_events: as for :func:`log_wealth`; fixed before the first trial.

    Returns:
      epsilon in nats, [...], never below 0.
    """
    counts = np.asarray(counts)
    low = np.zeros(counts.shape[:-1])

    how: dict[str, Any] = {"delta": delta, "expected_gap": expected_gap, "both_events": both_events}

    def short(epsilon: np.ndarray) -> np.ndarray:
        return -np.log1p(-confidence) - log_wealth(counts, epsilon, **how)

    return increasing_root(short, low, low + LARGEST)


def most_errors(
    pairs: np.ndarray, epsilon: float, *, delta: float, confidence: float, expected_gap: float
) -> np.ndarray:
    """Returns the most errors, of both kinds together, with which the bets on the sum alone refute a claim.

    Args:
      pairs: trials of each world, [...].
      epsilon, delta: the claim.
      confidence: of the refutation.
      expected_gap: as for :func:`log_wealth`.

    Returns:
      Counts [...] in float64, -1 where not even a test without errors would do.
    """
    pairs = np.asarray(pairs, np.float64)

    def short(errors: np.ndarray) -> np.ndarray:
        return -np.log1p(-confidence) - _on_sum(errors, pairs, np.asarray(epsilon, np.float64), delta, expected_gap)

    most = np.floor(increasing_root(short, np.zeros(pairs.shape), 2 * pairs) + 1e-6)
    return np.where(short(np.zeros(pairs.shape)) > 0, -1.0, most)


def rate_bounds(errors: Any, trials: Any, *, alpha: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns a confidence sequence for one error rate: low <= rate <= high at all times together.

    The rates r at which the likelihood ratio of the Beta(1/2, 1/2) mixture, a martingale if r is true, stays below
    1/alpha.

    Args:
      errors: counts, any shape.
      trials: numbers of independent trials with one error rate, the shape of ``errors``; 0 gives (0, 1).
      alpha: the probability that the rate ever leaves the bounds, in (0, 1).

    Returns:
      (low, high), float64.

    Source: Robbins 1970, "Statistical methods related to the law of the iterated logarithm".
    """
    errors, trials = np.broadcast_arrays(np.asarray(errors, np.float64), np.asarray(trials, np.float64))
    mixture = betaln(errors + 0.5, trials - errors + 0.5) - betaln(0.5, 0.5)
    most_likely = np.divide(errors, trials, out=np.full(errors.shape, 0.5), where=trials > 0)

    def excess(rate: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            likelihood = np.where(errors > 0, errors * np.log(rate), 0.0)
            likelihood += np.where(trials > errors, (trials - errors) * np.log1p(-rate), 0.0)
        return np.clip(mixture - likelihood + np.log(alpha), -1e300, 1e300)

    nowhere, everywhere = np.zeros(errors.shape), np.ones(errors.shape)
    low = increasing_root(lambda rate: -excess(rate), nowhere, most_likely)
    return low, increasing_root(excess, most_likely, everywhere)
