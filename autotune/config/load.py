"""Loading of everything that a search needs from the user's files, checked before the first process starts."""

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
    """Load a config and its section, in the file or in ``<stem>.autotune.yaml`` beside it, and further configs.

    Args:
        folder: The folder that other configs are relative to; None for the config's own.
        typed_command: The command as typed in place of the section's: it tells what a Hydra config is composed of.
        runs_in: The folder that the command runs in; None for what the section says, or, of a typed one, the shell's.

    Raises:
        ConfigError: A file cannot be used, there are two sections, or the section names keys that the config does
            not have.
    """
    first = Document.read(config)
    section = _find_section(config, first)
    files = {"": config}
    further: dict[str, Document] = {}
    for name in section.files:
        place = path_of(name, folder or config.parent)
        if place is None:
            raise ConfigError(f"{shown(name)} is no path", where=section.place("files"), remedy="Name a file.")
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
    settings.trial_document.check_by_second_parser()  # it has to check every copy
    return settings


def separate_path(config: Path) -> Path:
    """Return the path of a config's section if it has a file of its own."""
    return config.with_name(f"{config.stem}.autotune.yaml")


def _find_section(config: Path, document: Document) -> Section:
    beside = separate_path(config)
    if document.syntax is not Syntax.YAML and SECTION in document:
        raise ConfigError(
            f"an autotune section cannot stand in a {document.syntax.value} config",
            where=f"{document.name}:{document.line(SECTION)}",
            remedy=f"Write it into {beside.name} beside it, as YAML; autotune init does.",
        )
    if not exists(beside):
        return parse_section(SectionSource(document, (SECTION,))) if SECTION in document else Section()
    if SECTION in document:
        raise ConfigError(
            f"there are two autotune sections: here, and in {beside.name}",
            where=f"{document.name}:{document.line(SECTION)}",
            remedy="Delete one of them.",
        )
    separate = Document.read(beside)
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
            remedy=f"Name a key of the config; variables are knobs by the name {ENV}NAME.",
        )
    if is_variable and path.removeprefix(ENV) not in settings.section.env:
        name = path.removeprefix(ENV)
        raise ConfigError(
            f"the variable {name} has no value of today",
            where=where,
            remedy=f"Add what it is now to the section: env: {{{name}: ...}}",
        )
    try:
        check_editable(settings.leaf(path))
    except CannotEditYaml as error:
        if error.line is None:
            raise ConfigError(error.message, where=where, remedy=did_you_mean(path, settings.scalars)) from error
        place = f"it stands in line {error.line} of {settings.files[settings.document.split(path)[0]]}"
        raise ConfigError(
            f"{path} cannot be changed: {error.message}", where=where, remedy=f"{error.remedy} ({place})"
        ) from error


def _check_knob(settings: Settings, path: str, domain: Domain) -> None:
    where = settings.section.place("knobs", path)
    for part, taken in (("set", settings.section.fixed), ("redirect", settings.outputs.redirected)):
        if path in taken:
            raise ConfigError(
                f"{path} is a knob and is {'fixed by set' if part == 'set' else 'an output path'} too",
                where=where,
                remedy=f"Take it out of one of them{'' if part == 'set' else ', or add it to redirect_except'}.",
            )
    baseline = settings.value(path)
    if (why := why_unfit(baseline)) is not None:
        raise ConfigError(
            f"{path} cannot be a knob: today's value is {shown(baseline)}, {why}", where=where, remedy=UNFIT_REMEDY
        )
    if isinstance(domain, Range) and (isinstance(baseline, bool) or not isinstance(baseline, int | float)):
        raise ConfigError(
            f"{path} has a range of numbers, but today's value is {shown(baseline)}",
            where=where,
            remedy="List the values to try instead: [...].",
        )


@dataclass(frozen=True, kw_only=True)
class Copy:
    """Trial's own copy of a config: its path, and its text."""

    path: Path
    text: str


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Config with its ``autotune:`` section, each checked against the other.

    Attributes:
        path: The config, as the user named it.
        home: The folder that the names of other files in it are relative to.
        document: The config, joined with the further ones.
        files: The path of each config, by the prefix of its keys; that of the first one is empty.
        command: The trainer's command, split, placeholders not filled in; None if the section has none.
        folder: The folder that the command, or the one typed in its place, runs in: absolute; see `require_folder`.
        outputs: The keys that say where the trainer writes.
        remarks: Sentences for the user on what the section leaves open.
        keeps_section: Whether the trials' copies hold the section too, to try whether the trainer takes it.
        code: Values that stand in the trainer's code, by their names.
        are_opened_by_name: Whether the command names no config and no value of one, and the trainer's source does: in
            trials it opens copies in their place (`autotune.trainee.code_values`).
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
        """Config without its section, unless that is kept, from which the trials' copies are made."""
        if self.keeps_section or isinstance(self.document, ComposedDocument):
            return self.document
        return JoinedDocument(without_key(self.document.first, SECTION), self.document.further)

    def require_folder(self) -> None:
        """Raise an error if the folder that the command runs in is not there.

        Raises:
            ConfigError: It is not.
        """
        if not os.path.isdir(self.folder):
            raise ConfigError(
                f"the command runs in a folder, and {self.folder} is no folder",
                where=self.section.place("folder"),
                remedy="Name the folder that training is started in, relative to this file, or absolute.",
            )

    @property
    def paths(self) -> tuple[Path, ...]:
        """Files that values are written into: the config, and the further ones or those that it is composed of."""
        composed = self.document.paths if isinstance(self.document, ComposedDocument) else ()
        return tuple(dict.fromkeys((*self.files.values(), *composed)))

    def changed_on_disk(self, config: Path) -> bool:
        """Return True if a file is no longer what was read; the first one's path is given."""
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
        """Paths of the further configs, by the prefix of their keys."""
        return {prefix: path for prefix, path in self.files.items() if prefix}

    @cached_property
    def scalars(self) -> Values:
        """Values that can be knobs, by path: the config's, the variables (``autotune.env.X``), and the code's."""
        others = [*(f"{ENV}{name}" for name in self.section.env), *self.code]
        return {**self.trial_document.scalars, **{path: self.value(path) for path in others}}

    @cached_property
    def refused(self) -> Mapping[str, str]:
        """Values among `scalars` that cannot be knobs, with the reason."""
        variables = {name: self.leaf(name).why_fixed for name in map(f"{ENV}{{}}".format, self.section.env)}
        fixed = dict.fromkeys(self.section.fixed, "it is fixed by set:")
        return {**fixed, **self.trial_document.refused, **{name: why for name, why in variables.items() if why}}

    def value(self, path: str) -> Scalar:
        """Return the baseline's value of a knob; of a variable its number, if it is one, else its text.

        Raises:
            CannotEditYaml: There is no such key.
        """
        if path in self.code:
            return self.code[path].value
        if path.startswith(CODE):
            raise ConfigError(
                f"there is no {place_of(path)[1]} in that line, or its value is no number any more",
                where=place_of(path)[0],
                remedy="The code has changed: search again.",
            )
        leaf = self.leaf(path)
        return variable_value(leaf.text) if path.startswith(ENV) else leaf.value

    def trial_text(self, values: Values, outputs: Path, prefix: str = "") -> str:
        """Return a trial's own copy of a config.

        It is the user's file but for the knobs, ``set`` and the output paths, and without the section (see
        `keeps_section`).

        Args:
            values: Knob values; those of variables are no part of the text, see `trial_env`.

        Raises:
            CannotEditYaml: A value cannot be changed by itself.
        """
        joined = self.trial_document
        if isinstance(joined, ComposedDocument):
            return "".join(f"- {new_scalar(word)}\n" for word in self.overrides(values, outputs))
        document = joined.further[prefix] if prefix else joined.first
        wanted = self._config_values(values)
        here = {inside: value for path, value in wanted.items() for at, inside in [joined.split(path)] if at == prefix}
        changed = {path: value for path, value in here.items() if not same_value(document.leaf(path).value, value)}
        splices = plan_splices(document, changed)
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
        """Yield the values that name another config as seen from this one, as ``_base_: ../base.yaml``; with its path.

        The copy of a trial lies in another folder.
        """
        folder = self.files[prefix].absolute().parent if prefix else self.home
        joined = self.trial_document
        for leaf in (joined.further[prefix] if prefix else joined.first).leaves:
            name = leaf.value if isinstance(leaf.value, str) and leaf.why_fixed is None else ""
            if not name.lower().endswith((".yaml", ".yml", ".json", ".toml", ".py")) or os.path.isabs(name):
                continue
            is_base = any(re.fullmatch(r"_*(?:base|extend|include|inherit)s?_*", str(key), re.I) for key in leaf.path)
            if (is_base or not (self.folder / name).exists()) and (folder / name).is_file():
                yield leaf, os.path.normpath(folder / name)

    def copies(self, values: Values, folder: Path, outputs: Path) -> dict[str, Copy]:
        """Return a trial's own copies of all configs, by the prefix of their keys; see `trial_text`."""
        made: dict[str, Copy] = {}
        for prefix in self.files:
            document = self.document.further[prefix] if prefix else self.document.first
            if isinstance(self.document, ComposedDocument):
                made[prefix] = Copy(path=folder / "overrides.yaml", text=self.trial_text(values, outputs))
                continue
            # Trainers look at the suffix.
            name = f"config{f'-{prefix}' if prefix else ''}{document.syntax.suffix}"
            made[prefix] = Copy(path=folder / name, text=self.trial_text(values, outputs, prefix))
        return made

    def overrides(self, values: Values, outputs: Path) -> tuple[str, ...]:
        """Return the words that a trial's command line gets in place of a copy; none unless the config is composed."""
        document = self.trial_document
        if not isinstance(document, ComposedDocument):
            return ()
        wanted = self._config_values(values)
        changed = {path: value for path, value in wanted.items() if not same_value(document.leaf(path).value, value)}
        moved = {key: written_like(path, document.leaf(key).text) for key, path in self.moved_outputs(outputs).items()}
        return overrides({**changed, **moved})

    def _config_values(self, values: Values) -> dict[str, Scalar]:
        """Return the values that a trial's config holds for sure: those of ``set``, and the knobs that are its keys."""
        return {**self.section.fixed, **{path: v for path, v in values.items() if not path.startswith((ENV, CODE))}}

    def trial_env(self, values: Values) -> dict[str, str]:
        """Return the variables for the environment of a trial: ``env``, the knobs in it, and values of the code."""
        knobs = {
            path.removeprefix(ENV): str(value)
            for path, value in values.items()
            if path.startswith(ENV) and not same_value(self.value(path), value)
        }
        calls = calls_of_trial(self.code, values)
        return {**self.section.env, **knobs, **({CODE_VARIABLE: calls} if calls else {})}

    def moved_outputs(self, outputs: Path) -> dict[str, str]:
        """Return the paths of the redirected keys in a trial, by dotted path."""
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
            python: The interpreter that runs autotune.
            command: The command that the user typed in place of the section's, split by the shell.
            further: The trial's own copies of further configs, by prefix; None for the user's own files.
            outputs: The folder for a trial's outputs, which a Hydra trainer is told; None leaves it its own.

        Raises:
            ConfigError: There is no command, it has an unknown placeholder, or the config would never reach the
                trainer.
        """
        tokens = command or self.command
        if tokens is None:
            raise ConfigError(
                "it is not known how training is started",
                where=str(self.path),
                remedy="Add to the config: autotune: {command: 'python train.py --config {config}'}, "
                "or put the command behind --.",
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
        if self.folder != Path.cwd():  # the user's own files are named as seen from there
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
            if not path.startswith(os.fspath(outputs)):  # a key that is put in there is redirected already
                words[place] = f"{flag if flag.endswith('=') else ''}{redirected_path(path, outputs)}"
        return tuple(words)

    def redirected(self, command: tuple[str, ...]) -> tuple[str, ...]:
        """Return everything that points into a trial's folder in trials, with that command: keys, flags, overrides."""
        flags = output_flags(command, self.section.redirect_except).values()
        typed = tuple(flag.removesuffix("=") for flag, _path in flags)
        return (*self.outputs.redirected, *typed, *(RUN_FOLDERS if uses_hydra(command, self.folder) else ()))

    def edits(self, values: Values) -> dict[Path, dict[KeyPath, Scalar]]:
        """Return the values that each config does not hold yet, for `autotune.config.apply.plan_edit`."""
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
        """Return the scalar of a knob: a key of a config, or a variable of the section.

        Raises:
            CannotEditYaml: There is no such key.
        """
        source = self.section.source
        if path.startswith(ENV) and source is not None:
            return source.document.leaf((*source.prefix, "env", path.removeprefix(ENV)))
        return self.document.leaf(path)


# Folder that a section's command runs in: the one that it records, or of a section that records none its project's.


def command_folder(config: Path, section: Section, command: Sequence[str] | None) -> tuple[Path, str | None]:
    """Find the folder that the command of a section runs in; that of the shell where there is no command.

    Links are resolved first, so that it is the same one by whatever name the config is reached, and moves with it.

    Returns:
        The folder, absolute, which need not exist; and a sentence that says why it is this one, None where the section
        records it.

    Raises:
        ConfigError: The section names no path.
    """
    if section.source is None or (section.folder is None and command is None):
        return Path.cwd(), None
    beside = Path(os.path.realpath(section.source.document.name)).parent
    if section.folder is None:
        return _found(config, command or (), beside)
    named = path_of(section.folder, beside)
    if named is None:
        raise ConfigError(
            f"{shown(section.folder)} is no path",
            where=section.place("folder"),
            remedy="Name a folder, as in: folder: ..",
        )
    return Path(os.path.realpath(named)), None


def _found(config: Path, words: Sequence[str], beside: Path) -> tuple[Path, str]:
    """Return the folder of a section that records none: the first one of its project that has the command's script.

    It is looked for in the project's folder, in those above the config, and in the shell's if that is part of the
    project: never in another project, whose script may have the same name. Where nothing but the config tells what its
    project is, a shell's folder that holds the config is part of it. Of a command without such a script it is the first
    folder with a file that the command names; of one that names none, the shell's or the project's.
    """
    root, here, real = project_folder(config), Path.cwd(), Path(os.path.realpath(config))
    above = [folder for folder in real.parents if folder != root and folder.is_relative_to(root)]
    is_unmarked = root == real.parent and not os.path.lexists(root / ".git")
    own_here = [here] if here.is_relative_to(root) or (is_unmarked and root.is_relative_to(here)) else []
    folders, script = [root, *above, *own_here], words[own_words(words) - 1]
    with_script = ((folder, script) for folder in folders if _has_script(words, folder))
    with_file = ((folder, word) for folder in folders for word in words if _has_file(word, folder))
    path, name = next(chain(with_script, with_file), ([*own_here, root][0], ""))
    why = f"where {name} is" if name else "the folder of the config's project" if path == root else "where you are"
    likely, whose = path, ""
    if not name and script.endswith(".py") and not os.path.isabs(script):
        why += f"; {script} is not there"
        if _has_script(words, here):  # perhaps another project's
            likely, whose = here, ", for the folder that you are in,"
    line = f"folder: {new_scalar(os.path.relpath(likely, beside))}"
    return path, (
        "The autotune section does not say in which folder its command runs. "
        f"It runs in {path}, {why}. To settle it, add{whose} this line to the section:  {line}"
    )


def _has_script(words: Sequence[str], folder: Path) -> bool:
    path = find_script(words, folder).path
    return path is not None and not os.path.isabs(words[own_words(words) - 1])


def _has_file(word: str, folder: Path) -> bool:
    return "{" not in word and not os.path.isabs(word) and os.path.isfile(folder / word)
