"""Odd input through the whole command line: used, or refused with a place and a remedy, and never taken for a bug."""

from pathlib import Path

from tests.commands.conftest import CONFIG, TRAINER, Autotune

TEXTS = {
    "a long description": f"about: {'a word of it, and/or more ' * 200}",
    "a long word": f"about: {'w' * 5000}",
    "a path through a file": "data_dir: config.yaml/data",
    "an emoji as JSON writes it": 'about: "\\ud83d\\ude00"\n  data_dir: "\\ud83d\\ude00/x"',
    "half a surrogate pair": 'about: "\\ud800"\n  log_dir: "a/\\ud800"\n  "\\ud800": 3',
    "a zero byte": 'about: "~a\\0/b"\n  save_dir: "~a\\0/b"',
}


def test_a_text_that_is_no_path_stops_nothing(autotune: Autotune, project: Path) -> None:
    """A search makes its first runs, whatever texts the config holds."""
    texts = "".join(f"{name}:\n  {keys}\n" for name, keys in TEXTS.items())
    (project / "config.yaml").write_text(f"{texts}\n{CONFIG % TRAINER}")
    done = autotune("search", "--config", "config.yaml", "--budget", "12s")
    assert done.returncode == 0, done.stderr
    assert "run 0" in done.stderr


def test_a_long_word_in_a_typed_command(autotune: Autotune) -> None:
    """It is no path, and the trainer gets it."""
    word = "w" * 5000
    done = autotune("run", "--dry-run", "--config", "config.yaml", "--", "python", "t.py", "config.yaml", word)
    assert (done.returncode, done.stdout) == (0, f"python t.py config.yaml {word}\n")
