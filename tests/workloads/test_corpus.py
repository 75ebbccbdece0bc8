"""The made-up corpus: the same bytes each time, all of it or nothing."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from autotune.workloads.tts.corpus import main, write_corpus
from autotune.workloads.tts.ljspeech import SAMPLE_RATE, InputError, read_clips


def test_the_same_arguments_give_the_same_bytes(tmp_path: Path) -> None:
    """Written twice it is identical; another seed is another corpus."""
    contents = []
    for name, seed in (("one", 0), ("again", 0), ("other", 1)):
        folder = tmp_path / name
        write_corpus(folder, clips=2, seed=seed)
        contents.append({path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()})
    one, again, other = contents
    assert one == again != other
    assert len(one) == 3


def test_clips_are_as_long_as_their_texts(written_corpus: Path) -> None:
    """Durations go with the text, within the range of LJSpeech."""
    clips = read_clips(written_corpus)
    seconds = [clip.samples / SAMPLE_RATE for clip in clips]
    assert 0.7 <= min(seconds) < 4 < max(seconds) <= 12
    assert np.corrcoef([len(clip.text) for clip in clips], seconds)[0, 1] > 0.95


def test_a_complete_corpus_is_left_alone(corpus: Path) -> None:
    """A second call writes nothing; what else is in the way is refused."""
    before = {path: path.stat().st_mtime_ns for path in corpus.rglob("*")}
    assert write_corpus(corpus, clips=12) is False
    assert {path: path.stat().st_mtime_ns for path in corpus.rglob("*")} == before
    with pytest.raises(InputError, match="other content"):
        write_corpus(corpus, clips=13)


def test_a_corpus_that_cannot_be_finished_leaves_nothing(small_disk: Path) -> None:
    """On a full disk there is no half a corpus in its place, and no litter."""
    with pytest.raises(OSError, match="No space"):
        write_corpus(small_disk / "data" / "quickstart", clips=3)
    assert list((small_disk / "data").iterdir()) == []


def test_the_command_says_what_it_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It writes, then finds it written; wrong use and a foreign folder are exit code 2."""
    out = tmp_path / "data" / "quick start"

    def call(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["corpus", "--out", str(out), *arguments])
        capsys.readouterr()
        code = main()
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    assert call("--clips", "2") == (0, f"{out}: wrote 2 clips\n")
    assert call("--clips", "2") == (0, f"{out}: already has 2 clips\n")
    with pytest.raises(SystemExit) as wrong:
        call("--clips", "0")
    assert wrong.value.code == 2
    shutil.rmtree(out / "wavs")
    (out / "metadata.csv").unlink()
    code, said = call()
    assert (code, said.startswith("error: ")) == (2, True)
