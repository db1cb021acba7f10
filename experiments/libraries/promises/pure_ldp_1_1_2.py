"""pure-LDP 1.1.2, whose unary encoding does not keep the true bit with the probability that it should."""

from experiments.libraries.promises.pure_ldp import LIBRARY as LIBRARY
from experiments.libraries.promises.pure_ldp import unary_encoding

ISSUE = "https://github.com/Samuel-Maddock/pure-LDP/issues/11"


def promises():
    return unary_encoding(ISSUE)
