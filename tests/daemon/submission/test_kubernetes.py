"""Manifests for Kubernetes, as two YAML parsers read them."""

import json
import re
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from ruamel.yaml import YAML

from autotune.clock import VirtualClock
from autotune.commands.worker_submission import submit_workers
from autotune.errors import ConfigError
from tests.daemon.submission.conftest import Request

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")  # RFC 1123


def printed(request_of: Request, capsys: pytest.CaptureFixture[str], **changes: Any) -> dict[str, Any]:
    """Return a manifest, parsed; both parsers read the same in it."""
    request = request_of("kubernetes", **{"image": "lab/trainer:1", **changes})
    assert submit_workers(request, VirtualClock()) == 0
    text = capsys.readouterr().out
    document: dict[str, Any] = yaml.safe_load(text)
    assert document == json.loads(json.dumps(YAML(typ="safe", pure=True).load(text)))
    return document


def test_a_job_has_the_fields_of_the_api(request_of: Request, capsys: pytest.CaptureFixture[str]) -> None:
    """An Indexed Job of n pods, each tried again by itself, with time to give its trial back."""
    document = printed(request_of, capsys, count=4, budget_s=3600.0, seed=7)
    spec = document["spec"]
    pod = spec["template"]["spec"]
    assert (document["apiVersion"], document["kind"], spec["completionMode"]) == ("batch/v1", "Job", "Indexed")
    assert (spec["completions"], spec["parallelism"], spec["backoffLimitPerIndex"]) == (4, 4, 2)
    assert (pod["restartPolicy"], pod["terminationGracePeriodSeconds"]) == ("Never", 30)
    (container,) = pod["containers"]
    assert container["image"] == "lab/trainer:1"
    assert container["command"] == [
        *("autotune", "worker", "--config", "my config.yaml", "--budget", "3600s", "--seed", "7$(JOB_COMPLETION_INDEX)")
    ]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": "1"}}
    name = document["metadata"]["name"]
    assert LABEL.fullmatch(f"{name}-999"), "pods have the Job's name and their index as host name"


def test_the_address_comes_from_a_secret(
    request_of: Request, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the environment says here, nothing of it is in the manifest."""
    monkeypatch.setenv("AUTOTUNE_STORAGE", "postgresql://me:hidden@db.lab/studies")
    document = printed(request_of, capsys, secret="lab-studies")
    (variable,) = document["spec"]["template"]["spec"]["containers"][0]["env"]
    assert variable == {
        "name": "AUTOTUNE_STORAGE",
        "valueFrom": {"secretKeyRef": {"name": "lab-studies", "key": "url"}},
    }
    assert "hidden" not in json.dumps(document)


def expanded(word: str) -> str:
    """Return what Kubernetes makes of a word of a command: ``$$`` is a dollar, ``$(NAME)`` a variable."""
    return re.sub(r"\$(\$|\((\w+)\))", lambda match: "$" if match[1] == "$" else f"the variable {match[2]}", word)


@pytest.mark.parametrize(
    "name", ["a: b # c", "quo'te\"s\\", "$(HOME)", "$$(HOME) $$ $x", "ünï\u2028\x85\x7f😀", "new\nline", "yes"]
)
def test_no_name_breaks_the_manifest(
    name: str, request_of: Request, capsys: pytest.CaptureFixture[str], project: Any
) -> None:
    """What is typed reaches the worker as it is; Kubernetes expands no variable in it."""
    config = project / f"{name}.yaml"
    config.write_text((project / "my config.yaml").read_text())
    (container,) = printed(request_of, capsys, config=config.relative_to(project), image=name)["spec"]["template"][
        "spec"
    ]["containers"]
    assert container["image"] == name
    assert expanded(container["command"][3]) == f"{name}.yaml"


THEIRS = """
apiVersion: batch/v1
kind: Job
metadata: {name: train-xtts, namespace: speech, uid: abc, labels: {team: speech}, annotations: {queue: night}}
spec:
  ttlSecondsAfterFinished: 600
  template:
    metadata: {labels: {team: speech}}
    spec:
      restartPolicy: OnFailure
      serviceAccountName: trainer
      tolerations: [{key: gpu, operator: Exists}]
      volumes: [{name: shm, emptyDir: {medium: Memory, sizeLimit: 8Gi}}]
      containers:
        - name: trainer
          image: registry.lab/xtts:7
          command: [python, train.py]
          args: [--epochs, "3"]
          env: [{name: HF_HOME, value: /cache}, {name: AUTOTUNE_STORAGE, value: postgresql://old}]
          resources: {requests: {cpu: "8"}, limits: {nvidia.com/gpu: "1"}}
          volumeMounts: [{name: shm, mountPath: /dev/shm}]
"""


@pytest.mark.parametrize("kind", ["Job", "Pod", "PodTemplate"])
def test_a_template_of_ones_own_stays_as_it_is(
    request_of: Request, capsys: pytest.CaptureFixture[str], tmp_path: Path, kind: str
) -> None:
    """It gets the command, the address of the storage, labels and the number of workers, and nothing else."""
    theirs = yaml.safe_load(THEIRS)
    pod = theirs["spec"]["template"]
    whole = {"Job": theirs, "Pod": {**theirs, "spec": pod["spec"]}, "PodTemplate": {**theirs, "template": pod}}[kind]
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({**whole, "kind": kind}))
    request = request_of("kubernetes", template=tmp_path / "job.yaml", count=3)
    assert submit_workers(request, VirtualClock()) == 0
    job = yaml.safe_load(capsys.readouterr().out)
    ours, made = job["spec"]["template"]["spec"], job["spec"]["template"]["spec"]["containers"][0]
    before = pod["spec"]["containers"][0]
    assert made["command"][:2] == ["autotune", "worker"]
    assert "args" not in made
    assert [one["name"] for one in made["env"]] == ["HF_HOME", "AUTOTUNE_STORAGE"]
    assert "secretKeyRef" in made["env"][1]["valueFrom"]
    assert {name: made[name] for name in ("name", "image", "resources", "volumeMounts")} == {
        name: before[name] for name in ("name", "image", "resources", "volumeMounts")
    }
    assert {name: ours[name] for name in ("serviceAccountName", "tolerations", "volumes")} == {
        name: pod["spec"][name] for name in ("serviceAccountName", "tolerations", "volumes")
    }
    assert (ours["restartPolicy"], job["spec"]["completions"], job["kind"]) == ("Never", 3, "Job")
    assert job["metadata"].keys() == {"namespace", "labels", "annotations", "name"}
    assert job["metadata"]["name"].startswith("autotune-")
    assert job["metadata"]["labels"]["team"] == "speech"
    assert job["spec"].get("ttlSecondsAfterFinished") == (600 if kind == "Job" else None)


def test_what_pods_cannot_use_is_refused(request_of: Request) -> None:
    """A folder of journals, no image, words that mean nothing here, a Secret by a name that none has."""
    with pytest.raises(ConfigError, match="need a database"):
        submit_workers(request_of("kubernetes", image="x", storage="journal:studies"), VirtualClock())
    with pytest.raises(ConfigError, match="no name of a Secret"):
        submit_workers(request_of("kubernetes", image="x", secret="a\nb"), VirtualClock())
    for wrong in (request_of("kubernetes"), request_of("kubernetes", "word", image="x"), request_of("slurm", gpus=1)):
        with pytest.raises(click.UsageError):
            submit_workers(wrong, VirtualClock())
