"""State of a training's code, read without git."""

from pathlib import Path

from autotune.trial.trainings import code_state


def test_an_edited_script_is_another_state(tmp_path: Path) -> None:
    """Scripts on the command line count with their size and time; other words do not."""
    script = tmp_path / "train.py"
    script.write_text("a = 1\n")
    argv = ["python", "train.py", "--lr", "0.1", "gone.py"]
    before = code_state(argv, tmp_path)
    assert list(before) == ["train.py"]
    script.write_text("a = 22\n")
    assert code_state(argv, tmp_path) != before
