"""Times rounds of Federated LDP-SGD in PyTorch for bench_federated, one round for every line read.

python experiments/peers/torch_federated.py

The first line of standard input is JSON with ``clients`` m, ``examples`` n of each, ``seed``, ``weights`` (a flat list
in PyTorch's order), ``clip_norm``, ``noise_multiplier`` and ``learning_rate``. Images [m, n, 1, 28, 28] and labels
[m, n] are NumPy's ``random`` and then ``integers`` of ``default_rng(seed)``, so that whoever asks can draw them too.
Answered is JSON with the number of ``parameters``; each side's ``settings``, the fastest of a quick sweep; and the
``computed`` the means of the clients' clipped gradients without noise by "vmap" and by "loop", flat as the weights.
Then every line that names a side is answered with the seconds of one round of it. Needs `pip install torch opacus`.
"""

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch_dp_sgd import cnn28, serve

THREADS = (1, 2)
CHUNKS = (25, 50, 100, 200)
SWEEP_CLIENTS = 200
SWEEP_CALLS = 3


class Clients(NamedTuple):
    """What every client holds."""

    images: torch.Tensor  # [m, n, 1, 28, 28]
    labels: torch.Tensor  # [m, n]


def by_vmap(network: nn.Module, clip_norm: float, clients: Clients, stddev: float, *, chunk: int) -> torch.Tensor:
    """Returns the sum of the clients' clipped gradients, each with noise of its own: all clients of a chunk at a
    time."""
    parameters = {name: p.detach() for name, p in network.named_parameters()}
    total = torch.zeros(sum(p.numel() for p in parameters.values()))

    def loss(parameters: dict[str, torch.Tensor], images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return cross_entropy(functional_call(network, parameters, images), labels)

    for images, labels in zip(*(held.split(chunk) for held in clients), strict=True):
        each = list(vmap(grad(loss), (None, 0, 0))(parameters, images, labels).values())
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in each]).norm(dim=0)
        factors = (clip_norm / norms).clamp(max=1)
        total += torch.cat([torch.tensordot(factors, g, 1).flatten() for g in each])
        if stddev:
            total += stddev * torch.randn(len(images), len(total)).sum(0)
    return total


def by_loop(network: nn.Module, clip_norm: float, clients: Clients, stddev: float) -> torch.Tensor:
    """Returns the sum of the clients' clipped gradients, each with noise of its own: one client at a time."""
    parameters = list(network.parameters())
    total = torch.zeros(sum(p.numel() for p in parameters))
    for images, labels in zip(*clients, strict=True):
        own = parameters_to_vector(torch.autograd.grad(cross_entropy(network(images), labels), parameters))
        total.add_(own, alpha=clip_norm / max(clip_norm, float(own.norm())))
        if stddev:
            total.add_(torch.randn(len(total)), alpha=stddev)
    return total


def rounds(network: nn.Module, given: dict[str, Any]) -> dict[str, Callable[..., torch.Tensor]]:
    """``run(clients, **setting) -> weights`` after one round of Algorithms 1 and 3.

    With "one draw" the mean gets the noise that the clients' would have added up to.
    """
    weights = parameters_to_vector(network.parameters()).detach()
    clip_norm, stddev = given["clip_norm"], given["noise_multiplier"] * given["clip_norm"]

    def noise_per_client(clipped_sum: Callable[..., torch.Tensor], clients: Clients, **how: int) -> torch.Tensor:
        mean = clipped_sum(network, clip_norm, clients, stddev, **how) / len(clients.labels)
        return weights - given["learning_rate"] * mean

    def one_draw(clipped_sum: Callable[..., torch.Tensor], clients: Clients, **how: int) -> torch.Tensor:
        mean = clipped_sum(network, clip_norm, clients, 0.0, **how) / len(clients.labels)
        noise = stddev / len(clients.labels) ** 0.5 * torch.randn(len(weights))
        return weights - given["learning_rate"] * (mean + noise)

    return {
        "vmap": partial(noise_per_client, by_vmap),
        "vmap, one draw": partial(one_draw, by_vmap),
        "loop": partial(noise_per_client, by_loop),
        "loop, one draw": partial(one_draw, by_loop),
    }


def seconds(run: Callable[..., object], clients: Clients, threads: int, **how: int) -> float:
    torch.set_num_threads(threads)
    began = time.perf_counter()
    run(clients, **how)
    return time.perf_counter() - began


def fastest(side: str, run: Callable[..., object], clients: Clients) -> dict[str, int]:
    """Returns the side's best setting for a few of the clients: those that seem far off at first are not tried
    again."""
    chunks = [{"chunk": chunk} for chunk in CHUNKS] if side.startswith("vmap") else [{}]
    settings = [{"threads": threads} | chunk for threads in THREADS for chunk in chunks]
    few = Clients(*(held[:SWEEP_CLIENTS] for held in clients))
    seconds(run, few, **settings[0])
    once = [seconds(run, few, **setting) for setting in settings]
    near = [setting for setting, took in zip(settings, once, strict=True) if took < 2 * min(once)]
    return min(near, key=lambda setting: min(seconds(run, few, **setting) for _ in range(SWEEP_CALLS)))


def main() -> None:
    given = json.loads(sys.stdin.readline())
    torch.manual_seed(given["seed"])
    rng, shape = np.random.default_rng(given["seed"]), (given["clients"], given["examples"])
    images = torch.from_numpy(rng.random((*shape, 1, 28, 28), np.float32))
    clients = Clients(images, torch.from_numpy(rng.integers(0, 10, shape)))
    network = cnn28()
    vector_to_parameters(torch.tensor(given["weights"]), network.parameters())

    sides = rounds(network, given)
    settings = {side: fastest(side, run, clients) for side, run in sides.items()}
    totals = {
        "vmap": by_vmap(network, given["clip_norm"], clients, 0.0, chunk=settings["vmap"]["chunk"]),
        "loop": by_loop(network, given["clip_norm"], clients, 0.0),
    }
    computed = {side: (total / given["clients"]).tolist() for side, total in totals.items()}
    timed = {side: partial(seconds, run, clients, **settings[side]) for side, run in sides.items()}
    serve(given, settings, timed, computed=computed)


if __name__ == "__main__":
    main()
