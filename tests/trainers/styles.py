"""The trainers with the projects around them, and how each is started: what its user has before autotune comes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class Style:
    """One trainer and its project.

    Attributes:
        trainer: Name of its file here; it lies in the project as ``train.py``.
        config: Text of its config.yaml; None for one that has no YAML.
        flags: Behind ``python train.py``, as its user types them.
        section: The ``autotune:`` section of a short search over it, without the command; it stands in a file of its
            own, since some of the trainers know their keys.
        command: The command in that section.
        knobs: The config that only the section needs, of a trainer without YAML.
        files: Further files of the project, with their text.
        leaves: What it writes outside its runs' folders, in spite of all; nothing else may.
        finds: Values that the answer of any search over it has to hold.
    """

    trainer: str
    config: str | None = None
    flags: str = "config.yaml"
    section: str
    command: str = "{python} train.py {config}"
    knobs: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    leaves: tuple[str, ...] = ()
    finds: Mapping[str, object] = field(default_factory=dict)

    def lay_out(self, project: Path) -> None:
        """Makes the project as its user has it."""
        project.mkdir(parents=True, exist_ok=True)
        (project / "train.py").write_text((HERE / f"{self.trainer}.py").read_text())
        for name, text in {**self.files, **({"config.yaml": self.config} if self.config else {})}.items():
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            (project / name).write_text(text)

    def prepare(self, project: Path) -> None:
        """Adds what a search needs, as its user would by hand."""
        if self.config is None:
            (project / "config.yaml").write_text(self.knobs)
        (project / "config.autotune.yaml").write_text(f'command: "{self.command}"\n{SHORT}{self.section}')


SHORT = "trial: {start_timeout_s: 60, min_s: 0.3, min_steps: 10, max_s: 1}\n"
_DATA = "data:\n  batch_size: 8    # samples\n  num_workers: 1\n"

STYLES = {
    "dataclass config": Style(
        trainer="dataclass_config",
        config=_DATA + "training:\n  learning_rate: 1.0e-04\n  checkpoint_dir: ckpt\n  log_file: logs/train.log\n",
        flags="--config config.yaml",
        command="{python} train.py --config {config}",
        section="knobs: {data.batch_size: [8, 32], data.num_workers: [1, 2]}\n",
        files={"ckpt/latest.ckpt": "70000", "logs/train.log": "step 70000\n"},
    ),
    "argparse flags": Style(
        trainer="argparse_flags",
        flags="--batch-size 8 --workers 1 --output-dir out",
        knobs="batch_size: 8\nworkers: 1\noutput_dir: out\n",
        command="{python} train.py --batch-size {batch_size} --workers {workers} --output-dir {output_dir}",
        section="knobs: {batch_size: [8, 32], workers: [1, 2]}\n",
        files={"out/metrics.csv": "0\n1\n"},
    ),
    "absl flags": Style(
        trainer="absl_flags",
        flags="--batch_size=8 --nocache",
        knobs="batch_size: 8\ncache: false\n",
        command="{python} train.py --batch_size={batch_size} --cache={cache}",
        section="knobs: {batch_size: [8, 32], cache: [false, true]}\n",
    ),
    "Python config": Style(
        trainer="python_config",
        flags="settings.py --batch_size=4 --num_workers=1 --out_dir=out",
        knobs="batch_size: 4\nnum_workers: 1\nout_dir: out\n",
        command="{python} train.py settings.py --batch_size={batch_size} --num_workers={num_workers} "
        "--out_dir={out_dir}",
        section="knobs: {batch_size: [4, 32], num_workers: [1, 2]}\n",
        files={"settings.py": 'out_dir = "out"\nbatch_size = 4\n', "out/ckpt.pt": "best"},
    ),
    "swallows out of memory": Style(
        trainer="swallows_out_of_memory",
        config="batch_size: 8\n",
        section="knobs: {batch_size: [8, 32, 64, 128]}\n",
    ),
    "default crashes": Style(
        trainer="default_crashes",
        config="training:\n  batch_size: 8\n  graph_mode: false\n",
        section="knobs: {training.batch_size: [8, 32], training.graph_mode: [false, true]}\n",
        finds={"training.graph_mode": True},
    ),
    "validation fails": Style(
        trainer="validation_fails",
        config=_DATA + "max_steps: 500\n",
        section="set: {max_steps: 100}\nknobs: {data.batch_size: [8, 32], data.num_workers: [1, 2]}\n",
        leaves=("train.log",),
    ),
    "resumes": Style(
        trainer="resumes",
        config="batch_size: 8\nmax_steps: 2000\ncheckpoint_dir: ckpt\n",
        section="knobs: {batch_size: [8, 32]}\n",
        files={"ckpt/2000.weights.h5": "weights of two weeks"},
    ),
    "dead key": Style(
        trainer="dead_key",
        config="data:\n  batch_size: 8\n  prefetch: 4\n",
        section="knobs: {data.batch_size: [8, 32], data.prefetch: [1, 4, 16, 64]}\n",
        finds={"data.prefetch": 4},
    ),
    "false success": Style(
        trainer="false_success",
        config="batch_size: 8\nuse_tf_native_loading: false\n",
        section="knobs: {batch_size: [8, 32], use_tf_native_loading: [false, true]}\n",
        finds={"use_tf_native_loading": False},
    ),
    "fills a cache": Style(
        trainer="fills_a_cache",
        config="data:\n  folder: corpus/train\n  batch_size: 8\n",
        section="knobs: {data.batch_size: [8, 32]}\n",
        files={"corpus/train/clips.bin": "x" * 1000},
        leaves=("corpus/train/.features/all.npy",),
    ),
    "reads its config twice": Style(
        trainer="reads_twice",
        config="data:\n  batch_size: 8\nmodel:\n  mixed_precision: false\n",
        section="knobs: {data.batch_size: [8, 32], model.mixed_precision: [false, true]}\n",
    ),
}
"""By name; a search over each has an answer."""

NOTHING_TO_TUNE = {
    "ends at once": Style(
        trainer="ends_at_once",
        config="batch_size: 8\n",
        section="knobs: {batch_size: [8, 32]}\n",
    ),
    "never trains": Style(
        trainer="never_trains",
        config="batch_size: 8\n",
        section="knobs: {batch_size: [8, 32]}\n",
    ),
}
"""By name; a search over each can only say why it has none."""
