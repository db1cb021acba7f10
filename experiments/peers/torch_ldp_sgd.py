"""The peer of bench_ldp: LDP-SGD trials as a plain PyTorch loop. Prints trials a second; needs torch alone.

python experiments/peers/torch_ldp_sgd.py DIMENSION TRIALS THREADS
"""

import math
import sys
import time

import torch


def trial(g: torch.Tensor, epsilon: float, clip_norm: float, direction: torch.Tensor) -> bool:
    """Algorithm 1 on g, then the cosine rule."""
    norm = g.norm()
    z = g / norm
    if torch.rand(()) >= 0.5 + min(norm.item(), clip_norm) / (2 * clip_norm):
        z = -z
    v = torch.randn(g.shape[0])
    v = v / v.norm()
    if (z @ v < 0) != (torch.rand(()).item() >= 1 / (1 + math.exp(-epsilon))):
        v = -v
    return bool(v @ direction > 0)


def main() -> None:
    dimension, trials, threads = map(int, sys.argv[1:])
    torch.set_num_threads(threads)
    g = torch.randn(dimension)
    g = g / g.norm()
    guesses = [trial(g, 4.0, 1.0, -2 * g) for _ in range(trials // 10)]
    began = time.perf_counter()
    guesses = [trial(g, 4.0, 1.0, -2 * g) for _ in range(trials)]
    seconds = time.perf_counter() - began
    share = sum(guesses) / trials
    assert abs(share - 1 / (1 + math.exp(4))) < 6 * math.sqrt(0.02 / trials), share
    print(trials / seconds)


if __name__ == "__main__":
    main()
