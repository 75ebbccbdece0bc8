"""Several config files read like one."""

from pathlib import Path

import pytest

from autotune.config.load import load_settings
from autotune.errors import CannotEditYaml, ConfigError

SECTION = "autotune:\n  files: [sub/optim.json]\n  command: python t.py {config} --opt={config:optim} -l{optim.lr}\n"
FIRST = "workers: 1\nlog_dir: logs\n"
SECOND = '{"lr": 1e-4, "batch_size": 4, "out": {"log_dir": "logs/opt"}}'


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Config whose section names a further one."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "optim.json").write_text(SECOND)
    (tmp_path / "config.yaml").write_text(FIRST + SECTION)
    return tmp_path / "config.yaml"


def test_keys_of_further_files_have_their_name_in_front(config: Path):
    """Values, lines, outputs and errors are those of the file that a key stands in."""
    settings = load_settings(config)
    optim = {"optim.lr": 1e-4, "optim.batch_size": 4, "optim.out.log_dir": "logs/opt"}
    assert settings.scalars == {"workers": 1, "log_dir": "logs"} | optim
    assert settings.outputs.redirected == ("log_dir", "optim.out.log_dir")
    assert settings.trial_document.data["optim"]["batch_size"] == 4
    assert settings.document.line("optim.lr") == 1
    assert ("optim", "lr") in settings.document
    assert "optim.none" not in settings.document
    with pytest.raises(CannotEditYaml, match=r"no such key in .*optim\.json"):
        settings.value("optim.none")
    with pytest.raises(CannotEditYaml, match="whole file"):
        settings.value("optim")


def test_each_trial_has_a_copy_of_each(config: Path):
    """With the suffix of the file; the command names both, and a value of either."""
    settings = load_settings(config)
    copies = settings.copies({"optim.batch_size": 8, "workers": 2}, Path("/t"), Path("/t/outputs"))
    paths = {prefix: str(copy.path) for prefix, copy in copies.items()}
    assert paths == {"": "/t/config.yaml", "optim": "/t/config-optim.json"}
    assert copies[""].text == "workers: 2\nlog_dir: /t/outputs/logs\n"
    assert copies["optim"].text == SECOND.replace(": 4", ": 8").replace("logs/opt", "/t/outputs/logs/opt")
    first = copies.pop("")
    argv = settings.argv(config=first.path, config_text=first.text, python="p", further=copies)
    assert argv == ("python", "t.py", "/t/config.yaml", "--opt=/t/config-optim.json", "-l1e-4")
    real = settings.argv(config=config, config_text=settings.trial_document.text, python="p")
    assert real[3] == f"--opt={config.parent}/sub/optim.json"


@pytest.mark.parametrize(
    ("first", "files", "why"),
    [
        ("optim: 1\n", ["optim.json"], "has a key of that name in line 1"),
        ("a: 1\n", ["optim.json", "sub/optim.yaml"], "two files have that name"),
        ("a: 1\n", ["config.yaml"], "is reserved"),
        ("a: 1\n", ["b c.yaml"], "only letters"),
        ("a: 1\n", ["none.yaml"], "no such file"),
        ("a: 1\n", ["\\0"], "not a path"),
    ],
)
def test_names_that_cannot_stand_in_front_are_refused(tmp_path: Path, first: str, files: list[str], why: str):
    """With the way out: another name."""
    (tmp_path / "sub").mkdir()
    for name in ("optim.json", "sub/optim.yaml", "b c.yaml", "config.yaml"):
        (tmp_path / name).write_text('{"lr": 1}')
    config = tmp_path / "first.yaml"
    listed = ", ".join(f'"{name}"' for name in files)
    config.write_text(f"{first}autotune:\n  files: [{listed}]\n")
    with pytest.raises(ConfigError, match=why) as caught:
        load_settings(config)
    assert caught.value.remedy
