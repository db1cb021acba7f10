"""Records the draws of SciPy's distributions, of one and of several variables."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from dpaudit.audits.recording.numpy_sources import STATE, followed
from dpaudit.audits.recording.trace import Seed, Stage, caller

LAWS = {"norm": "gaussian", "laplace": "laplace", "uniform": "uniform", "expon": "exponential"}


def put(stage: Stage, put: Callable[..., None]) -> None:
    """Replaces ``rvs`` of all distributions of one variable, and the generator from which the others draw by default,
    if scipy.stats is imported."""
    infrastructure = sys.modules.get("scipy.stats._distn_infrastructure")
    if infrastructure is None:
        return
    real, shared = infrastructure.rv_generic.rvs, np.random.mtrand._rand

    def rvs(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = kwargs.pop("random_state", None)
        given = getattr(self, "_random_state", None) if given is None else given
        if isinstance(given, int | np.integer):
            stage.trace.seeds.append(Seed(f"scipy.stats.{self.name}.rvs", repr(given), caller()))
            given = STATE(given)
        given = np.random.mtrand._rand if given is None or given is np.random or given is shared else given
        twin = getattr(given, "twin", given)  # a generator that was made before the call has none
        kwargs.pop("discrete", None)
        own, location, scale, size = self._parse_args_rvs(*args, **kwargs)
        # _parse_args_rvs fills in a size if none was given
        lone = kwargs.get("size") is None and len(args) <= self.numargs + 2
        whole = infrastructure.rv_discrete in type(self).__mro__
        more = {"loc": 0} if whole else {"loc": 0.0, "scale": 1.0}

        def make(shape: Any) -> Any:
            return np.asarray(real(self, *own, **more, size=shape, random_state=twin))

        law = str(LAWS.get(self.name, self.name))
        shape_parameters = {f"shape{place}": one for place, one in enumerate(own)}
        settings = (location, 1 if whole else scale, None if lone else size)
        return followed(stage.trace, f"scipy.stats.{self.name}.rvs", law, *settings, make, **shape_parameters)

    put(infrastructure.rv_generic, "rvs", rvs)
    if "rvs" in vars(infrastructure.rv_discrete):
        put(infrastructure.rv_discrete, "rvs", rvs)
    several = getattr(sys.modules.get("scipy.stats._multivariate"), "multi_rv_generic", None)
    if several is None:
        return
    chosen = several._get_random_state

    def recorded(self: Any, random_state: Any) -> Any:
        made = chosen(self, random_state)
        return np.random.mtrand._rand if made is shared else made

    put(several, "_get_random_state", recorded)
