"""Collects faults that private mechanisms have really had, each beside its correct twin, one family per file."""

from experiments.trust.zoo import (
    calibration,
    clipping,
    literature_choices,
    literature_decisions,
    literature_noise,
    literature_sums,
    local,
    randomness,
    rounding,
    selection,
)
from experiments.trust.zoo.fault import Fault

FAMILIES: dict[str, tuple[Fault, ...]] = {
    "clipping": clipping.FAULTS,
    "calibration": calibration.FAULTS,
    "randomness": randomness.FAULTS,
    "rounding": rounding.FAULTS,
    "selection": selection.FAULTS,
    "local release": local.FAULTS,
    "literature: noise": literature_noise.FAULTS,
    "literature: sums": literature_sums.FAULTS,
    "literature: choices": literature_choices.FAULTS,
    "literature: decisions": literature_decisions.FAULTS,
}
