"""Plan of `autotune init`: the files to write and the resulting search."""

import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from autotune.config.apply import ConfigEdit, plan_section
from autotune.config.code import place_of
from autotune.config.command import (
    TypedCommand,
    fill_command,
    limits_threads,
    names_config,
    ranks_on_node,
    resolve_executable,
)
from autotune.config.document import Document, JoinedDocument, check_prefix
from autotune.config.flags import Flags, flags_config, read_flags
from autotune.config.hydra import compose
from autotune.config.keys import Syntax, syntax_of
from autotune.config.load import separate_path
from autotune.config.outputs import exists
from autotune.config.schema import SECTION, ListedKnob, OfferedVariable, section_lines
from autotune.config.sources import Script, find_script, is_evaluation, opens_by_name, trainer_files
from autotune.config.splice import with_section
from autotune.errors import CannotEditYaml, ConfigError
from autotune.files import read_beginning
from autotune.options import SearchOptions
from autotune.records import CODE, Machine, Scalar
from autotune.search.problem import Problem, limited, open_problem
from autotune.space.catalog import (
    has_known_name,
    is_for_validation,
    is_searched_by_default,
    known_knob,
    traits_of,
    why_not_tuned,
)
from autotune.space.find import Skipped
from autotune.space.knob import Knob, Label, key_name
from autotune.trial.folders import StateFolder


@dataclass(frozen=True, kw_only=True)
class InitPlan:
    """Section to be written.

    Attributes:
        is_new: Whether it goes into a new file, so that no trainer sees it.
        flags: Flags that a new config holds; None for an existing config.
        why_separate: Why the section goes into a separate file without being asked to.
    """

    edit: ConfigEdit
    is_new: bool
    problem: Problem
    flags: Flags | None = None
    why_separate: str | None = None


def plan_init(
    config: Path,
    typed: TypedCommand,
    *,
    separate: bool,
    state_dir: Path | None,
    further: Sequence[Path] = (),
    why_separate: str | None = None,
) -> InitPlan:
    """Plan a section for a config.

    Args:
        separate: Whether a separate file was requested.
        further: Further configs of the trainer.
        why_separate: Known reason for a separate file, as a sentence.

    Raises:
        AutotuneError: A section exists, cannot be added, or the command cannot run.
    """
    if not exists(config):
        raise ConfigError(
            "no such file",
            where=str(config),
            remedy="Check the path. For a trainer without a config, --from-flags creates one from its command.",
        )
    document, separate_file = Document.read(config), separate_path(config)
    for file, is_present in ((config, SECTION in document), (separate_file, exists(separate_file))):
        if is_present:
            raise ConfigError(
                "the config already has an autotune section",
                where=f"{file}:{document.line(SECTION)}" if file == config else str(file),
                remedy="Edit it, or delete it first; `autotune search --dry-run` shows its settings.",
            )

    files: dict[str, Path] = {}
    documents: dict[str, Document] = {}
    for path in further:
        check_prefix(path.stem, document, documents, str(path))
        files[path.stem], documents[path.stem] = path, Document.read(path)
    tokens = typed.tokens(config, Path.cwd(), files)
    if not separate:
        why_separate = why_separate or _why_separate(config, document, typed, tokens)
    separate = separate or why_separate is not None

    def write(lines: Sequence[str]) -> ConfigEdit:
        if separate:
            return _new_file(separate_file, "".join(f"{line}\n" for line in lines))
        return plan_section(config, lines)

    joined = JoinedDocument(document, documents)
    edit, problem = _edit(joined, config, tokens, typed.env, write, state_dir, files, in_config=not separate)
    return InitPlan(edit=edit, is_new=separate, problem=problem, why_separate=why_separate)


def _why_separate(config: Path, document: Document, typed: TypedCommand, tokens: Sequence[str]) -> str | None:
    separate_file = separate_path(config).name
    own_file = f"the section goes into a separate file, {separate_file}"
    if compose(config, document, typed.words, Path.cwd()) is not None:
        return f"Hydra reads this config itself: {own_file}"
    if document.syntax is not Syntax.YAML:
        return f"a {document.syntax.value} config cannot hold a section: it goes into a separate file, {separate_file}"
    if not names_config(tokens):
        return f"the command does not name {config.name}, so no copy with the section can be tested: {own_file}"
    return None


def plan_init_from_flags(config: Path, typed: TypedCommand, *, state_dir: Path | None) -> InitPlan:
    """Plan a config with the flags of a command, and a section that substitutes them.

    Without flags the section can vary environment variables.

    Raises:
        AutotuneError: The file exists, or the command cannot run.
    """
    if config.exists() or config.is_symlink():
        raise ConfigError(
            "the file already exists, and is not overwritten",
            where=str(config),
            remedy="Give --config a new file name; if the trainer reads a config, omit --from-flags.",
        )
    if syntax_of(config.name) is not Syntax.YAML:
        raise ConfigError("the config for the flags has to be YAML", where=str(config), remedy="Name it *.yaml.")
    if not config.parent.is_dir():
        raise ConfigError("no such folder", where=str(config.parent), remedy="Create it, or check the path.")
    flags = read_flags(typed.words, has_known_name, find_script(typed.words, Path.cwd()))
    document = Document(flags_config(flags), str(config)) if flags.values else None

    def write(lines: Sequence[str]) -> ConfigEdit:
        if document is not None:
            return _new_file(config, with_section(document, SECTION, lines).text)
        comment = "# Values in the code or the environment of this command may vary."
        return _new_file(config, "\n".join((comment, "", *lines, "")))

    edit, problem = _edit(document, config, flags.command, typed.env, write, state_dir)
    return InitPlan(edit=edit, is_new=True, problem=problem, flags=flags)


def _edit(
    document: Document | None,
    config: Path,
    command: Sequence[str],
    env: Mapping[str, str],
    write: Callable[[Sequence[str]], ConfigEdit],
    state_dir: Path | None,
    further: Mapping[str, Path] | None = None,
    *,
    in_config: bool = False,
) -> tuple[ConfigEdit, Problem]:
    """Return the change that adds the section, and the resulting problem; only variables vary without a document."""
    environ, has_keys = {**os.environ, **env}, document is not None
    files = [os.path.relpath(path, config.parent) for path in (further or {}).values()]
    bare = "\n".join(section_lines(command, env=env, knobs=(), redirected=(), files=files))
    texts = {config.name: bare}
    if document is None:
        document = Document(bare, str(config))
    else:
        texts = {config.name: document.text, separate_path(config).name: bare}
    is_composed = has_keys and compose(config, document, command, Path.cwd()) is not None
    is_opened = has_keys and opens_by_name(command, Path.cwd(), (config, *(further or {}).values()))
    argv = fill_command(
        tuple(command),
        config=config,
        python=sys.executable,
        trial_config=document,
        where="command line",
        further=further,
        needs_values=has_keys and not (is_composed or is_opened),
    )
    resolve_executable(argv[0], Path.cwd(), env.get("PATH") if has_keys else environ.get("PATH"))
    found = _opened(config, texts, state_dir)
    edit = write(
        section_lines(
            command,
            env=env,
            knobs=[
                ListedKnob(path=knob.path, choices=knob.choices, baseline=knob.baseline, note=_note(knob))
                for knob in found.space.within_reach({}).knobs
                if not knob.path.startswith(CODE)  # found again each time, because its line may move
            ],
            redirected=found.settings.outputs.redirected,
            folder=_folder(config if in_config or not has_keys else separate_path(config)),
            files=files,
            offered=environment_offers(argv, environ, found.machine, cwd=Path.cwd()),
            offers_vary=not has_keys and not found.settings.code,
            in_config=in_config,
        )
    )
    problem = _opened(config, {config.name: texts[config.name], edit.path.name: edit.new}, state_dir)
    if has_keys and problem.space != found.space:
        raise ConfigError(
            "the section would not be read back as intended; nothing was written",
            where=str(config),
            remedy="Please report this config as a bug; write the section by hand meanwhile.",
        )
    return edit, problem


def _folder(file: Path) -> str:
    """Return the current folder, where the command will run, relative to a file's resolved path."""
    return os.path.relpath(Path.cwd(), os.path.dirname(os.path.realpath(file)))


def _new_file(path: Path, text: str) -> ConfigEdit:
    return ConfigEdit(path=path, old="", new=text, changes=())


def _opened(config: Path, files: Mapping[str, str], state_dir: Path | None) -> Problem:
    """Open the problem that a search would read from these files."""
    state = StateFolder.locate(config, explicit=state_dir, environ=os.environ)
    with tempfile.TemporaryDirectory(prefix="autotune-init-") as folder:
        for name, text in files.items():
            Path(folder, name).write_text(text, encoding="utf-8", newline="")
        problem = open_problem(
            Path(folder, config.name),
            command=None,
            state_dir=Path(folder),
            folder=config.parent.absolute(),
            runs_in=Path.cwd(),
        )
    typed = replace(problem.typed, config=config, state_dir=state_dir)
    return replace(limited(problem, SearchOptions()), config_path=config, state=state, typed=typed)


def _note(knob: Knob) -> str:
    meaning = "" if knob.label is Label.SAME_TRAINING else f" (changes the training: {knob.effect})"
    moving = f"; moves with it: {', '.join(knob.paths[1:])}" if knob.carries else ""
    return f"{traits_of(knob).meaning}{meaning}{moving}"


# Environment variables that ``autotune init`` suggests for a config without knobs.


_IMPORTS_TENSORFLOW = re.compile(rb"^[ \t]*(?:import|from)[ \t]+(?:tensorflow|keras)\b", re.MULTILINE)
_LIBRARY_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_NO_XLA, _XLA = "--tf_xla_auto_jit=0", "--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit"


def environment_offers(
    argv: Sequence[str], environ: Mapping[str, str], machine: Machine, *, cwd: Path
) -> tuple[OfferedVariable, ...]:
    """Return variables that may affect a trainer, by the frameworks that it imports."""
    ranks = ranks_on_node(argv)
    cores = max(1, machine.cpu_cores // ranks)  # of each rank
    threads = tuple(dict.fromkeys((1, max(1, cores // 2), cores)))
    rows: list[tuple[str, Scalar, tuple[Scalar, ...], str]]
    if _uses_tensorflow(argv, cwd):
        rows = [
            ("TF_XLA_FLAGS", _NO_XLA, (_NO_XLA, _XLA), "automatic XLA for clusters of ops"),
            ("TF_NUM_INTRAOP_THREADS", 0, (0, *threads), "threads inside one op; 0: TensorFlow's choice"),
            ("TF_NUM_INTEROP_THREADS", 0, (0, *threads), "ops at the same time; 0: TensorFlow's choice"),
        ]
        if machine.gpus:
            rows.append(("TF_GPU_THREAD_MODE", "global", ("global", "gpu_private"), "threads that launch kernels"))
    else:
        usual = 1 if ranks > 1 and limits_threads(argv) else cores
        rows = [(name, usual, threads, "threads of the numerical library") for name in _LIBRARY_THREADS]
    return tuple(
        OfferedVariable(name=name, baseline=environ.get(name, str(usual)), choices=choices, note=note)
        for name, usual, choices, note in rows
    )


def _uses_tensorflow(argv: Sequence[str], cwd: Path) -> bool:
    modules = [word.replace(".", "/") + ".py" for before, word in pairwise(argv) if before == "-m"]
    scripts = [*(word for word in argv if word.endswith(".py")), *modules][:1]
    return any(_IMPORTS_TENSORFLOW.search(read_beginning(cwd / script, 1 << 18)) for script in scripts)


# Keys of a config that are named like a knob but not tuned.


def not_taken(problem: Problem) -> list[Skipped]:
    """Return keys named like a known knob but not tuned, in file order."""
    free = {path for knob in problem.space.knobs for path in knob.paths}
    reasons = {skipped.path: skipped.why for skipped in problem.skipped}
    found = []
    for path, value in _values(problem.settings.trial_document.data, ()):
        if path in free:
            continue
        if has_known_name(path):
            found.append(Skipped(path=path, why=reasons.get(path) or _why_not_tuned(problem, path, value)))
        elif (why := why_not_tuned(path)) is not None:
            found.append(Skipped(path=path, why=why))
    return [*found, *constants(problem)]


def keys_beaten(problem: Problem) -> Iterator[str]:
    """Yield a note on each flag of the command that may override a knob."""
    held = problem.settings.trial_document.scalars
    paths = {key_name(path): path for knob in problem.space.knobs for path in knob.paths if path in held}
    for word in problem.command:
        flag, _, value = word.partition("=")
        path = paths.get(key_name(flag.lstrip("-"))) if flag.startswith("--") else None
        if path is not None and "{" not in value and f"{{{path}}}" not in problem.command:
            override = f"{flag} in the command may override {path}: then no other value of it reaches the trainer"
            yield f"{override}. Omit the flag, or give it {{{path}}}"


_MOST_FILES = 40
_IN_CODE = "it is a constant in the code; as a flag or a config key it could be tuned"


def constants(problem: Problem) -> Iterator[Skipped]:
    """Yield numbers in the trainer's code, named like a known knob, that no trial can vary."""
    folder, taken = problem.settings.folder, set(map(place_of, problem.settings.code))
    files: Sequence[Path] = trainer_files(problem.command, folder)
    configs = set(map(os.path.realpath, problem.settings.paths))
    files = [path for path in files if not is_evaluation(path.stem) and os.path.realpath(path) not in configs]
    for path in files[:_MOST_FILES]:
        script = Script(path=path, text=path.read_text("utf-8", "replace"))
        name = os.path.relpath(path, folder)
        for line, shown, value in script.constants:
            key = shown.rpartition(".")[2]
            if (f"{name}:{line}", shown) not in taken and is_searched_by_default(key, value):
                yield Skipped(path=f"{name}:{line} {shown} = {value}", why=_IN_CODE)


def _values(node: Any, above: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Yield every value below a node by dotted path, including aliases and merge keys."""
    inside = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in inside:
        path = (*above, str(key))
        if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(item, dict) for item in value)):
            yield from _values(value, path)
        else:
            yield ".".join(path), value


def _why_not_tuned(problem: Problem, path: str, value: Any) -> str:
    if is_for_validation(path):
        return "it is for validation, which trials do not measure"
    if problem.settings.section.knobs is not None:
        return "knobs: does not list it"
    if isinstance(value, list):
        return "it is a list, not a single value"
    try:
        leaf = problem.settings.trial_document.leaf(path)
    except CannotEditYaml as error:
        return error.message
    if leaf.why_fixed is not None:
        return leaf.why_fixed
    if (row := known_knob(path, leaf.value)) is not None and row.only_if_listed:
        return "it is tuned only if knobs: lists it"
    if row is not None:
        return "no other value makes sense on this machine"
    if leaf.value is None:
        return "it is null: what the trainer does then is unknown"
    if isinstance(leaf.reading_1_1, str) and not isinstance(leaf.value, str):
        return f"YAML parsers disagree on {leaf.text}: PyYAML reads a string, others a number"
    if leaf.style is not None and any(digit in leaf.text for digit in "0123456789"):
        return f"it is a string to the trainer: {leaf.text} is quoted"
    return f"{leaf.text} is not a known value for it"
