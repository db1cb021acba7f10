"""Runs docs/howto/secure.md as it stands: keys, two server processes, and an owner's program for each owner."""

import contextlib
import shlex
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dpaudit.cli import main
from tests.test_docs import ROOT, blocks

pytestmark = pytest.mark.integration
SERVERS = ("127.0.0.1:7001", "127.0.0.1:7002")  # on the page; a machine may need them for something else


def free() -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"127.0.0.1:{taken.getsockname()[1]}"


def test_two_servers_and_two_owners(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    free_ones = dict(zip(SERVERS, (free(), free()), strict=True))

    def here(text: str) -> str:
        for printed, own in free_ones.items():
            text = text.replace(printed, own)
        return text

    found = blocks(ROOT / "docs/howto/secure.md")
    commands = [shlex.split(here(block.text).replace("\\\n", " ")) for block in found if block.language == "sh"]
    (program,) = (here(block.text) for block in found if block.title == "owner")
    started = [[sys.executable, "-m", *words] for words in commands if words[2] in ("keys", "server")]
    with contextlib.ExitStack() as stack:
        subprocess.run(started[0], check=True, capture_output=True)
        for command in started[1:]:
            server = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            stack.callback(server.terminate)
            assert server.stdout is not None
            assert server.stdout.readline()  # it says that it listens

        def own(name: str, sign: float) -> dict:
            names = {"clipped": np.full((15, 182), sign / np.sqrt(182))}
            exec(program.replace('"keys/anna"', f'"keys/{name}"').replace('name="anna"', f'name="{name}"')
                 .replace('Owner("anna"', f'Owner("{name}"'), names)  # fmt: skip
            return names

        with ThreadPoolExecutor() as pool:
            anna, bert = pool.map(own, ("anna", "bert"), (1.0, 1.0))
    np.testing.assert_array_equal(anna["total"], bert["total"])
    assert 0 < anna["anna"].epsilon < 8
    # noise of 4 clip norms in each of 182 coordinates; the mean is known to within 4/sqrt(182)
    assert abs(anna["total"].mean() - 30 / np.sqrt(182)) < 5 * 4 / np.sqrt(182)
    assert 2 < anna["total"].std() < 8


def test_the_training_of_the_page(tmp_path):
    found = blocks(ROOT / "docs/howto/secure.md")
    (file,) = (block for block in found if block.title == "mine.py")
    (tmp_path / file.title).write_text(file.text)
    (first, *_) = (block.text for block in found if block.text.startswith("dpaudit secure train"))
    words = shlex.split(first.replace("--steps 100", "--steps 5"))
    done = subprocess.run([sys.executable, "-m", *words], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (real,) = (block.text for block in found if "--resume" not in block.text and "--servers" in block.text)
    training = main.parsed(shlex.split(real.replace("\\\n", " "))[1:]).command
    assert training.terms(8, 20).openings >= training.steps
    assert "5 of 5" in done.stdout
    assert (tmp_path / "out" / "report.html").exists()
