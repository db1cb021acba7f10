"""The picture of a round says what the protocol says."""

import dp_accounting
import jax

from dpaudit.personalization.boundary import processes
from dpaudit.personalization.boundary.aggregator import run
from dpaudit.personalization.boundary.messages import terms
from dpaudit.report import figures, words
from dpaudit.report.boundary_figure import round_figure
from tests.personalization.rounds import PROTOCOL, start, users


def texts(figure):
    (axes,) = figure.axes
    return [text.get_text() for text in axes.texts] + [axes.get_title(loc="left")]


def test_names_shapes_bytes_and_events_are_there(tmp_path):
    state, memory = start()
    _, _, transcript = run(jax.random.key(0), PROTOCOL, state, memory, users(12), rounds=3)
    figure = round_figure(terms(PROTOCOL, state, memory, users(12)), transcript, delta=1e-5)
    told = texts(figure)
    for text in (
        "model\nfloat32 [40, 3], 480 B",
        "request\nint32 [5], 20 B",
        "slice\nfloat32 [5, 3], 60 B",
        "message\nint32 [5], float32 [5, 3], 80 B",
        "sums\nfloat32 [40, 3], 480 B\nGaussian noise, multiplier 2",
        "counts\nfloat32 [40], 160 B\nGaussian noise, multiplier 4",
    ):
        assert text in told
    spent = words.at_most(transcript.epsilon(1e-5))
    assert told[-1] == f"6 releases crossed; one user added or removed: ε = {spent} at δ = 1e-05"
    figures.save_png(figure, tmp_path / "round.png")
    assert (tmp_path / "round.png").stat().st_size > 10_000


def test_devices_of_which_nothing_is_said_and_secret_samples():
    state, memory = start()
    sampled = processes.poisson_gaussian("sampled", rate=0.25, noise_multiplier=3.0)

    def sampling(key, total, memory):
        made, after = sampled.release(key, total[0], memory, sensitivity=1.0)
        return (made,), after

    protocol = PROTOCOL._replace(devices=lambda *given: PROTOCOL.devices(*given), release=sampling)
    agreed = terms(protocol, state, sampled.init(state[0]), users(12))
    _, _, transcript = run(jax.random.key(0), PROTOCOL, state, memory, users(12), rounds=3)
    told = texts(round_figure(agreed, transcript, delta=1e-5))
    assert "contributions, of which only the sum is kept" in told
    assert not any(text.startswith(("request", "slice", "message")) for text in told)
    assert not any(" times " in text for text in told)
    assert any("of a secret sample, rate 0.25:\nGaussian noise, multiplier 3" in text for text in told)


def test_a_release_that_costs_as_much_as_several_says_how_many():
    state, memory = start()
    three = processes.gaussian("three", noise_multiplier=5.0)
    three = three._replace(
        event=lambda n: dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(5.0), 3 * n)
    )

    def release(key, total, memory):
        made, after = three.release(key, total[0], memory, sensitivity=1.0)
        return (made,), after

    agreed = terms(PROTOCOL._replace(release=release), state, three.init(state[0]), users(12))
    _, _, transcript = run(jax.random.key(0), PROTOCOL, state, memory, users(12), rounds=3)
    told = texts(round_figure(agreed, transcript, delta=1e-5))
    assert any(text.endswith("\n3 times Gaussian noise, multiplier 5") for text in told)
