"""The prepared run on a GPU: its time limits, its report whatever happens, and what each part takes to pass."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.evidence import parts as judges
from tests.gpu.evidence.driver import PARTS, PREPARING_S, RUN_S, STOPPING_S, Part, Run
from tests.gpu.evidence.environment import Environment
from tests.gpu.evidence.notes import Criterion
from tests.gpu.evidence.pack import MOST_BYTES, ROOT, PackError, make_environment, make_pack, portable_size
from tests.until import DEADLINE_S, until

FRAMEWORKS = ROOT / "build" / "frameworks" / "bin" / "python"
COMMAND = ROOT / "scripts" / "gpu-evidence"

needs_torch = pytest.mark.skipif(
    not FRAMEWORKS.exists(), reason="PyTorch is not installed; scripts/setup --frameworks installs it"
)


def stub(name: str, limit_s: float = 60.0) -> Part:
    """Return a part of stub_parts.py."""
    return Part(name=name, limit_s=limit_s, demonstrates=f"that it {name}", module="tests.gpu.stub_parts")


def results(report: Path) -> dict[str, str]:
    """Return the result of each part by the report, which has to be valid: each part has its row and its section."""
    text = report.read_text()
    outside = re.sub(r"^(`{3,})\n.*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)  # of screens
    rows = re.findall(r"^\| ([\w ]+) \| \d+ \| [\d.]* \| ([^|]+) \|", outside, re.MULTILINE)
    heads = re.findall(r"^## (.+)$", outside, re.MULTILINE)
    assert heads == [name.capitalize() for name, _ in rows]
    assert len(re.findall(r"^`{3,}$", text, re.MULTILINE)) % 2 == 0
    return {name: result.strip() for name, result in rows}


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., tuple[int, Path]]:
    """Make a run of stubs, in an environment that is there; return its exit status and its report."""

    def make(*parts: Part, **options: Any) -> tuple[int, Path]:
        work = tmp_path / "work"
        work.mkdir()
        made = Run(
            out=tmp_path / "out",
            work=work,
            is_fake=True,
            parts=parts,
            environment=Environment(python=sys.executable, env={}, gpu="fake GPU", facts={"driver": "none"}),
            **{"began_s": time.monotonic(), **options},
        )
        return made.make(), made.file

    return make


def test_the_parts_fit_into_the_run() -> None:
    """All limits together, with the preparation, are within eight minutes; each leaves a part time to end in order."""
    assert PREPARING_S + sum(part.limit_s for part in PARTS) <= RUN_S == 480
    limits = {"check": 40, "starved": 150, "precision": 110, "memory limit": 60, "stalls": 60, "neighbours": 30}
    assert {part.name: part.limit_s for part in PARTS} == limits
    assert judges.PARTS.keys() == limits.keys()
    assert all(part.limit_s > 3 * STOPPING_S for part in PARTS)


def test_only_a_run_whose_every_part_passed_ends_with_0(run: Callable[..., tuple[int, Path]]) -> None:
    """All pass: 0, with criteria and figures in the report."""
    code, report = run(stub("good"), stub("good too"))
    assert code == 0
    assert results(report) == {"good": "passed", "good too": "passed"}
    assert "| it is good | yes | good |" in report.read_text()


def test_a_part_that_fails_leaves_the_others_their_turn(run: Callable[..., tuple[int, Path]]) -> None:
    """A criterion that is not met, and a crash, whose stack is in the report, make 1; what comes after is run."""
    code, report = run(stub("bad"), stub("crashes"), stub("good"))
    assert code == 1
    found = results(report)
    assert found == {"bad": "failed: 1 of 1 criteria not met", "crashes": "failed: ended with 1", "good": "passed"}
    assert "RuntimeError: a fault of the part" in report.read_text()


def test_a_part_that_was_not_chosen_has_not_passed(run: Callable[..., tuple[int, Path]]) -> None:
    """A run of some parts is no whole one."""
    code, report = run(stub("good"), stub("bad"), chosen=["good"])
    assert code == 1
    assert results(report) == {"good": "passed", "bad": "not run: not chosen"}


def test_a_part_is_stopped_at_its_limit_with_all_its_processes(
    run: Callable[..., tuple[int, Path]], tmp_path: Path
) -> None:
    """Also where it ignores SIGTERM and has a child that does; what it had found by then is in the report."""
    code, report = run(stub("hangs", limit_s=STOPPING_S + 5.0), stub("good"))
    assert code == 1
    assert results(report) == {"hangs": "stopped at its time limit", "good": "passed"}
    assert "it hangs now" in report.read_text()
    pid = int((tmp_path / "work" / "hangs" / "pids").read_text())
    until(lambda: is_gone(pid), "a process of the part is left")


def test_no_part_begins_that_the_run_has_no_time_for(run: Callable[..., tuple[int, Path]]) -> None:
    """The limit of the whole run goes before those of its parts."""
    code, report = run(stub("good"), began_s=time.monotonic() - RUN_S + STOPPING_S)
    assert code == 1
    assert results(report) == {"good": "not run: the run has no time left"}


_DRIVER = """
import sys, time
from pathlib import Path
from tests.gpu.evidence.driver import Part, Run
from tests.gpu.evidence.environment import Environment
environment = Environment(python=sys.executable, env={}, gpu="fake GPU", facts={})
parts = [Part(name=n, limit_s=100, demonstrates=n, module="tests.gpu.stub_parts") for n in ("good", "hangs", "bad")]
folder = Path(sys.argv[1])
how = {"is_fake": True, "parts": parts, "environment": environment, "began_s": time.monotonic()}
sys.exit(Run(out=folder, work=folder, **how).make())
"""


@pytest.mark.parametrize(
    ("number", "status", "result"),
    [
        (signal.SIGINT, 130, "interrupted"),
        (signal.SIGTERM, 143, "interrupted"),
        (signal.SIGKILL, -9, "running when this was written"),
    ],
)
def test_an_interrupted_run_leaves_a_valid_report(tmp_path: Path, number: int, status: int, result: str) -> None:
    """What has passed, what was interrupted and what was not run; no process is left, even after SIGKILL."""
    driver = subprocess.Popen([sys.executable, "-c", _DRIVER, str(tmp_path)], cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        pids = tmp_path / "hangs" / "pids"
        until(lambda: pids.exists() and pids.read_text().endswith("\n"), "the part does not begin")
        driver.send_signal(number)
        assert driver.wait(timeout=DEADLINE_S) == status
    finally:
        driver.kill()
        driver.wait()
    (report,) = tmp_path.glob("*.md")
    assert results(report) == {"good": "passed", "hangs": result, "bad": "not run"}
    until(lambda: is_gone(int(pids.read_text())), "a process of the part is left")


def is_gone(pid: int) -> bool:
    """Return whether a process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@needs_torch
def test_the_run_itself_is_interrupted_in_its_first_part(tmp_path: Path, nvml_library: Path) -> None:
    """The real command on the fake GPU, ended with ^C once its first part is at work."""
    out = tmp_path / "out"
    command = [str(COMMAND), "--fake", "--out", str(out), "--parts", "check,starved"]
    env = {**os.environ, "PYTHON": str(FRAMEWORKS)}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("check ")
            process.send_signal(signal.SIGINT)
            printed, _ = process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()
    assert process.returncode == 130
    (report,) = out.glob("*-fake-gpu.md")
    assert printed.splitlines()[-1] == str(report)
    found = results(report)
    assert found["check"] == "interrupted"
    assert found["starved"] == "not run"
    assert set(found.values()) == {"interrupted", "not run", "not run: not chosen"}
    assert "**A fake GPU**" in report.read_text()


@pytest.mark.services
@pytest.mark.timeout(600)
@needs_torch
def test_the_whole_run_on_the_fake_gpu(tmp_path: Path, nvml_library: Path) -> None:
    """All parts, with shorter budgets: each comes to its end within its limit, and says what it takes to pass."""
    command = [str(COMMAND), "--fake", "--scale", "0.6", "--out", str(tmp_path)]
    env = {**os.environ, "PYTHON": str(FRAMEWORKS)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=RUN_S, check=False)
    (report,) = tmp_path.glob("*-fake-gpu.md")
    found = results(report)
    assert list(found) == [part.name for part in PARTS], done.stderr
    assert all(result.startswith(("passed", "failed: ")) for result in found.values()), found
    for name in ("check", "memory limit", "neighbours"):
        assert found[name] == "passed", report.read_text()


# What it takes to pass: a criterion that is not met, for each that there is.


def unmet(criteria: Sequence[Criterion]) -> list[str]:
    """Return the criteria that are not met."""
    return [one.text for one in criteria if not one.passed]


def side(utilization: float | None, verdict: str = "cyclic", **values: object) -> dict[str, Any]:
    """Return a side of an answer."""
    device = {"utilization": utilization, "verdict": verdict, "text": "2-40 % cyclic", "period_s": 0.6}
    return {"values": values, "gpus": {"devices": [device]}, "metrics": {"samples_per_s": 100.0}}


BETTER = {
    "verdict": "better",
    "speedup": {"ratio": 3.0, "low": 2.5, "high": 3.6},
    "baseline": side(0.15),
    "best": side(0.8, "flat"),
}


@pytest.mark.parametrize(
    ("changed", "failing"),
    [
        ({}, []),
        ({"verdict": "no_change"}, ["confirms something better"]),
        ({"speedup": {"ratio": 1.1, "low": 1.01, "high": 1.2}}, ["confirms something better"]),
        ({"baseline": side(0.6)}, ["2 to 40 %"]),
        ({"baseline": side(None)}, ["2 to 40 %", "used more"]),
        ({"baseline": side(0.15, "flat")}, ["oscillates"]),
        ({"best": side(0.1)}, ["used more"]),
        ({"best": None}, ["used more"]),
    ],
)
def test_a_starved_gpu(changed: Mapping[str, Any], failing: list[str]) -> None:
    """A confirmed answer, utilization before and after, and that it oscillates."""
    found = unmet(judges.judge_starved({**BETTER, **changed}))
    assert len(found) == len(failing)
    assert all(words in text for words, text in zip(failing, found, strict=True))


@pytest.mark.parametrize(
    ("after", "is_met"), [(300.0, True), (240.0, True), (376.0, True), (235.0, False), (380.0, False)]
)
def test_a_claim_is_what_plain_training_gains(after: float, is_met: bool) -> None:
    """Within the interval of 2.5 to 3.6, give or take 5 %."""
    assert (unmet(judges.judge_claim(BETTER, 100.0, after)) == []) is is_met
    assert unmet(judges.judge_claim(BETTER, 0.0, after)) != []


PLAN = """\
training.bf16     false   false, true   precision       compute in bfloat16 where that is safe
training.tf32     false   false, true   precision       multiply float32 matrices in TF32
training.compile  false   false, true   same training   compile the model with torch.compile
"""


def test_labels_are_those_of_the_plan_and_the_answer() -> None:
    """A wrong label in either, or a knob that is missing, is not met."""
    changes = [{"path": "training.bf16", "label": "precision"}]
    assert unmet(judges.judge_labels(PLAN, {"changes": changes})) == []
    assert len(unmet(judges.judge_labels(PLAN, {"changes": [{**changes[0], "label": "unknown"}]}))) == 1
    assert len(unmet(judges.judge_labels(PLAN.replace("same training", "precision"), {}))) == 1
    assert len(unmet(judges.judge_labels("\n".join(PLAN.splitlines()[1:]), {}))) == 1


def tried(ending: str = "stopped", *, measured: bool = True, number: int = 0, **values: Any) -> dict[str, Any]:
    """Return a trial."""
    paths = {f"training.{name}": value for name, value in values.items()}
    return {
        "number": number,
        "point": str(paths),
        "values": paths,
        "ending": ending,
        "validity": "good",
        "detail": "",
        "measurement": {"samples_per_s": 100.0} if measured else None,
    }


def test_precision_is_tried_beside_an_answer_that_leaves_the_training_unchanged() -> None:
    """Both precisions measured, no trial lost to compilation, and the same-training answer."""
    trials = [tried(bf16=True, tf32=False), tried(bf16=False, tf32=True), tried(compile=True)]
    plain = {"training.bf16": False, "training.compile": False}
    answer = {
        "verdict": "better",
        "baseline": {"values": plain},
        "same_training": {"values": {**plain, "training.compile": True}, "speedup": 1.2},
    }
    assert unmet(judges.judge_precision(answer, trials)) == []
    assert len(unmet(judges.judge_precision(answer, trials[1:]))) == 1
    assert (
        len(unmet(judges.judge_precision(answer, [*trials, tried("never started", measured=False, compile=True)]))) == 1
    )
    assert len(unmet(judges.judge_precision({**answer, "same_training": None}, trials))) == 1
    slower = {"values": plain, "metrics": {"samples_per_s": 100.0}}
    assert unmet(judges.judge_precision({**answer, "same_training": None, "baseline": slower}, trials)) == []
    assert unmet(judges.judge_precision({"verdict": "no_change"}, trials)) == []
    other = {"values": {**plain, "training.bf16": True}, "speedup": 2.0}
    assert len(unmet(judges.judge_precision({**answer, "same_training": other}, trials))) == 1


@pytest.mark.parametrize(
    ("trials", "failing"),
    [
        ([(32, "stopped"), (128, "out of GPU memory"), (64, "stopped")], []),
        ([(32, "stopped"), (128, "out of GPU memory"), (64, "out of GPU memory")], []),
        ([(32, "stopped"), (128, "out of GPU memory"), (256, "out of GPU memory")], ["no batch of that size"]),
        ([(32, "stopped"), (128, "out of GPU memory"), (128, "stopped")], ["no batch of that size"]),
        ([(32, "stopped"), (64, "stopped")], ["is reported as", "a smaller batch", "no batch of that size"]),
        ([(32, "stopped"), (128, "crashed")], ["is reported as", "a smaller batch", "no batch of that size"]),
        ([(128, "out of GPU memory")], ["a smaller batch"]),
    ],
)
def test_a_batch_that_does_not_fit(trials: list[tuple[int, str]], failing: list[str]) -> None:
    """Named, told from smaller ones that fit, and nothing as large is tried after it."""
    endings = [ending for _, ending in trials]
    answer = {"outcomes": {ending: endings.count(ending) for ending in endings}}
    records = [tried(ending, batch_size=batch) for batch, ending in trials]
    found = unmet(judges.judge_memory_limit(answer, records))
    assert len(found) == len(failing)
    assert all(words in text for words, text in zip(failing, found, strict=True))


def issue(sentence: str, place: str = "", **numbers: float) -> dict[str, Any]:
    """Return an issue of a diagnosis."""
    return {"sentence": sentence, "place": place, "numbers": numbers, "recommendations": []}


@pytest.mark.parametrize(
    ("issues", "count"),
    [
        (
            [
                issue("train.py:29: Python waits", time_fraction=0.3),
                issue("it sleeps", "train.py:35", time_fraction=0.5),
            ],
            0,
        ),
        ([issue("train.py:29: Python waits"), issue("it sleeps", "train.py:35", time_fraction=0.5)], 1),
        (
            [
                issue("train.py:29: Python waits", time_fraction=0.3),
                issue("they come every 40 steps", time_fraction=0.5),
            ],
            1,
        ),
        ([issue("train.py:290: Python waits", time_fraction=0.3)], 2),
        ([], 2),
    ],
)
def test_both_lines_are_named_with_their_share(issues: list[dict[str, Any]], count: int) -> None:
    """The line and its share of the time: neither alone is enough."""
    diagnosis = {"checks": [{"issues": issues}]}
    assert len(unmet(judges.judge_stalls(diagnosis, reads=29, pause=35, is_fake=False))) == count


def test_a_trial_beside_another_process_does_not_count() -> None:
    """Detected with its reason, on the screen, and measured again without it."""
    disturbed = {**tried(bf16=False), "validity": "contaminated", "detail": "others used it"}
    disturbed["measurement"] = {"samples_per_s": 50.0}
    trials, screen = [disturbed, tried(bf16=False, number=1)], "trial 0  baseline  50/s [others used it]\n"
    answer = {"baseline": side(0.9)}
    assert unmet(judges.judge_neighbours(answer, trials, screen)) == []
    assert len(unmet(judges.judge_neighbours(answer, trials, "trial 0  baseline  50/s\n"))) == 1
    assert len(unmet(judges.judge_neighbours(answer, trials[:1], screen))) == 1
    of_it = {"baseline": {**side(0.9), "metrics": {"samples_per_s": 50.0}}}
    assert len(unmet(judges.judge_neighbours(of_it, trials, screen))) == 1
    assert len(unmet(judges.judge_neighbours(answer, trials[1:], screen))) == 3


_CHECK = """\
| load | truth | utilization | own | SM |
| half busy | 50.1 % | 47.8 % | 47.9 % | 38.7 % |
| busy | 99.7 % | 99.6 % | 99.5 % | 79.4 % |
| starved | 28.0 % | - | 32.2 % | 36.4 % |

Named `out of GPU memory`: torch.OutOfMemoryError: CUDA out of memory.
"""


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (_CHECK, 0),
        (_CHECK.replace("32.2", "40.2"), 1),
        (_CHECK + "\nfailed: DriverError(999)\n", 1),
        (_CHECK + "\nIt does not work: exit status 1.\n", 1),
        (_CHECK + "\nnot run: no framework\n", 1),
        (_CHECK.replace("Named `out of GPU memory`", "Named `crashed`"), 1),
        ("", 4),
    ],
)
def test_the_check_sees_the_true_load(text: str, count: int) -> None:
    """Within 10 points, and with no part that failed or was left out."""
    assert len(unmet(judges.judge_check(text, is_fake=False))) == count


# The pack.


def test_a_pack_that_is_too_large_to_be_carried_is_an_error(tmp_path: Path) -> None:
    """60 MB fit, a byte more does not."""
    with (tmp_path / "wheel").open("wb") as file:
        file.truncate(MOST_BYTES)
    assert portable_size(tmp_path) == 60_000_000
    (tmp_path / "more").write_bytes(b"1")
    with pytest.raises(PackError, match=r"60\.0 MB; 60 MB at most"):
        portable_size(tmp_path)


def test_a_folder_that_is_no_pack_is_left_alone(tmp_path: Path) -> None:
    """What is there is kept."""
    (tmp_path / "thesis.tex").write_text("all of it")
    with pytest.raises(PackError, match="is no pack"):
        make_pack(tmp_path, "3.12")
    assert (tmp_path / "thesis.tex").exists()


@pytest.mark.services
def test_autotune_runs_from_the_pack_alone(tmp_path: Path) -> None:
    """Without pip, from the wheels and the sources of the pack: its own interpreter finds all of it there."""
    pack = tmp_path / "a pack"
    version = ".".join(map(str, sys.version_info[:2]))
    assert make_pack(pack, version) < MOST_BYTES
    (wheels,) = (pack / "wheels").iterdir()
    python = make_environment(tmp_path / "environment", wheels)
    code = "import autotune, numpy, optuna, sys; print(autotune.__file__); print(optuna.__file__)"
    done = subprocess.run([python, "-P", "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert all(line.startswith(str(tmp_path)) or line.startswith(str(ROOT)) for line in done.stdout.splitlines())
