"""Simulates federated learning with millions of clients under local differential privacy, and accounts it.

A population defines the clients, an update what they compute, a client what leaves the device, and a rule how the clip
norm is chosen; a server made of these runs the rounds.

Source: paper 002, on the clip size under local differential privacy.
"""

from typing import TYPE_CHECKING

from dpaudit._lazy import attach

if TYPE_CHECKING:
    from dpaudit.federated import accounting as accounting
    from dpaudit.federated import clients as clients
    from dpaudit.federated import clip_size as clip_size
    from dpaudit.federated import population as population
    from dpaudit.federated import rounds as rounds
    from dpaudit.federated.population import sample_clients as sample_clients
    from dpaudit.federated.rounds import Server as Server
    from dpaudit.federated.rounds import diverged as diverged
    from dpaudit.federated.rounds import federated as federated
    from dpaudit.federated.rounds import participants as participants
    from dpaudit.federated.rounds import run as run
    from dpaudit.federated.rounds import simulate as simulate

__getattr__, __dir__, __all__ = attach(__name__)
