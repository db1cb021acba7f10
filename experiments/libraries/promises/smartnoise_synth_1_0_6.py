"""smartnoise-synth 1.0.6, in which the covariance is mended."""

from experiments.libraries.promises.smartnoise_synth import LIBRARY as LIBRARY
from experiments.libraries.promises.smartnoise_synth import promises as promises
