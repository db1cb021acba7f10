"""Times LDP-SGD trials in a plain PyTorch loop for bench_ldp. Prints trials a second; needs only torch.

python experiments/peers/torch_ldp_sgd.py DIMENSION TRIALS THREADS
"""

import math
import sys
import time

import torch


def trial(z: torch.Tensor, keep: float, epsilon: float, direction: torch.Tensor) -> bool:
    """Lines 2 and 3 of Algorithm 1 on a unit vector, then the cosine rule; what all trials share is computed once."""
    if torch.rand(()).item() >= keep:
        z = -z
    v = torch.randn(z.shape[0])
    v = v / v.norm()
    if (z @ v < 0) != (torch.rand(()).item() >= 1 / (1 + math.exp(-epsilon))):
        v = -v
    return bool(v @ direction > 0)


def main() -> None:
    dimension, trials, threads = map(int, sys.argv[1:])
    torch.set_num_threads(threads)
    z = torch.randn(dimension)
    z, keep = z / z.norm(), 1.0
    direction = -2 * z
    guesses = [trial(z, keep, 4.0, direction) for _ in range(trials // 10)]
    began = time.perf_counter()
    guesses = [trial(z, keep, 4.0, direction) for _ in range(trials)]
    seconds = time.perf_counter() - began
    share = sum(guesses) / trials
    assert abs(share - 1 / (1 + math.exp(4))) < 6 * math.sqrt(0.02 / trials), share
    print(trials / seconds)


if __name__ == "__main__":
    main()
