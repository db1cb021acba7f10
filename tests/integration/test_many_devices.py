"""Audits on eight devices, and on two processes that are one mesh, give what one device gives, bit for bit."""

import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import dpaudit
from dpaudit import _validate, play
from dpaudit.auditing.attacks import scoring
from dpaudit.auditing.bounds import sequential
from dpaudit.mechanisms import laplace
from tests._engine import test_game
from tests.auditing.test_count import KEY, TRIALS, X0, X1, audited, noisy
from tests.interrupting import Killed, killed_at
from tests.mechanisms import test_contract
from tests.processes import said, start, together

LAST = 100_001  # odd: not one of the calls is filled

AUDITS: dict[str, dict[str, Any]] = {
    "family": {},
    "chosen": {"distinguisher": dpaudit.distinguish.projection},
    "fixed": {"distinguisher": dpaudit.distinguish.Distinguisher(lambda *_: lambda z: z[0], 0.1, "first entry")},
    "violation": {"until": sequential.violation(), "claim": dpaudit.Claim(0.9)},
    "width": {"until": sequential.width(0.1)},
}


def many(case: str, **more: Any) -> dpaudit.AuditResult:
    """Audits of a fast mechanism."""
    apply = laplace.mechanism(epsilon=1.0, clip_norm=0.5).apply
    return dpaudit.audit(apply, np.zeros(2), np.array([0.5, 0.0]), key=KEY, trials=LAST, **(AUDITS[case] | more))


def compiled(mesh: Mesh | None = None) -> str:
    """A family whose scores are a compiled program's, as those of more trials are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scoring, "HOST_PAIRS", 0)
        return many("family", mesh=mesh).to_json()


def vast(mesh: Mesh | None = None) -> list[list[float]]:
    """Scores of releases so large that one is a block, along a direction whose numbers are all one: a compiler that
    knew them would sum in another order."""
    ones = np.ones(300_000, np.float32)

    def release(key: jax.Array, world: int) -> jax.Array:
        return jax.random.normal(key, ones.shape) + world * ones

    return play(KEY, release, lambda z: (z * ones).sum(), 16, mesh=mesh).tolist()


def weighed(mesh: Mesh | None = None) -> np.ndarray:
    """Scores that weigh twenty numbers: few enough for a compiler to multiply the weights out."""
    weights = np.linspace(-1, 1, 20, dtype=np.float32)

    def release(key: jax.Array, world: int) -> jax.Array:
        return jnp.asarray(jax.random.uniform(key, (20,)) < 0.5 + 0.1 * world, jnp.float32)

    return play(KEY, release, lambda z: z @ weights, 20_000, mesh=mesh)


def shipped(mesh: Mesh | None = None) -> dict[str, list[float]]:
    """Releases of every mechanism, their first numbers."""

    def of(case: test_contract.Case) -> np.ndarray:
        apply, (x0, x1) = case.make(1.0).apply, case.inputs[:2]
        return play(
            KEY, lambda key, world: apply(key, jnp.where(world, x1, x0)), lambda z: jnp.ravel(z)[0], 64, mesh=mesh
        )

    return {name: of(case).tolist() for name, case in test_contract.CASES.items()}


def game(mesh: Mesh | None = None, batch: int | None = None) -> np.ndarray:
    return play(test_game.KEY, test_game.release, test_game.score, test_game.TRIALS, mesh=mesh, batch=batch)


def eight(folder: str) -> list[Any]:
    """What eight devices find: every kind of audit, one killed on a device that they go on from."""
    devices = np.array(jax.devices())
    assert devices.shape == (8,)
    flat, grid = Mesh(devices, ("trials",)), Mesh(devices.reshape(2, 4), ("host", "chip"))
    found: list[Any] = [
        shipped(mesh=flat),
        vast(mesh=flat),
        weighed(mesh=flat).tolist(),
        game(flat, 7).tolist(),
        game(grid).tolist(),
    ]
    found += [many(case, mesh=flat).to_json() for case in AUDITS]
    found.append(many("chosen", mesh=grid, batch=5000).to_json())
    found.append(compiled(mesh=flat))
    found.append(audited("chosen", mesh=flat, checkpoint=Path(folder) / "audit.npz").to_json())
    return found


def two(folder: str) -> list[Any]:
    """What each of two processes finds; they share no file."""
    mesh = Mesh(np.array(jax.devices()), ("trials",))
    assert (mesh.size, jax.local_device_count()) == (2, 1)
    mine = Path(folder) / f"process{jax.process_index()}"
    mine.mkdir()
    file = mine / "audit.npz"
    try:
        audited("chosen", mesh=mesh, batch=1, checkpoint=file, progress=killed_at(2000))
    except Killed:
        found: list[Any] = [os.listdir(mine)]
    seen: list[int] = []
    found.append(audited("chosen", mesh=mesh, checkpoint=file, progress=seen.append).to_json())
    found.append(audited("violation", mesh=mesh, batch=100).to_json())
    found.append([many("family", mesh=mesh).to_json(), compiled(mesh=mesh)])
    found.append(seen[0])
    try:
        settings = AUDITS["chosen"] | {"mesh": mesh, "checkpoint": file}
        dpaudit.audit(noisy, X0, X1, key=jax.random.key(0), trials=TRIALS, **settings)
    except _validate.InputError as error:
        found.append(str(error))
    try:
        audited("chosen", mesh=mesh, checkpoint=mine / "absent" / "audit.npz")
    except _validate.InputError as error:
        found.append(str(error).split(", got")[0])
    scores = play(test_game.KEY, test_game.release, test_game.score, 300, mesh=mesh, checkpoint=mine / "play.npz")
    found.append(scores.tolist())
    found.append(sorted(os.listdir(mine)))
    return found


def test_eight_devices_find_what_one_finds(tmp_path):
    file = tmp_path / "audit.npz"
    with pytest.raises(Killed):
        audited("chosen", checkpoint=file, batch=1, progress=killed_at(3000))
    mechanisms, large, small, in_a_row, on_a_grid, *found = said(start(__name__, "eight", tmp_path, devices=8))
    assert mechanisms == shipped()
    assert large == vast()
    assert small == weighed().tolist()
    assert in_a_row == on_a_grid == game().tolist()
    one = [many(case).to_json() for case in AUDITS]
    assert found[: len(AUDITS)] == one
    assert found[-3] == many("chosen").to_json()
    assert found[-2] == compiled()
    assert found[-1] == audited("chosen").to_json()
    assert audited("chosen", checkpoint=file).to_json() == found[-1]  # what they have finished, one need not play


@pytest.mark.slow
def test_two_processes_find_what_one_finds(tmp_path):
    first, second = together(2, __name__, "two", tmp_path)
    assert (first[0], second[0]) == (["audit.npz"], [])  # the first process writes for both
    assert (first[-1], second[-1]) == (["audit.npz", "play.npz"], [])
    assert first[1:-1] == second[1:-1]
    chosen, violation, families, restored, foreign, folder, scores = first[1:-1]
    assert chosen == audited("chosen").to_json()
    assert violation == audited("violation").to_json()
    assert families == [many("family").to_json(), compiled()]
    assert 2000 <= restored < TRIALS
    assert foreign == "checkpoint: expected one of this audit, got audit.npz: made by another key"
    assert folder == "checkpoint: expected a file in a folder that exists"
    expected = play(test_game.KEY, test_game.release, test_game.score, 300)
    np.testing.assert_array_equal(np.array(scores, np.float32), expected)
