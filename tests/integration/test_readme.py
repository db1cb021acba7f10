"""The README's Python runs as it stands, and says what it prints."""

import re
from pathlib import Path

import numpy as np

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def test_examples_run(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == 10
    names: dict = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert names["result"].verdict == "consistent"
    names["test_noisy_sum_keeps_its_promise"]()
    assert capsys.readouterr().out.startswith("consistent 0.")
    assert names["found"].verdict == "consistent"
    assert 3.99 < names["spent"] <= 4
    assert names["info"].loss[-1] < names["info"].loss[0]
    assert names["weights"].shape == (8, 64, 10)
    assert names["units"].norms.shape == names["digits"].labels.shape
    assert 0 < np.abs(names["params"] - names["weights"][0]).max() < 0.0101
    assert names["updates"]["w"].shape == (3, 2)
    assert names["risk"].estimate.value > names["risk"].honest.epsilon_lower
    assert names["seen"].loss[-1] < 0.9 * names["seen"].loss[0]
    assert names["release"]["w"].shape == (3, 2)
    assert 4.9 < names["transcript"].epsilon(delta=1e-5) < 5
    stars, mean = names["held_out"].values, names["train"].values.mean()
    assert names["metrics"].rmse(names["model"], names["own"], names["held_out"]) < 0.8 * np.sqrt(
        np.mean((stars - mean) ** 2)
    )


def test_links_lead_somewhere():
    root = Path(__file__).parents[2]
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (root / link).exists()] == []
