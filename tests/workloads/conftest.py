"""Real speech and small corpora for the reference trainer."""

import shutil
import struct
from pathlib import Path

import pytest

from autotune.workloads.tts.corpus import write_corpus

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "configs" / "config.yaml"
SPEECH = ROOT.parent / "shared" / "data" / "ljspeech_subset"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainers started in other folders find the package, installed or not."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture(scope="session")
def speech() -> Path:
    """Clips of LJSpeech, where they are at hand."""
    if not SPEECH.is_dir():
        pytest.skip("ljspeech_subset is not at hand")
    return SPEECH


@pytest.fixture(scope="session")
def written_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve made-up clips; not to be changed."""
    folder = tmp_path_factory.mktemp("corpus") / "twelve clips"
    assert write_corpus(folder, clips=12)
    return folder


@pytest.fixture
def corpus(written_corpus: Path, tmp_path: Path) -> Path:
    """A copy of them to break."""
    return Path(shutil.copytree(written_corpus, tmp_path / "it's a corpus"))


def wav(kind: int = 1, channels: int = 1, rate: int = 22050, bits: int = 16, data: bytes = bytes(8192)) -> bytes:
    """A WAV file with this header."""
    described = struct.pack("<HHIIHH", kind, channels, rate, rate * channels * bits // 8, channels * bits // 8, bits)
    body = b"WAVEfmt " + struct.pack("<I", 16) + described + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body
