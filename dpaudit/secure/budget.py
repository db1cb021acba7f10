"""What a training's openings have spent of the privacy budget that its terms allow.

Neighbours are two data sets of which one has another example in the place of one; the example may be in every step,
and nothing is gained from sampling. Every opening that was begun counts, whether or not it came to a result.
"""

import math
from functools import cached_property

from dpaudit import check
from dpaudit.secure import noise_accounting
from dpaudit.secure.agreement import Terms
from dpaudit.secure.noise import Binomial
from dpaudit.secure.noise_accounting import TRIMMED


class Budget:
    """The budget of one training's terms.

    Args:
      terms: of the training; without a budget nothing is limited and nothing is said of epsilon.
    """

    def __init__(self, terms: Terms) -> None:
        self._terms = terms

    @cached_property
    def _curve(self) -> noise_accounting.Spent:
        """What one opening spends; takes a moment, so that it is computed when it is first needed."""
        terms = self._terms
        law, trimmed = Binomial(terms.coins, terms.step_bits), TRIMMED * terms.delta / terms.openings
        return noise_accounting.spent(law, sensitivity=2 * terms.levels, dimension=terms.dimension, trimmed=trimmed)

    def epsilon(self, openings: int) -> float:
        """What so many openings have spent at the terms' delta, nats; at most the budget up to ``terms.openings``."""
        terms = self._terms
        return noise_accounting.composed(self._curve, openings, terms.delta) if terms.openings else math.inf

    def spent(self, openings: int) -> bool:
        """Whether no further opening is allowed."""
        return 0 < self._terms.openings <= openings

    def require(self, openings: int) -> None:
        """Refuses a further opening where none is allowed: InputError."""
        if self.spent(openings):
            terms = self._terms
            wanted = f"epsilon {terms.epsilon:g} at delta {terms.delta:g}, which {terms.openings} openings spend"
            raise check.expected("budget", wanted, f"another one after {openings}")

    def told(self, openings: int) -> str:
        """For a line of the log."""
        terms = self._terms
        if not terms.openings:
            return f"{openings} openings begun so far"
        return (
            f"{openings} of {terms.openings} openings begun so far, "
            f"epsilon {self.epsilon(openings):.4g} of {terms.epsilon:g} at delta {terms.delta:g}"
        )
