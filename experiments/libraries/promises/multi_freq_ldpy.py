"""multi-freq-ldpy: frequency oracles compiled by Numba, whose generator nothing outside seeds."""

from multi_freq_ldpy.pure_frequency_oracles.ADP import ADP_Client
from multi_freq_ldpy.pure_frequency_oracles.GRR import GRR_Client
from multi_freq_ldpy.pure_frequency_oracles.LH import LH_Client
from multi_freq_ldpy.pure_frequency_oracles.SS import SS_Client
from multi_freq_ldpy.pure_frequency_oracles.UE import UE_Client

from dpaudit import Claim
from experiments.libraries.promise import Promise

LIBRARY = "multi-freq-ldpy"
DOMAIN, EPSILON = 4, 1.0


def promise(name, client, *settings):
    """What a client tells of its user's item: item 0 against item 1 of four."""
    return Promise(name, Claim(EPSILON), lambda rng, x: client(x, DOMAIN, EPSILON, *settings), 0, 1, trials=4_000)


def promises():
    yield promise("generalized randomized response", GRR_Client)
    for optimal in (True, False):
        yield promise(f"unary encoding, {'OUE' if optimal else 'SUE'}", UE_Client, optimal)
        yield promise(f"local hashing, {'OLH' if optimal else 'BLH'}", LH_Client, optimal)
    yield promise("subset selection", SS_Client)
    yield promise("adaptive", ADP_Client, True)
