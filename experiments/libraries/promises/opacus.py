"""Opacus: one step, and a training, of a linear model whose engine is set up once for each data set."""

import warnings
from functools import cache

import numpy as np
import torch
from opacus import PrivacyEngine
from torch.utils.data import DataLoader, TensorDataset

from dpaudit import Claim
from experiments.libraries.promise import Promise

LIBRARY = "opacus"
BATCH_SIZE = "https://github.com/meta-pytorch/opacus/issues/571"
ROUNDED_DOWN = "https://github.com/meta-pytorch/opacus/issues/819"  # as many expected records as are left whole
DELTA = 1e-5
FULL, OF_FOUR, OF_TWO = None, 4, 2

warnings.filterwarnings("ignore")
torch.set_num_threads(1)


@cache
def private(records, extra, batch_size, noise_multiplier, dimensions):
    """An engine and what it made private, for records of zeros and, with ``extra``, one whose gradient is clipped."""
    inputs, targets = torch.zeros(records, dimensions), torch.zeros(records, 1)
    if extra:
        inputs[-1, 0], targets[-1] = 10.0, 10.0
    engine, model = PrivacyEngine(), torch.nn.Linear(dimensions, 1, bias=False)
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=batch_size or records)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return engine, *engine.make_private(
        module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=noise_multiplier, max_grad_norm=1.0
    )


def trained(rng, x, *, batch_size, noise_multiplier, dimensions, steps):
    """The weights after these many steps from zero."""
    _, model, optimizer, loader = private(*x, batch_size, noise_multiplier, dimensions)
    torch.manual_seed(int(rng.integers(2**63)))
    with torch.no_grad():
        for weights in model.parameters():
            weights.zero_()
    done = 0
    while done < steps:
        for inputs, targets in loader:
            optimizer.zero_grad()
            ((model(inputs) - targets) ** 2).sum().backward()
            optimizer.step()
            done += 1
            if done == steps:
                break
    return next(model.parameters()).detach().numpy()[0].copy()


def promise(name, x0, x1, *, issue=None, trials=4_000, **settings):
    """What the engine's own accountant says after the same steps."""
    engine = private(*x1, settings["batch_size"], settings["noise_multiplier"], settings["dimensions"])[0]
    engine.accountant.history.clear()
    trained(np.random.default_rng(0), x1, **settings)
    claim = Claim(engine.get_epsilon(DELTA), DELTA, "add_remove")
    return Promise(name, claim, lambda rng, x: trained(rng, x, **settings), x0, x1, trials, issue)


def promises():
    full = {"batch_size": FULL, "noise_multiplier": 2.0, "dimensions": 200, "steps": 1}
    yield promise("a step on all of 2 or 3 records", (2, False), (3, False), issue=BATCH_SIZE, trials=12_000, **full)
    half = full | {"batch_size": OF_TWO}  # 3 and 4 records are both sampled at 1/2, and expected to be 1 and 2
    yield promise(
        "a step on half of 3 or 4 records", (3, False), (4, False), issue=ROUNDED_DOWN, trials=12_000, **half
    )
    part = {"batch_size": OF_FOUR, "noise_multiplier": 1.0, "dimensions": 2}
    yield promise("a step on a batch of 10 or 11 records", (10, False), (11, True), steps=1, trials=600, **part)
    yield promise("a training of 6 steps", (10, False), (11, True), steps=6, trials=600, **part)
