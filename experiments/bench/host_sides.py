"""Holds mechanisms of other libraries for the benchmark of audits on the host; slow preparations are made once."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Side(NamedTuple):
    """A mechanism of a library.

    Attributes:
      release: for :func:`dpaudit.on_host`.
      setup: makes its state, or None.
      trials: of an audit that lasts some seconds.
      workers: whether the audit has any; otherwise it plays in its own process.
    """

    release: Callable[..., Any]
    setup: Callable[[], Any] | None
    trials: int
    workers: bool = True


def numpy_at_once(rng: np.random.Generator, x: float, n: int) -> np.ndarray:
    """Adds Laplace noise, many at a time."""
    return x + rng.laplace(size=n)


def opendp_laplace() -> Any:
    """Makes OpenDP's Laplace mechanism on one float."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    return dp.m.make_laplace(dp.atom_domain(T=float, nan=False), dp.absolute_distance(T=float), scale=1.0)


def opendp(rng: np.random.Generator, x: float, state: Any) -> Any:
    """Draws from the operating system."""
    return state(x)


def diffprivlib_laplace() -> Any:
    """Makes diffprivlib's Laplace mechanism."""
    from diffprivlib.mechanisms import Laplace

    return Laplace(epsilon=1.0, sensitivity=1.0)


def diffprivlib(rng: np.random.Generator, x: float, state: Any) -> Any:
    """Draws from the operating system."""
    return state.randomise(x)


def pure_ldp_unary() -> Any:
    """Makes pure-LDP's client of optimised unary encoding, of 16 items."""
    from pure_ldp.frequency_oracles.unary_encoding import UEClient

    return UEClient(1.0, 16, use_oue=True)


def pure_ldp(rng: np.random.Generator, x: float, state: Any) -> Any:
    """Draws from NumPy's legacy generator."""
    return state.privatise(int(x) + 1)


def opacus_step() -> Any:
    """Makes a private engine of a small convolutional network for 64 images, once."""
    import warnings

    import torch
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    nn = torch.nn
    layers = [nn.Conv2d(1, 16, 8, 2, 3), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Conv2d(16, 32, 4, 2), nn.ReLU()]
    model = nn.Sequential(*layers, nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10))
    images, labels = torch.rand(64, 1, 28, 28), torch.randint(0, 10, (64,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, _ = PrivacyEngine().make_private(
        module=model,
        optimizer=optimizer,
        data_loader=DataLoader(TensorDataset(images, labels), batch_size=64),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        poisson_sampling=False,
    )
    return model, optimizer, images, labels, {name: value.clone() for name, value in model.state_dict().items()}


def opacus(rng: np.random.Generator, x: float, state: Any) -> np.ndarray:
    """Takes one step from the same weights, on images of which x scales the last one; releases the last bias."""
    import torch

    model, optimizer, images, labels, start = state
    torch.manual_seed(int(rng.integers(2**62)))
    model.load_state_dict(start)
    batch = images.clone()
    batch[-1] *= x
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(batch), labels).backward()
    optimizer.step()
    return list(model.parameters())[-1].detach().numpy().copy()


SIDES = {
    "numpy": Side(numpy_at_once, None, 8_000_000, False),
    "opendp": Side(opendp, opendp_laplace, 100_000),
    "diffprivlib": Side(diffprivlib, diffprivlib_laplace, 400_000),
    "pure_ldp": Side(pure_ldp, pure_ldp_unary, 200_000),
    "opacus": Side(opacus, opacus_step, 128),
}
