"""What is made once and kept: the same arrays at the next start, and nobody else's; files are whole or refused."""

import dataclasses
import errno
import functools
import os
import types
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpaudit
from dpaudit import InputError
from dpaudit._engine.checkpoint import Checkpoint
from dpaudit._engine.fingerprint import of_function


def test_what_is_kept_is_not_made_again_and_comes_back_as_it_was(tmp_path):
    made = []

    def make():
        made.append(None)
        return {"w": jnp.arange(6.0).reshape(2, 3), "rest": (jnp.int32(len(made)), [jnp.ones(2), jnp.zeros(2)])}

    def start():
        return Checkpoint(tmp_path / "kept.npz", {"key": "one"}, False).made_once(make)

    first, again = start(), start()
    assert first["rest"][0] == again["rest"][0] == 1
    np.testing.assert_array_equal(first["w"], again["w"])
    np.testing.assert_array_equal(np.array(first["rest"][1]), np.array(again["rest"][1]))
    with pytest.raises(InputError, match="made by another key"):
        Checkpoint(tmp_path / "kept.npz", {"key": "two"}, False).made_once(make)


def test_of_a_symbolic_link_the_file_that_it_names_is_replaced(tmp_path):
    store = tmp_path / "store"
    store.mkdir()
    link = tmp_path / "kept.npz"
    link.symlink_to(store / "first.npz")
    saved = Checkpoint(link, {"key": "one"}, False)
    for number in (1.0, 2.0):  # the first makes the file, the second replaces it
        saved.save(number=np.array(number))
        assert link.is_symlink()
        assert Checkpoint(store / "first.npz", {"key": "one"}, False).restore() == {"number": number}
    assert [file.name for file in store.iterdir()] == ["first.npz"]


def test_a_file_of_other_arrays_is_no_checkpoint(tmp_path):
    np.savez(tmp_path / "scores.npz", scores0=np.ones(3))
    with pytest.raises(InputError, match=r"^checkpoint: expected a checkpoint of dpaudit, got scores\.npz, which is "):
        Checkpoint(tmp_path / "scores.npz", {"key": "one"}, False).restore()


def test_two_processes_that_write_one_file_leave_a_whole_one(tmp_path, monkeypatch):
    file, sync = Checkpoint(tmp_path / "kept.npz", {"key": "one"}, False), os.fsync

    def meanwhile(descriptor: int) -> None:
        monkeypatch.setattr(os, "fsync", sync)
        file.save(counts=np.zeros(7))  # as another process would
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", meanwhile)
    file.save(counts=np.arange(3))
    found = file.restore()
    assert found is not None
    np.testing.assert_array_equal(found["counts"], np.arange(3))
    assert os.listdir(tmp_path) == ["kept.npz"]


def test_a_file_that_cannot_be_written_is_one_line_and_the_old_one_stays(tmp_path, monkeypatch):
    file = Checkpoint(tmp_path / "kept.npz", {"key": "one"}, False)
    file.save(counts=np.zeros(7))

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"^checkpoint: expected a file that can be written, got No space left on "):
        file.save(counts=np.arange(3))
    found = file.restore()
    assert found is not None
    np.testing.assert_array_equal(found["counts"], np.zeros(7))
    assert os.listdir(tmp_path) == ["kept.npz"]


def test_a_file_that_cannot_be_made_is_refused_before_anything_is_played():
    """For root, too, no file can be made in /proc."""
    wanted = r"^checkpoint: expected a file in a folder that can be written, got /proc/kept\.npz$"
    with pytest.raises(InputError, match=wanted):
        Checkpoint(Path("/proc/kept.npz"), {}, False).made_once(lambda: pytest.fail("played"))


def test_a_folder_in_place_of_the_file_is_refused_before_anything_is_played(tmp_path):
    with pytest.raises(InputError, match=r"^checkpoint: expected a file that can be read, got "):
        dpaudit.play(jax.random.key(0), lambda key, world: world, jnp.float32, 3, checkpoint=tmp_path)


def called(scale, power: float = 1.0):
    """A release whose noise is made by a function on the host."""

    def noise(words: np.ndarray) -> Any:
        return np.float32(np.random.default_rng(np.ravel(words)).laplace() * scale) ** power

    def release(key: jax.Array, world: int) -> jax.Array:
        words, shape = jax.random.key_data(key), jax.ShapeDtypeStruct((), jnp.float32)
        return world + jax.pure_callback(noise, shape, words, vmap_method="sequential")

    return release


@pytest.mark.parametrize("other", [called(0.2), called(1.0, power=3.0), called(np.ones(2)[:1])])
def test_a_game_does_not_go_on_with_another_function_on_the_host(tmp_path, other):
    def scores(release):
        return dpaudit.play(jax.random.key(0), release, lambda seen: seen, 8, checkpoint=tmp_path / "game")

    first = scores(called(1.0))
    np.testing.assert_array_equal(scores(called(1.0)), first)
    with pytest.raises(InputError, match="made by another mechanism or pair of inputs"):
        scores(other)


def test_a_function_is_known_in_another_process_and_by_the_functions_inside_it():
    code = (lambda x: x).__code__
    orders = frozenset((0, 8)), frozenset((8, 0))  # sets of strings have another order in every process
    one, other = (
        types.FunctionType(code.replace(co_consts=(*code.co_consts, order)), {}, "one", (), ()) for order in orders
    )
    assert repr(orders[0]) != repr(orders[1])
    assert of_function(one) == of_function(other) != of_function(lambda x: x)

    def half(rng, x):
        return (lambda noise: x + noise / 2)(rng.laplace())

    def third(rng, x):
        return (lambda noise: x + noise / 3)(rng.laplace())

    assert of_function(half) != of_function(third)


SCALE, SETTINGS = 1.0, {"scale": [1.0]}


@dataclasses.dataclass(frozen=True)
class Setting:
    scale: float


class Releases:
    """A mechanism with a state, as a callable object and as a method."""

    def __init__(self, scale: float) -> None:
        self.setting = Setting(scale)

    def __call__(self, rng, x):
        return x + rng.laplace(0, self.setting.scale)

    def release(self, rng, x):
        return self(rng, x)


def scaled(rng, x, *, scale: float = 1.0):
    return x + rng.laplace(0, scale)


def by_keyword(scale: float):
    def release(rng, x, *, scale=scale):
        return scaled(rng, x, scale=scale)

    return release


def named(rng, x):
    return helper(rng, x) + rng.laplace(0, SETTINGS["scale"][0])


def helper(rng, x):
    return x + rng.laplace(0, SCALE)


@pytest.mark.parametrize(
    "of",
    [
        lambda scale: functools.partial(scaled, scale=scale),
        lambda scale: by_keyword(scale),
        lambda scale: Releases(scale),
        lambda scale: Releases(scale).release,
        lambda scale: functools.cache(by_keyword(scale)),
        lambda scale: dpaudit.on_host(Releases(scale)),
    ],
)
def test_a_function_is_known_by_the_values_that_it_holds(of):
    assert of_function(of(1.0)) == of_function(of(1.0)) != of_function(of(0.5))


@pytest.mark.parametrize("name, other", [("SCALE", 0.5), ("SETTINGS", {"scale": [0.5]}), ("helper", scaled)])
def test_a_function_is_known_by_what_it_names_in_its_module(monkeypatch, name, other):
    before = of_function(named)
    assert of_function(named) == before
    monkeypatch.setitem(globals(), name, other)
    assert of_function(named) != before
