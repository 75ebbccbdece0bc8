"""Loading and validation of the user's files for a search, before its first process starts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path

from autotune.config.code import CodeArgument, calls_of_trial, find_arguments, place_of
from autotune.config.command import fill_command, split_command
from autotune.config.document import Document, JoinedDocument, Leaf, check_prefix
from autotune.config.hydra import (
    RUN_FOLDERS,
    ComposedDocument,
    compose,
    hydra_text,
    overrides,
    uses_hydra,
    with_overrides,
    with_run_folder,
)
from autotune.config.keys import KeyPath, Syntax, did_you_mean, shown
from autotune.config.outputs import Outputs, exists, find_outputs, output_flags, path_of, redirected_path, written_like
from autotune.config.parsers import same_value
from autotune.config.schema import (
    ENV,
    SECTION,
    UNFIT_REMEDY,
    Domain,
    Range,
    Section,
    SectionSource,
    parse_section,
    variable_value,
    why_unfit,
)
from autotune.config.sources import find_script, opens_by_name, own_words
from autotune.config.splice import Splice, check_editable, new_scalar, plan_splices, splice, without_key, write_scalar
from autotune.errors import CannotEditYaml, ConfigError
from autotune.files import project_folder
from autotune.records import CODE, CODE_VARIABLE, Scalar, Values


def load_settings(
    config: Path,
    *,
    folder: Path | None = None,
    typed_command: Sequence[str] | None = None,
    runs_in: Path | None = None,
) -> Settings:
    """Load a config, its section from the file or from ``<stem>.autotune.yaml``, and further configs.

    Args:
        folder: Folder that other configs are relative to; None for the config's own.
        typed_command: Typed command instead of the section's.
        runs_in: Working directory; None for the section's, or for the current one with a typed command.
    """
    first = Document.read(config)
    section = _find_section(config, first)
    files = {"": config}
    further: dict[str, Document] = {}
    for name in section.files:
        place = _named_path(name, folder or config.parent, section.place("files"))
        check_prefix(place.stem, first, further, section.place("files"))
        files[place.stem], further[place.stem] = place, Document.read(place)
    document = JoinedDocument(first, further)
    command = None
    if section.command is not None:
        command = split_command(section.command, section.place("command"))
    words = tuple(typed_command or command or ())
    if typed_command or runs_in:
        cwd, remark = runs_in or Path.cwd(), None
    else:
        cwd, remark = command_folder(config, section, command)
    composition = compose(config, first, words, cwd, folder=folder) if words and not further else None
    if composition is not None:
        document = ComposedDocument(first, composition)
    outputs = find_outputs(
        document,
        section.redirect,
        section.redirect_except,
        section.place("redirect"),
        ignore=SECTION,
        overridable=composition is not None,
    )
    settings = Settings(
        path=config,
        home=(folder or config.parent).absolute(),
        document=document,
        files=files,
        section=section,
        command=command,
        folder=cwd,
        outputs=outputs,
        remarks=(remark,) if remark else (),
        code=find_arguments(words, cwd, document.scalars.values()) if words and section.code else {},
        are_opened_by_name=composition is None and opens_by_name(words, cwd, files.values()),
    )
    for path in section.fixed:
        _check_key(settings, path, "set")
    for path, domain in (section.knobs or {}).items():
        _check_key(settings, path, "knobs")
        _check_knob(settings, path, domain)
    settings.trial_document.check_by_second_parser()  # it will check every copy
    return settings


def separate_path(config: Path) -> Path:
    """Return the path of a separate file for a config's section."""
    return config.with_name(f"{config.stem}.autotune.yaml")


def _find_section(config: Path, document: Document) -> Section:
    path = separate_path(config)
    if document.syntax is not Syntax.YAML and SECTION in document:
        raise ConfigError(
            f"a {document.syntax.value} config cannot contain an autotune section",
            where=f"{document.name}:{document.line(SECTION)}",
            remedy=f"Write it as YAML into {path.name} in the same folder, as autotune init does.",
        )
    if not exists(path):
        return parse_section(SectionSource(document, (SECTION,))) if SECTION in document else Section()
    if SECTION in document:
        raise ConfigError(
            f"there are two autotune sections: here, and in {path.name}",
            where=f"{document.name}:{document.line(SECTION)}",
            remedy="Delete one of them.",
        )
    separate = Document.read(path)
    return parse_section(SectionSource(separate, (SECTION,) if SECTION in separate else ()))


def _check_key(settings: Settings, path: str, part: str) -> None:
    where = settings.section.place(part, path)
    is_variable = path.startswith(ENV) and part == "knobs"
    if part == "knobs" and path in settings.code:
        return
    if path.split(".")[0] == SECTION and not is_variable:
        raise ConfigError(
            f"{path} is a key of the autotune section, which trials do not see",
            where=where,
            remedy=f"Name a key of the config; environment variables are named {ENV}NAME.",
        )
    if is_variable and path.removeprefix(ENV) not in settings.section.env:
        name = path.removeprefix(ENV)
        raise ConfigError(
            f"the variable {name} has no baseline value",
            where=where,
            remedy=f"Add its present value to the section: env: {{{name}: ...}}",
        )
    try:
        check_editable(settings.leaf(path))
    except CannotEditYaml as error:
        if error.line is None:
            raise ConfigError(error.message, where=where, remedy=did_you_mean(path, settings.scalars)) from error
        place = f"line {error.line} of {settings.files[settings.document.split(path)[0]]}"
        raise ConfigError(
            f"{path} cannot be changed: {error.message}", where=where, remedy=f"{error.remedy} ({place})"
        ) from error


def _check_knob(settings: Settings, path: str, domain: Domain) -> None:
    where = settings.section.place("knobs", path)
    for part, taken in (("set", settings.section.fixed), ("redirect", settings.outputs.redirected)):
        if path in taken:
            raise ConfigError(
                f"{path} is a knob and also {'fixed by set' if part == 'set' else 'an output path'}",
                where=where,
                remedy=f"Remove it from one of them{'' if part == 'set' else ', or add it to redirect_except'}.",
            )
    baseline = settings.value(path)
    if (why := why_unfit(baseline)) is not None:
        raise ConfigError(
            f"{path} cannot be a knob: its value is {shown(baseline)}, {why}", where=where, remedy=UNFIT_REMEDY
        )
    if isinstance(domain, Range) and (isinstance(baseline, bool) or not isinstance(baseline, int | float)):
        raise ConfigError(
            f"{path} has a range of numbers, but its value is {shown(baseline)}",
            where=where,
            remedy="List the values to try instead: [...].",
        )


@dataclass(frozen=True, kw_only=True)
class Copy:
    """Trial's own copy of a config."""

    path: Path
    text: str


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Config and its ``autotune:`` section, checked against each other.

    Attributes:
        home: Folder that names of other files in the config are relative to.
        files: Path of each config by its key prefix, empty for the first.
        command: The section's command, placeholders not filled in.
        folder: Absolute working directory; see `require_folder`.
        remarks: Sentences for the user on what the section does not specify.
        keeps_section: Whether trials' copies keep the section, to test if the trainer accepts it.
        are_opened_by_name: Whether only the trainer's source names the configs: trials then open copies instead
            (`autotune.trainee.code_values`).
    """

    path: Path
    home: Path
    document: JoinedDocument
    files: Mapping[str, Path]
    section: Section
    command: tuple[str, ...] | None
    folder: Path
    outputs: Outputs
    remarks: tuple[str, ...] = ()
    keeps_section: bool = False
    code: Mapping[str, CodeArgument] = field(default_factory=dict)
    are_opened_by_name: bool = False

    @cached_property
    def trial_document(self) -> JoinedDocument:
        """Config to copy for trials: without its section, unless `keeps_section`."""
        if self.keeps_section or isinstance(self.document, ComposedDocument):
            return self.document
        return JoinedDocument(without_key(self.document.first, SECTION), self.document.further)

    def require_folder(self) -> None:
        if not os.path.isdir(self.folder):
            raise ConfigError(
                f"the command's working directory is not a folder: {self.folder}",
                where=self.section.place("folder"),
                remedy="Name the folder that training starts in, absolute or relative to this file.",
            )

    @property
    def paths(self) -> tuple[Path, ...]:
        composed = self.document.paths if isinstance(self.document, ComposedDocument) else ()
        return tuple(dict.fromkeys((*self.files.values(), *composed)))

    def changed_on_disk(self, config: Path) -> bool:
        """Return whether a file differs from what was read; `config` is the first one."""
        read = {self.files[prefix]: one for prefix, one in self.document.further.items()}
        if isinstance(self.document, ComposedDocument):
            read |= {part.path: part.document for part in self.document.composition.parts}
        read = {path: one for path, one in read.items() if path != self.path} | {config: self.document.first}
        try:
            return any(Document.read(path).text != one.text for path, one in read.items())
        except ConfigError:
            return True

    @property
    def further(self) -> dict[str, Path]:
        return {prefix: path for prefix, path in self.files.items() if prefix}

    @cached_property
    def scalars(self) -> Values:
        """Values that can be knobs: the config's, variables (``autotune.env.X``), the code's."""
        others = [*(f"{ENV}{name}" for name in self.section.env), *self.code]
        return {**self.trial_document.scalars, **{path: self.value(path) for path in others}}

    @cached_property
    def refused(self) -> Mapping[str, str]:
        variables = {name: self.leaf(name).why_fixed for name in map(f"{ENV}{{}}".format, self.section.env)}
        fixed = dict.fromkeys(self.section.fixed, "it is fixed by set:")
        return {**fixed, **self.trial_document.refused, **{name: why for name, why in variables.items() if why}}

    def value(self, path: str) -> Scalar:
        """Return the baseline value of a knob; raise CannotEditYaml for an unknown key."""
        if path in self.code:
            return self.code[path].value
        if path.startswith(CODE):
            raise ConfigError(
                f"{place_of(path)[1]} is no longer in that line, or its value is no longer a number",
                where=place_of(path)[0],
                remedy="The code has changed: search again.",
            )
        leaf = self.leaf(path)
        return variable_value(leaf.text) if path.startswith(ENV) else leaf.value

    def trial_text(self, values: Values, outputs: Path, prefix: str = "") -> str:
        """Return a trial's copy of a config, with its knobs, ``set`` and output paths."""
        joined = self.trial_document
        if isinstance(joined, ComposedDocument):
            return "".join(f"- {new_scalar(word)}\n" for word in self.overrides(values, outputs))
        document = joined.part(prefix)
        wanted = self._config_values(values)
        here = {inside: value for path, value in wanted.items() for at, inside in [joined.split(path)] if at == prefix}
        splices = plan_splices(document, document.differing(here))
        for path, moved in self.moved_outputs(outputs).items():
            at, inside = joined.split(path)
            if at != prefix:
                continue
            leaf = document.leaf(inside)
            moved = written_like(moved, leaf.text)
            splices.append(Splice(leaf=leaf, value=moved, text=write_scalar(moved, leaf), whole=leaf.computed))
        splices += [Splice(leaf=leaf, value=path, text=write_scalar(path, leaf)) for leaf, path in self._bases(prefix)]
        return splice(document, splices)

    def _bases(self, prefix: str) -> Iterator[tuple[Leaf, str]]:
        """Yield values such as ``_base_: ../base.yaml`` with absolute paths."""
        folder = self.files[prefix].absolute().parent if prefix else self.home
        for leaf in self.trial_document.part(prefix).leaves:
            name = leaf.value if isinstance(leaf.value, str) and leaf.why_fixed is None else ""
            if not name.lower().endswith((".yaml", ".yml", ".json", ".toml", ".py")) or os.path.isabs(name):
                continue
            is_base = any(re.fullmatch(r"_*(?:base|extend|include|inherit)s?_*", str(key), re.I) for key in leaf.path)
            if (is_base or not (self.folder / name).exists()) and (folder / name).is_file():
                yield leaf, os.path.normpath(folder / name)

    def copies(self, values: Values, folder: Path, outputs: Path) -> dict[str, Copy]:
        if isinstance(self.document, ComposedDocument):
            return {"": Copy(path=folder / "overrides.yaml", text=self.trial_text(values, outputs))}
        made: dict[str, Copy] = {}
        for prefix in self.files:
            # Trainers depend on the suffix.
            name = f"config{f'-{prefix}' if prefix else ''}{self.document.part(prefix).syntax.suffix}"
            made[prefix] = Copy(path=folder / name, text=self.trial_text(values, outputs, prefix))
        return made

    def overrides(self, values: Values, outputs: Path) -> tuple[str, ...]:
        """Return the override words for a trial of a composed config."""
        document = self.trial_document
        if not isinstance(document, ComposedDocument):
            return ()
        moved = {key: written_like(path, document.leaf(key).text) for key, path in self.moved_outputs(outputs).items()}
        return overrides({**document.differing(self._config_values(values)), **moved})

    def _config_values(self, values: Values) -> dict[str, Scalar]:
        """Return the values in a trial's config: ``set`` and the knobs among its keys."""
        return {**self.section.fixed, **{path: v for path, v in values.items() if not path.startswith((ENV, CODE))}}

    def trial_env(self, values: Values) -> dict[str, str]:
        """Return a trial's environment variables: ``env``, knobs, values for the code."""
        knobs = {
            path.removeprefix(ENV): str(value)
            for path, value in values.items()
            if path.startswith(ENV) and not same_value(self.value(path), value)
        }
        calls = calls_of_trial(self.code, values)
        return {**self.section.env, **knobs, **({CODE_VARIABLE: calls} if calls else {})}

    def moved_outputs(self, outputs: Path) -> dict[str, str]:
        return {path: redirected_path(self.trial_document.leaf(path).text, outputs) for path in self.outputs.redirected}

    def argv(
        self,
        *,
        config: Path,
        config_text: str,
        python: str,
        command: tuple[str, ...] | None = None,
        outputs: Path | None = None,
        further: Mapping[str, Copy] | None = None,
        added: tuple[str, ...] = (),
    ) -> tuple[str, ...]:
        """Return a trial's command line.

        Args:
            config: The trial's own copy.
            command: Typed command instead of the section's.
            further: The trial's copies of further configs, by prefix; None for the user's files.
            outputs: Output folder; None keeps the trainer's own.

        Raises:
            ConfigError: There is no command, or it is not usable.
        """
        tokens = command or self.command
        if tokens is None:
            raise ConfigError(
                "there is no training command",
                where=str(self.path),
                remedy="Add to the config: autotune: {command: 'python train.py --config {config}'}, "
                "or give the command after --.",
            )
        where = "command line" if command else self.section.place("command")
        same = config_text == self.trial_document.text
        composed = isinstance(self.trial_document, ComposedDocument)
        if composed or (same and not further):
            trial_config = self.trial_document
        else:
            copies = {prefix: Document(copy.text, str(copy.path)) for prefix, copy in (further or {}).items()}
            trial_config = JoinedDocument(Document(config_text, str(config)), {**self.document.further, **copies})
        hydra = uses_hydra(tokens, self.folder)
        paths = {"": config, **self.further, **{prefix: copy.path for prefix, copy in (further or {}).items()}}
        if self.folder != Path.cwd():  # relative names would be resolved there
            paths = {prefix: path.absolute() for prefix, path in paths.items()}
        argv = fill_command(
            tokens,
            config=paths.pop(""),
            python=python,
            trial_config=trial_config,
            where=where,
            quote=hydra_text if hydra else None,
            needs_values=not (
                composed or self.section.varies_environment_alone or self.code or self.are_opened_by_name
            ),
            further=paths,
        )
        argv = with_overrides(argv, added) if added else argv
        if outputs is not None:
            argv = self._with_own_outputs(argv, outputs)
        return with_run_folder(argv, outputs / "hydra") if hydra and outputs is not None else argv

    def _with_own_outputs(self, argv: tuple[str, ...], outputs: Path) -> tuple[str, ...]:
        words, flags = list(argv), output_flags(argv, self.section.redirect_except)
        for place, (flag, path) in flags.items():
            if not path.startswith(os.fspath(outputs)):  # a placeholder's value is redirected already
                words[place] = f"{flag if flag.endswith('=') else ''}{redirected_path(path, outputs)}"
        return tuple(words)

    def redirected(self, command: tuple[str, ...]) -> tuple[str, ...]:
        """Return the keys, flags and overrides that trials redirect."""
        flags = output_flags(command, self.section.redirect_except).values()
        typed = tuple(flag.removesuffix("=") for flag, _path in flags)
        return (*self.outputs.redirected, *typed, *(RUN_FOLDERS if uses_hydra(command, self.folder) else ()))

    def edits(self, values: Values) -> dict[Path, dict[KeyPath, Scalar]]:
        """Return the values to write into each config, for `autotune.config.apply.plan_edit`."""
        found: dict[Path, dict[KeyPath, Scalar]] = {}
        values = {path: value for path, value in values.items() if not path.startswith(CODE)}
        changed = {path: value for path, value in values.items() if not same_value(self.value(path), value)}
        if isinstance(self.document, ComposedDocument):
            keys = {path: value for path, value in changed.items() if not path.startswith(ENV)}
            found = self.document.edits(keys, self.path) if keys else {}
            changed = {path: value for path, value in changed.items() if path not in keys}
        for path, value in changed.items():
            leaf = self.leaf(path)
            if path.startswith(ENV) and self.section.source:
                found.setdefault(Path(self.section.source.document.name), {})[leaf.path] = value
                continue
            prefix, inside = self.document.split(leaf.path)
            found.setdefault(self.files[prefix], {})[inside] = value
        return found

    def leaf(self, path: str) -> Leaf:
        """Return the scalar of a knob; raise CannotEditYaml for an unknown key."""
        source = self.section.source
        if path.startswith(ENV) and source is not None:
            return source.document.leaf((*source.prefix, "env", path.removeprefix(ENV)))
        return self.document.leaf(path)


# Working directory of a section's command: recorded in the section, or guessed from the project.


def command_folder(config: Path, section: Section, command: Sequence[str] | None) -> tuple[Path, str | None]:
    """Return the working directory of a section's command, and why if the section does not record it.

    It is absolute, and may not exist. Links are resolved, so it does not depend on the name of the config.
    """
    if section.source is None or (section.folder is None and command is None):
        return Path.cwd(), None
    section_folder = Path(os.path.realpath(section.source.document.name)).parent
    if section.folder is None:
        return _guessed_folder(config, command or (), section_folder)
    return Path(os.path.realpath(_named_path(section.folder, section_folder, section.place("folder")))), None


def _named_path(name: str, folder: Path, where: str) -> Path:
    if (path := path_of(name, folder)) is None:
        raise ConfigError(f"{shown(name)} is not a path", where=where, remedy="Name a file or folder.")
    return path


def _guessed_folder(config: Path, words: Sequence[str], section_folder: Path) -> tuple[Path, str]:
    """Return the folder for a section that records none: the first one of its project with the command's script.

    Candidates: the project's folder, those above the config, and the shell's if it is in the project, or above it if
    only the config marks the project. Without such a script: the first folder with a file that the command names, else
    the shell's or the project's.
    """
    root, here, real = project_folder(config), Path.cwd(), Path(os.path.realpath(config))
    above = [folder for folder in real.parents if folder != root and folder.is_relative_to(root)]
    is_unmarked = root == real.parent and not os.path.lexists(root / ".git")
    current = [here] if here.is_relative_to(root) or (is_unmarked and root.is_relative_to(here)) else []
    folders, script = [root, *above, *current], words[own_words(words) - 1]
    with_script = ((folder, script) for folder in folders if _has_script(words, folder))
    with_file = ((folder, word) for folder in folders for word in words if _has_file(word, folder))
    path, name = next(chain(with_script, with_file), ([*current, root][0], ""))
    why = f"which contains {name}" if name else "the project folder" if path == root else "the current folder"
    likely, whose = path, ""
    if not name and script.endswith(".py") and not os.path.isabs(script):
        why += f"; {script} is not there"
        if _has_script(words, here):  # perhaps another project's
            likely, whose = here, " for the current folder"
    line = f"folder: {new_scalar(os.path.relpath(likely, section_folder))}"
    return path, (
        f"The autotune section does not name the working directory of its command. It runs in {path}, {why}. "
        f"To fix that, add this line{whose} to the section:  {line}"
    )


def _has_script(words: Sequence[str], folder: Path) -> bool:
    path = find_script(words, folder).path
    return path is not None and not os.path.isabs(words[own_words(words) - 1])


def _has_file(word: str, folder: Path) -> bool:
    return "{" not in word and not os.path.isabs(word) and os.path.isfile(folder / word)
