"""pure-LDP 1.2.0, in which unary encoding is mended."""

from pure_ldp.frequency_oracles.apple_cms import CMSClient
from pure_ldp.frequency_oracles.direct_encoding import DEClient
from pure_ldp.frequency_oracles.hadamard_mechanism import HadamardMechClient
from pure_ldp.frequency_oracles.hadamard_response import HadamardResponseClient
from pure_ldp.frequency_oracles.local_hashing import LHClient
from pure_ldp.frequency_oracles.unary_encoding import UEClient

from dpaudit import Claim
from experiments.libraries.promise import Promise, seed_globals

LIBRARY = "pure-ldp"
DOMAIN = 4


def promise(name, client, epsilon=1.0, **settings):
    """What a client tells of its user's item: item 1 against item 2 of four."""

    def release(rng, x):
        seed_globals(rng)
        told = client.privatise(x)
        return list(told) if isinstance(told, zip) else told

    return Promise(name, Claim(epsilon), release, 1, 2, **settings)


def unary_encoding(issue=None):
    """The two promises of issue 11."""
    for name, optimal in (("OUE", True), ("SUE", False)):
        yield promise(
            f"unary encoding, {name}", UEClient(0.5, DOMAIN, use_oue=optimal), 0.5, issue=issue, trials=400_000
        )


def promises():
    yield from unary_encoding()
    yield promise("direct encoding", DEClient(1.0, DOMAIN))
    for name, optimal in (("OLH", True), ("BLH", False)):
        yield promise(f"local hashing, {name}", LHClient(1.0, DOMAIN, use_olh=optimal))
    yield promise("Hadamard mechanism", HadamardMechClient(1.0, DOMAIN, t=1))
    yield promise("Hadamard response", HadamardResponseClient(1.0, DOMAIN, hash_funcs=None))
    for name, hadamard in (("CMS", False), ("HCMS", True)):
        yield promise(f"count mean sketch, {name}", CMSClient(1.0, [int], DOMAIN, is_hadamard=hadamard))
