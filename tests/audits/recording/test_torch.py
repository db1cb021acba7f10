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


def assigned(y, x):
    y[0] = x[0]


def by_row(y, x):
    row = y[:1]
    row.copy_(x[:1])


def through_data(y, x):
    y.data[1] = x[1]


WRITES = {
    "assigned": assigned,
    "copy_": lambda y, x: y.copy_(x),
    "fill_": lambda y, x: y.fill_(float(x[0])),
    "index_add_": lambda y, x: y.index_add_(0, torch.tensor([0]), x[:1]),
    "a view": lambda y, x: assigned(y.view(2), x),
    "a row": by_row,
    "data": through_data,
}


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("x0, x1", [(X0, 1 - X0), (torch.zeros(2), X0), (X0, torch.zeros(2))])
def test_data_that_is_written_into_a_release_is_found(name, x0, x1):
    def function(x):
        released = x + torch.distributions.Laplace(0.0, 1.0).sample((2,))
        WRITES[name](released, x)
        return released

    found = record(function, x0, x1, claim=Claim(2.0), trials=0)
    assert found.kinds == {"data_dependent_output"}, str(found)


@pytest.mark.parametrize(
    "write", [lambda y: y.clamp_(0, 1), lambda y: y.relu_(), lambda y: y.zero_(), lambda y: y.view(2).mul_(2)]
)
def test_what_is_computed_in_place_of_a_release_alone_is_no_leak(write):
    def function(x):
        released = x + torch.distributions.Laplace(0.0, 1.0).sample((2,))
        write(released)
        return released

    found = record(function, X0, 1 - X0, claim=Claim(2.0), trials=0)
    assert (found.verdict, found.findings) == ("consistent", ()), str(found)


def test_torch_is_not_imported_by_recording():
    assert "torch" not in sys.modules["dpaudit.audits.recording.torch_source"].__dict__
