"""smartnoise-synth 1.0.5, which computes the covariance of data that were not clipped."""

from experiments.libraries.promises.smartnoise_synth import LIBRARY as LIBRARY
from experiments.libraries.promises.smartnoise_synth import outlier

ISSUE = "https://github.com/opendp/smartnoise-sdk/issues/622"


def promises():
    yield outlier(ISSUE)
