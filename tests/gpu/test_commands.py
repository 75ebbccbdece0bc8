"""The commands around GPUs that are for those who work on autotune."""

import re
import subprocess
import sys

import pytest


def run(*words: str, **options) -> subprocess.CompletedProcess[str]:
    """Runs ``python -m`` with these words."""
    command = [sys.executable, "-m", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=150, check=False, **options)


def test_the_check_of_a_real_gpu_needs_one(tmp_path):
    """Without a driver it says so in words, writes no report, and fails."""
    (tmp_path / "libnvidia-ml.so.1").write_text("none here, whatever this machine has")
    done = run("tests.gpu.check", "--out", str(tmp_path), env={"LD_LIBRARY_PATH": str(tmp_path)})
    assert done.returncode == 1
    assert done.stderr.startswith("gpu-check: the driver's library cannot be loaded: ")
    assert done.stderr.endswith("There is nothing to check here.\n")
    assert list(tmp_path.glob("*.md")) == []


@pytest.mark.services
def test_the_check_of_a_gpu_makes_all_its_parts(nvml_library, tmp_path):
    """On a fake one, as far as that goes; none fails, and the busy time of the loads is found."""
    check = ("tests.gpu.check", "--seconds", "6", "--out", str(tmp_path))
    done = run("tests.fake_nvml", "follow", "--", sys.executable, "-m", *check)
    assert done.returncode == 0, done.stderr
    (file,) = tmp_path.glob("*-nvidia-h100-80gb-hbm3.md")
    text = file.read_text()
    assert "failed: " not in text
    assert text.count("not run: this GPU is a fake one") == 2
    (busy,) = re.findall(r"^\| busy \| [\d.]+ % \| ([\d.]+) %", text, re.MULTILINE)
    assert float(busy) > 90
