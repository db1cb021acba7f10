"""Times gradients and trainings in PyTorch and Opacus for bench_training, one call for every line read.

python experiments/peers/torch_dp_sgd.py

The first line of standard input is JSON with ``what`` ("sums" or "trainings"), ``network``, ``images`` [n, c, h, w],
``labels`` [n], ``device`` ("cpu" or "cuda"), ``batch_size``, ``steps``, ``clip_norm``, ``noise_multiplier``,
``learning_rate``, ``dropout_rate`` (of trainings: sums are without dropout), ``weights`` (a flat list in PyTorch's
order) and ``check``, the steps of the trainings that are compared. On CUDA, products and convolutions of float32 are
in TF32, as XLA's are. Answered is
JSON with the number of ``parameters``, the ``settings`` of each side, and what they ``computed``, flat as the weights:
the sums; or the weights after the steps to compare on the first batch, all of which is taken every time, without noise
or dropout. Then every line that names a side is answered with the seconds of one call of it. Needs
`pip install torch opacus`.
"""

import copy
import json
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from opacus import PrivacyEngine
from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, TensorDataset

Tensors = list[torch.Tensor]
THREADS = 2
MODES = {"per-sample gradients": "hooks", "ghost clipping": "ghost"}


def active(dropout_rate: float) -> list[nn.Module]:
    """ReLU, and dropout behind it where there is any: a layer of rate 0 costs time as well."""
    return [nn.ReLU(), nn.Dropout(dropout_rate)] if dropout_rate else [nn.ReLU()]


def cnn8(dropout_rate: float = 0.0) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        *active(dropout_rate),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3),
        *active(dropout_rate),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


def cnn28(dropout_rate: float = 0.0) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3),
        *active(dropout_rate),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4, stride=2),
        *active(dropout_rate),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(512, 32),
        *active(dropout_rate),
        nn.Linear(32, 10),
    )


def cnn32(dropout_rate: float = 0.0) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 64, 5),
        *active(dropout_rate),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 5),
        *active(dropout_rate),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(1600, 512),
        *active(dropout_rate),
        nn.Linear(512, 10),
    )


NETWORKS = {"CNN8": cnn8, "CNN28": cnn28, "CNN32": cnn32}


def begun(given: dict[str, Any], device: torch.device, dropout_rate: float = 0.0) -> nn.Module:
    """Returns the network with the weights that it is given."""
    network = NETWORKS[given["network"]](dropout_rate).to(device)
    vector_to_parameters(torch.tensor(given["weights"], device=device), network.parameters())
    return network


def gradients(given: dict[str, Any], images: torch.Tensor, labels: torch.Tensor) -> dict[str, Callable[[], Tensors]]:
    """Returns every side's gradient of one batch: the mean loss's for the plain one, else the sum of clipped ones."""
    network, clip_norm = begun(given, images.device), given["clip_norm"]
    cross_entropy = nn.CrossEntropyLoss()
    settings = {"noise_multiplier": 0.0, "max_grad_norm": clip_norm, "expected_batch_size": len(labels)}

    def plain() -> Tensors:
        network.zero_grad()
        cross_entropy(network(images), labels).backward()
        return [p.grad for p in network.parameters()]

    parameters = {name: p.detach() for name, p in network.named_parameters()}

    def loss(parameters: dict[str, torch.Tensor], image: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return cross_entropy(functional_call(network, parameters, image[None]), label[None])

    def by_vmap() -> Tensors:
        each = list(vmap(grad(loss), (None, 0, 0))(parameters, images, labels).values())
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in each]).norm(dim=0)
        factors = (clip_norm / norms).clamp(max=1)
        return [torch.tensordot(factors, g, 1) for g in each]

    per_sample = GradSampleModule(copy.deepcopy(network))
    per_sample_optimizer = DPOptimizer(torch.optim.SGD(per_sample.parameters()), **settings)

    def opacus_per_sample() -> Tensors:
        per_sample_optimizer.zero_grad()
        cross_entropy(per_sample(images), labels).backward()
        per_sample_optimizer.clip_and_accumulate()
        return [p.summed_grad for p in per_sample.parameters()]

    ghost = GradSampleModuleFastGradientClipping(copy.deepcopy(network), max_grad_norm=clip_norm)
    ghost_optimizer = DPOptimizerFastGradientClipping(torch.optim.SGD(ghost.parameters()), **settings)
    ghost_loss = DPLossFastGradientClipping(ghost, ghost_optimizer, nn.CrossEntropyLoss())

    def opacus_ghost() -> Tensors:
        ghost_optimizer.zero_grad()
        ghost_loss(ghost(images), labels).backward()
        return [p.grad for p in ghost.parameters()]

    return {
        "torch, plain": plain,
        "torch.func vmap and clip": by_vmap,
        "Opacus per-sample gradients": opacus_per_sample,
        "Opacus ghost clipping": opacus_ghost,
    }


def train(given: dict[str, Any], module: nn.Module, data: TensorDataset, mode: str, noise: float, steps: int) -> None:
    """Makes a network private and trains it with Poisson batches, as the documentation shows it."""
    module, optimizer, *criterion, loader = PrivacyEngine().make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=given["learning_rate"]),
        criterion=nn.CrossEntropyLoss(),
        data_loader=DataLoader(data, batch_size=given["batch_size"]),
        noise_multiplier=noise,
        max_grad_norm=given["clip_norm"],
        grad_sample_mode=mode,
    )
    (loss,) = criterion or [nn.CrossEntropyLoss()]
    while steps:
        for batch, targets in loader:
            optimizer.zero_grad()
            loss(module(batch), targets).backward()
            optimizer.step()
            steps -= 1
            if not steps:
                break


def trainings(given: dict[str, Any], images: torch.Tensor, labels: torch.Tensor) -> dict[str, Callable[[], object]]:
    """Returns a network made and trained with dropout and noise."""
    data = TensorDataset(images, labels)

    def run(mode: str, threads: int) -> None:
        torch.set_num_threads(threads)
        module = NETWORKS[given["network"]](given["dropout_rate"]).to(images.device)
        train(given, module, data, mode, given["noise_multiplier"], given["steps"])

    return {
        f"Opacus {name}, threads {threads}": lambda mode=mode, threads=threads: run(mode, threads)
        for name, mode in MODES.items()
        for threads in (1, THREADS)
    }


def checked(given: dict[str, Any], images: torch.Tensor, labels: torch.Tensor) -> dict[str, list[float]]:
    """Returns the weights after a few steps in which nothing is drawn, by every mode."""
    computed, size = {}, given["batch_size"]
    for name, mode in MODES.items():
        module = begun(given, images.device)
        train(given, module, TensorDataset(images[:size], labels[:size]), mode, 0.0, given["check"])
        computed[f"Opacus {name}"] = parameters_to_vector(module.parameters()).tolist()
    return computed


def serve(given: dict[str, Any], settings: dict[str, Any], sides: dict[str, Callable[[], float]], **told: Any) -> None:
    """Answers what was asked for, and then every line that names a side with the seconds of one call of it."""
    print(json.dumps({"parameters": len(given["weights"]), "settings": settings, **told}), flush=True)
    for line in sys.stdin:
        print(sides[line.strip()](), flush=True)


def main() -> None:
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    torch.set_num_threads(THREADS)
    given = json.loads(sys.stdin.readline())
    device = torch.device(given["device"])
    images, labels = torch.tensor(given["images"], device=device), torch.tensor(given["labels"], device=device)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    if given["what"] == "sums":
        sides = gradients(given, images, labels)
        computed = {name: torch.cat([g.flatten() for g in side()]).tolist() for name, side in sides.items()}
    else:
        sides, computed = trainings(given, images, labels), checked(given, images, labels)

    def seconds(run: Callable[[], object]) -> float:
        began = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    settings = {side: {} for side in sides}
    serve(given, settings, {side: partial(seconds, run) for side, run in sides.items()}, computed=computed)


if __name__ == "__main__":
    main()
