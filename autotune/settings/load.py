"""Loading of everything that a search needs from the user's files, checked before the first process starts."""

from collections.abc import Sequence
from pathlib import Path

from autotune.errors import CannotEditYaml, ConfigError
from autotune.settings.command import split_command
from autotune.settings.folder import command_folder
from autotune.settings.hydra.compose import compose
from autotune.settings.hydra.composed import ComposedDocument
from autotune.settings.loaded import Settings
from autotune.settings.outputs import find_outputs
from autotune.settings.paths import exists, path_of
from autotune.settings.schema import (
    ENV,
    SECTION,
    UNFIT_REMEDY,
    Domain,
    Range,
    Section,
    Source,
    parse_section,
    why_unfit,
)
from autotune.settings.text.document import Document
from autotune.settings.text.joined import JoinedDocument, check_prefix
from autotune.settings.text.keys import did_you_mean, shown
from autotune.settings.text.scanners import no_garbage
from autotune.settings.text.splice import check_editable
from autotune.settings.text.syntax import Syntax


@no_garbage()
def load_settings(
    config: Path,
    *,
    folder: Path | None = None,
    typed_command: Sequence[str] | None = None,
    runs_in: Path | None = None,
) -> Settings:
    """Load a config and its section, in the file or in ``<stem>.autotune.yaml`` beside it, and further configs.

    Args:
        config: The config.
        folder: The folder that further configs are relative to; None for the config's own.
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
        document=document,
        files=files,
        section=section,
        command=command,
        folder=cwd,
        outputs=outputs,
        remarks=(remark,) if remark else (),
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
        return parse_section(Source(document, (SECTION,))) if SECTION in document else Section()
    if SECTION in document:
        raise ConfigError(
            f"there are two autotune sections: here, and in {beside.name}",
            where=f"{document.name}:{document.line(SECTION)}",
            remedy="Delete one of them.",
        )
    separate = Document.read(beside)
    return parse_section(Source(separate, (SECTION,) if SECTION in separate else ()))


def _check_key(settings: Settings, path: str, part: str) -> None:
    where = settings.section.place(part, path)
    is_variable = path.startswith(ENV) and part == "knobs"
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
