"""Flower's differential privacy: what a client sends through ``LocalDpMod``, and what a server averages."""

import logging

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp.mod import LocalDpMod
from flwr.supercore.differential_privacy import add_gaussian_noise_inplace, compute_stdv
from flwr.supercore.task_identity import TaskIdentity

from dpaudit import Claim
from experiments.libraries.promise import Promise, seed_globals

LIBRARY = "flwr"
TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # messages are made within a task
logging.getLogger("flwr").setLevel(logging.ERROR)


def local(epsilon, delta):
    """A client's update of norm 1 through the mod; two updates differ by at most twice the clipping norm."""
    mod = LocalDpMod(clipping_norm=1.0, sensitivity=2.0, epsilon=epsilon, delta=delta)

    def release(rng, x):
        seed_globals(rng)
        sent = Message(RecordDict({"w": ArrayRecord([np.zeros(1)])}), dst_node_id=1, message_type="train")
        reply = Message(RecordDict({"w": ArrayRecord([np.array([x])])}), reply_to=sent)
        return mod(sent, None, lambda message, context: reply).content["w"].to_numpy_ndarrays()[0]

    return release


def average(rng, x):
    """The mean of four clients' updates, with the noise of a noise multiplier of 1."""
    seed_globals(rng)
    mean = [np.array([sum(x) / 4])]
    add_gaussian_noise_inplace(mean, compute_stdv(1.0, 1.0, 4))
    return mean[0]


def promises():
    yield Promise("LocalDpMod", Claim(1.0, 0.01), local(1.0, 0.01), -1.0, 1.0)
    curve = Claim.gaussian(1.0, neighbouring="add_remove")
    yield Promise("central noise", curve, average, [1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0])
    yield Promise("LocalDpMod", Claim(8.0, 0.1))
