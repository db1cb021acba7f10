"""Torch's noise is followed as NumPy's is; skipped where torch is not installed."""

import sys

import pytest

from dpaudit import Claim, record

torch = pytest.importorskip("torch")

X0, X1 = torch.tensor([0.2, 0.7]), torch.tensor([0.2, 0.1])
FAR = torch.tensor([0.2, 9.0])


def kept(x):
    return torch.clamp(x, 0, 1) + torch.normal(0.0, 5.0, size=x.shape)


def without_clip(x):
    return x + torch.normal(0.0, 5.0, size=x.shape)


def in_place(x):
    total = torch.clamp(x, 0, 1).sum()
    total += 5 * torch.randn(())
    return total


def last_bare(x):
    noisy = torch.clamp(x, 0, 1) + 5 * torch.randn_like(x)
    return torch.stack([noisy[0], x[1]])


def constant_seed(x):
    torch.manual_seed(3)
    return torch.clamp(x, 0, 1).sum() + torch.zeros(()).normal_(0, 5)


def by_distribution(x):
    return torch.clamp(x, 0, 1).sum() + torch.distributions.Laplace(0.0, 1.0).sample()


@pytest.mark.parametrize("function", [kept, in_place, by_distribution])
def test_sound_functions_are_not_accused(function):
    claim = Claim(1.0) if function is by_distribution else Claim(1.0, 1e-5)
    found = record(function, X0, X1, claim=claim, trials=0)
    assert (found.verdict, found.findings) == ("consistent", ()), str(found)


@pytest.mark.parametrize(
    "function, kind",
    [(without_clip, "sensitivity"), (last_bare, "data_dependent_output"), (constant_seed, "constant_seed")],
)
def test_faults_are_found(function, kind):
    found = record(function, X0, FAR, claim=Claim(1.0, 1e-5), trials=0)
    assert (found.verdict, kind in found.kinds) == ("violation", True), str(found)


def test_torch_is_not_imported_by_recording():
    assert "torch" not in sys.modules["dpaudit.audits.recording.torch_source"].__dict__
