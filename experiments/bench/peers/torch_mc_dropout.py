"""Times T dropout samples of n images in PyTorch for bench_mc_dropout, one call for every line read.

python experiments/peers/torch_mc_dropout.py

The first line of standard input is JSON with ``network``, ``images`` [n, c, h, w], ``weights`` (a flat list in
PyTorch's order), ``dropout_rate``, ``samples`` T and ``threads``, a number for each side. Answered is JSON with the
number of ``parameters``; each side's ``settings``, the fastest of a quick sweep; the ``logits`` [n, k] without
dropout; and the ``mean`` and ``variance`` [n, k] of T samples. Then every line that names a side is answered with the
seconds of one call of it. Needs `pip install torch opacus`.
"""

import json
import sys
import time
from functools import partial

import torch
from torch import nn
from torch.nn.utils import vector_to_parameters
from torch_dp_sgd import NETWORKS, serve

CHUNKS = (1, 4, 16, 64)  # samples of all images that go through the network as one batch
SWEEP_SAMPLES = 64
SWEEP_CALLS = 2


@torch.inference_mode()
def sample(network: nn.Module, images: torch.Tensor, samples: int, chunk: int) -> torch.Tensor:
    """[T, n, k]: probabilities of the network in train mode, so that its dropout is active."""
    outputs = []
    for first in range(0, samples, chunk):
        repeated = images.repeat(min(chunk, samples - first), 1, 1, 1)
        outputs.append(network(repeated).softmax(dim=1))
    return torch.cat(outputs).view(samples, len(images), -1)


def seconds(network: nn.Module, images: torch.Tensor, samples: int, threads: int, chunk: int) -> float:
    torch.set_num_threads(threads)
    began = time.perf_counter()
    sample(network, images, samples, chunk)
    return time.perf_counter() - began


def fastest(network: nn.Module, images: torch.Tensor, samples: int, threads: int) -> dict[str, int]:
    """Returns the best size of a batch for some of the samples."""
    few = min(samples, SWEEP_SAMPLES)
    seconds(network, images, few, threads, CHUNKS[0])
    took = {chunk: min(seconds(network, images, few, threads, chunk) for _ in range(SWEEP_CALLS)) for chunk in CHUNKS}
    return {"threads": threads, "chunk": min(took, key=lambda chunk: took[chunk])}


def main() -> None:
    given = json.loads(sys.stdin.readline())
    torch.manual_seed(0)
    network = NETWORKS[given["network"]](given["dropout_rate"]).train()
    vector_to_parameters(torch.tensor(given["weights"]), network.parameters())
    images, samples = torch.tensor(given["images"]), given["samples"]
    settings = {
        f"torch, threads {threads}": fastest(network, images, samples, threads) for threads in given["threads"]
    }
    torch.set_num_threads(1)
    found = sample(network, images, samples, CHUNKS[-1])
    with torch.inference_mode():
        logits = network.eval()(images)
    network.train()
    told = {"logits": logits.tolist(), "mean": found.mean(dim=0).tolist()}
    told |= {"variance": found.var(dim=0, correction=0).tolist()}
    timed = {side: partial(seconds, network, images, samples, **how) for side, how in settings.items()}
    serve(given, settings, timed, **told)


if __name__ == "__main__":
    main()
