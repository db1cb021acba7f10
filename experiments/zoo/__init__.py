"""Faults that private mechanisms really have had, each a few lines beside its correct twin: one family a file."""

from experiments.zoo import calibration, clipping, local, randomness, rounding, selection
from experiments.zoo.fault import Fault

FAMILIES: dict[str, tuple[Fault, ...]] = {
    "clipping": clipping.FAULTS,
    "calibration": calibration.FAULTS,
    "randomness": randomness.FAULTS,
    "rounding": rounding.FAULTS,
    "selection": selection.FAULTS,
    "local release": local.FAULTS,
}
