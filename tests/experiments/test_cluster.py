"""The examples for clusters: shells and parsers take them, and so do the commands that they start."""

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dpaudit.cli import main, secure
from experiments.paper002 import run as clip_size

FOLDER = Path(__file__).parents[2] / "experiments" / "cluster"
SCRIPTS = sorted(FOLDER.glob("*.sbatch"))


def accepted(words: list[str]) -> Any:
    """What the command's own parser makes of its words."""
    if words[0] == "dpaudit":
        return main.parsed(words[1:])
    assert words[:3] == ["python", "-m", "experiments.clip_size"]
    return clip_size.arguments(words[3:])


def test_the_scripts_are_there():
    assert [script.name for script in SCRIPTS] == ["array.sbatch", "nodes.sbatch", "secure.sbatch"]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_script_starts_a_command_that_is_taken(script):
    assert subprocess.run(["bash", "-n", script], capture_output=True, text=True).stderr == ""
    (line,) = (line for line in script.read_text().splitlines() if line.startswith("srun "))
    line = line.replace("$SLURM_ARRAY_TASK_ID", "3").replace("$SLURM_ARRAY_TASK_COUNT", "20")
    found = accepted(shlex.split(line)[1:])
    found = found.command if isinstance(found, secure.Secure) else found
    assert getattr(found, "resume", None) or getattr(found, "share", None) == "3/20"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
@pytest.mark.parametrize("status, requeued", [(0, False), (1, False), (143, True)])
def test_a_script_requeues_a_job_whose_time_is_over_and_no_other(tmp_path, script, status, requeued):
    for name, code in {"srun": f"exit {status}", "scontrol": 'echo "$@" > requeued'}.items():
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{code}\n")
        program.chmod(0o755)
    variables = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7"}
    assert subprocess.run(["bash", script], env=variables, cwd=tmp_path).returncode == status
    said = tmp_path / "requeued"
    assert (said.read_text() if said.exists() else None) == ("requeue 7\n" if requeued else None)


def test_the_job_finds_its_own_service():
    yaml = pytest.importorskip("yaml")
    service, job = yaml.safe_load_all((FOLDER / "job.yaml").read_text())
    name = service["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert (spec["completionMode"], pod["subdomain"], pod["restartPolicy"]) == ("Indexed", name, "Never")
    (container,) = pod["containers"]
    variables = {variable["name"]: variable for variable in container["env"]}
    assert variables["JAX_NUM_PROCESSES"]["value"] == str(spec["parallelism"]) == str(spec["completions"])
    assert variables["JAX_COORDINATOR_ADDRESS"]["value"].startswith(f"{job['metadata']['name']}-0.{name}:")
    assert "completion-index" in variables["JAX_PROCESS_ID"]["valueFrom"]["fieldRef"]["fieldPath"]
    (rule,) = spec["podFailurePolicy"]["rules"]
    assert rule["onExitCodes"]["containerName"] == container["name"]
    assert accepted(container["command"] + container["args"]).resume


def test_a_server_and_an_owner_agree_on_the_terms():
    yaml = pytest.importorskip("yaml")
    service, server, owner = yaml.safe_load_all((FOLDER / "secure.yaml").read_text())
    pods = [each["spec"]["template"]["spec"] for each in (server, owner)]
    (first,), (second,) = (pod["containers"] for pod in pods)
    serving, training = (accepted(each["command"] + each["args"]).command for each in (first, second))
    mine, theirs = serving.terms(serving.dimension, serving.examples), training.terms(8, 2 * training.batch_size)
    assert mine == theirs
    assert mine.openings >= training.steps
    assert serving.listen.endswith(f":{service['spec']['ports'][0]['port']}")
    assert training.servers[1].endswith(f":{service['spec']['ports'][0]['port']}")
    assert training.resume
    assert serving.state.startswith("/kept/")
    for container, pod, name in ((first, pods[0], "h2"), (second, pods[1], "anna")):
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert mounts["keys"] == f"/keys/{name}"
        assert pod["volumes"][-1]["secret"]["secretName"] == name
