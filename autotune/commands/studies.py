"""Studies of one place, found by a config or without one, and what the study commands do with them.

What a command says is returned as the object for ``--json``, and the lines for people.
"""

import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from autotune.clock import Clock, SystemClock
from autotune.commands.output import ask, is_attended, say_aside, say_remarks
from autotune.config.keys import first_of
from autotune.errors import StudyBusy, StudyError
from autotune.files import make_private_folder
from autotune.records import Scalar, SearchResult, Verdict
from autotune.report.plain_text import plain
from autotune.search.problem import Problem, open_problem, this_machine
from autotune.study.claims import RENEWAL_S
from autotune.study.members import Member, hosts_told_apart
from autotune.study.record import Study
from autotune.study.storage.address import SaidAddress, address_of, said_by_environment
from autotune.study.storage.journal import JournalFolder, open_storage
from autotune.study.storage.lock import sole_search
from autotune.study.storage.storage import Storage
from autotune.study.travel import (
    PortableFile,
    StudyFacts,
    StudyName,
    describe_study,
    export_study,
    import_files,
    repair_study,
)
from autotune.trial.process_identity import is_gone
from autotune.trial.state_folder import StateFolder

Said = tuple[Any, ...]
"""The object for scripts, and behind it the lines for people."""


@dataclass(frozen=True, kw_only=True)
class Studies:
    """Studies of one place.

    Attributes:
        shown: The place, for people.
        problem: The config's; None without a config.
    """

    state: StateFolder
    storage: Storage
    shown: str
    problem: Problem | None = None

    def names(self) -> list[str]:
        """Return the names of the studies of configs; others may keep Optuna studies of their own in a database."""
        return [name for name in self.storage.names() if StudyName.of(name)]

    def chosen(self, named: str | None) -> str:
        """Return the study that was named; else that of the config, else the only one that there is.

        Raises:
            StudyError: There is none, or there are several.
        """
        names = self.names()
        if named is not None:
            found, why = named if named in names else None, f"there is no study {named!a}"
        elif self.problem is not None:
            found, why = self.problem.known_study(), "nothing is known about this config yet"
        else:
            found = names[0] if len(names) == 1 else None
            why = f"there are {len(names)} studies" if names else "there is no study"
        if found is not None:
            return found
        remedy = f"Name one with --study: {first_of(names, 10)}."
        if not names:
            remedy = "Name another place with --config, --state-dir or --storage."
        raise StudyError(why, where=self.shown, remedy=remedy)

    def overview(self) -> Said:
        """Say each study in short."""
        documents: list[dict[str, Any]] = []
        lines: list[str] = []
        for name in self.names():
            lines.append(plain(name))
            try:
                facts = self._facts(name)
            except StudyError as error:
                documents.append({"study": name, "error": error.message})
                lines.append(f"  cannot be read: {plain(error.message)}")
                continue
            documents.append(_document(facts))
            lines.append(f"  {facts.trials} trials, last {facts.last_utc or 'none'}; {_gain_text(facts.answer)}")
            lines += [f"  {plain(hardware)}" for hardware in facts.hardware]
        nothing = f"There is no study in {plain(self.shown)}."
        return {"storage": self.shown, "studies": documents}, *(lines or [nothing])

    def description(self, name: str) -> Said:
        """Say all of one study but its trials."""
        facts, where, now = self._facts(name), self.storage.where(name), SystemClock().utc()
        hosts = hosts_told_apart((one.machine, one.host) for one in facts.members)
        going_on = {one.search for one in facts.members if one.seems_at_work(now)}
        endings = ", ".join(f"{count} {ending}" for ending, count in sorted(facts.endings.items()))
        lines = [
            f"Study {name} in {where}",
            f"{facts.trials} trials" + (f": {endings}" if endings else ""),
            *(f"Hardware: {one}" for one in facts.hardware),
            f"Hosts: {', '.join(facts.hosts) or 'none'}",
            *(f"Frameworks: {one}" for one in facts.frameworks),
            f"Made by autotune {', '.join(facts.versions) or '?'}",
            "",
            *(
                f"{one.ended_utc}  {one.name}: {one.trials} trials, "
                + ("it goes on" if one.name in going_on else _gain_text(one.result))
                for one in facts.searches
            ),
            "",
            *(
                f"{one.role.value} on {hosts[one.machine]} since {one.since_utc:%Y-%m-%d %H:%M} UTC: "
                + _state_text(one, now)
                for one in facts.members
            ),
            *([] if facts.members else ["Nobody is known to have worked on it from here."]),
        ]
        return {**_document(facts), "where": where}, *(plain(line, longest=1000) for line in lines)

    def export(self, name: str, file: Path) -> Said:
        """Write a study into a file."""
        contents = export_study(name, self.storage, file, pending=self.state.pending(name))
        trials, unread = len(contents.trials), len(contents.unread)
        lines = [f"{trials} trials of study {name} are in {file}."]
        if contents.interrupted:
            lines.append(f"Left out: {contents.interrupted} trials without a result, which were interrupted or go on.")
        if unread:
            lines.append(f"Left out: {unread} trials that cannot be read; `autotune study repair` lists them.")
        counts = {"trials": trials, "interrupted": contents.interrupted, "unread": unread}
        return {"study": name, "file": str(file), **counts}, *lines

    def import_files(self, files: Sequence[Path]) -> Said:
        """Add the trials of files."""
        done = import_files(files, self._target, self.storage, prepare=self.state.create)
        lines = [f"Study {done.study} in {self.shown}: {done.added} trials added, {done.known} were there already."]
        if done.differing:
            lines.append(f"{done.differing} trials hold something else in two places; what was here stays.")
        return {"storage": self.shown, **asdict(done)}, *lines

    def repair(self, name: str) -> Said:
        """Mend a study."""
        done = repair_study(
            name,
            self.storage,
            clock=SystemClock(),
            is_gone=is_gone,
            watching=lambda number: say_aside(
                f"Trials that are claimed: {number}. Watched for a minute: is somebody at work on them? ..."
            ),
        )
        unread = [f"Trial {number} cannot be read: {why}" for number, why in done.unread.items()]
        more = len(unread) - 20
        said = (
            (True, f"Study {name}: trials that can be read: {done.trials}, without a result: {done.interrupted}."),
            (done.torn_bytes, f"Cut off: {done.torn_bytes} bytes of a torn last entry, which are kept beside it."),
            (done.closed, f"Closed: {done.closed} trials that nobody makes any more."),
            (done.going_on, f"{done.going_on} trials go on."),
            (done.doubles, f"{done.doubles} trials were written twice; one of each counts."),
            *((True, line) for line in unread[:20]),
            (more > 0, f"... and {more} more that cannot be read"),
        )
        document = {"study": name, **asdict(done), "unread": {str(n): why for n, why in done.unread.items()}}
        return document, *(line for is_so, line in said if is_so)

    def require_yes(self, name: str, *, is_for_scripts: bool) -> None:
        """Ask whether a study is to be deleted.

        Raises:
            StudyError: There is nobody to ask.
            click.Abort: The answer is no.
        """
        if is_for_scripts or not is_attended():
            raise StudyError(
                f"study {name} is not deleted without a yes", where=self.shown, remedy="Say it with --yes."
            )
        ask(f"Move study {name} in {self.shown} to the trash?", must=True)

    def delete(self, name: str, clock: Clock) -> Said:
        """Move everything of a study to the trash folder.

        Raises:
            StudyBusy: Somebody works on it.
            StudyError: It cannot be moved.
        """
        self.state.create()
        trash = self.state.path / "trash" / f"{clock.utc():%Y%m%dT%H%M%SZ}-{name}"
        with ExitStack() as stack:
            lock = self.state.search_lock(name, this_machine((), {}, {}).name)
            stack.enter_context(sole_search(lock, name))
            self._require_idle(name, clock)
            try:
                make_private_folder(trash.parent)
                make_private_folder(trash)
                if isinstance(self.storage, JournalFolder):
                    home = shlex.quote(str(self.storage.path(name).parent))
                    back = f"mv {shlex.quote(str(trash / name))}.journal* {home}/"
                else:
                    exported = trash / f"{name}.jsonl"
                    export_study(name, self.storage, exported, pending=self.state.pending(name))
                    back = f"autotune study import {shlex.quote(str(exported))} --storage {shlex.quote(self.shown)}"
                self.storage.discard(name, trash)
                for beside, end in ((self.state.pending(name), ".pending"), (self.state.trials(name), ".trials")):
                    if beside.exists() and not beside.is_symlink():
                        beside.rename(trash / f"{name}{end}")
            except (OSError, ValueError) as error:
                why = getattr(error, "strerror", None) or str(error)
                raise StudyError(
                    f"it cannot be moved: {ascii(why)[1:-1]}",
                    where=str(trash),
                    remedy="Mend that; what was moved is in this folder.",
                ) from error
        document = {"study": name, "trash": str(trash), "to_get_it_back": back}
        return document, f"Study {name} is in {trash}. To get it back:\n  {back}"

    def _facts(self, name: str) -> StudyFacts:
        return describe_study(name, self.storage, objective=self.problem.objective if self.problem else None)

    def _require_idle(self, name: str, clock: Clock) -> None:
        """Raise an error if somebody else is at work on a study, on whichever machine."""
        there = self._members(name)
        working = [one for one in there if one.seems_at_work(clock.utc())]
        silent = {one.uuid: one.n for one in there if not one.has_left and not is_gone(one.about)}
        if silent and not working:  # by its clock, which may be an hour off: does it go on giving signs of life?
            watched_s = 2.0 * RENEWAL_S  # a sign of life may be late
            say_aside(f"Members that have not left: {len(silent)}. Watched for {watched_s:.0f} s: is one at work? ...")
            clock.wait(watched_s)
            working = [one for one in self._members(name) if silent.get(one.uuid, one.n) != one.n]
        if working:
            raise StudyBusy(
                f"study {name} is worked on by {len(working)} processes, one on {working[0].host!a}",
                where=self.shown,
                remedy="End them, or wait until they have ended for a minute and a half; then run the same command "
                "again.",
            )

    def _members(self, name: str) -> list[Member]:
        study = Study(name, self.storage, reads_only=True)
        try:
            return study.members()
        finally:
            study.close()

    def _target(self, files: Sequence[PortableFile]) -> StudyName:
        """Return the study that takes the trials of all these files."""
        first = files[0]
        for file in files[1:]:
            if file.header.study != first.header.study:
                raise StudyError(
                    f"this is of study {file.header.study.text}, and {first.path} of {first.header.study.text}",
                    where=str(file.path),
                    remedy="Import the files of one study at a time.",
                )
        return first.header.study if self.problem is None else _study_of(first, self.problem)


def open_studies(config: Path | None, state_dir: Path | None, storage: str | None) -> Studies:
    """Open the place that a config says, or the one of the working directory.

    Raises:
        AutotuneError: The config, the folder or the address cannot be used.
    """
    if config is not None:
        problem = open_problem(config, command=None, state_dir=state_dir, storage=storage)
        state, address, opened = problem.state, problem.address, problem.storage
    else:
        here, problem = Path.cwd(), None
        state = StateFolder.locate(here / "config.yaml", explicit=state_dir, environ=os.environ)
        typed = SaidAddress(text=storage, where="--storage", folder=here) if storage else None
        address = address_of(typed, said_by_environment(os.environ, here))
        opened = open_storage(address, state.studies)
    say_remarks(state.remarks)
    return Studies(state=state, storage=opened, shown=address.shown if address else str(state.studies), problem=problem)


def _study_of(file: PortableFile, problem: Problem) -> StudyName:
    """Return the study of a config that a file is of."""
    theirs, ours = file.header.study, StudyName.of(problem.study)
    if ours is None:
        raise StudyError("the name of this config's study does not travel", where=problem.study, remedy="Rename it.")
    if theirs.training != ours.training:
        raise StudyError(
            f"it is of another study: {_what_differs(file, problem)}",
            where=str(file.path),
            remedy=f"Import it for the config that it is of; this one's study is {ours.text}. Without --config it goes "
            "into a study of its own.",
        )
    for name in (ours, StudyName.of(problem.known_study())):
        if name is not None and (name.frameworks, name.command) == (theirs.frameworks, theirs.command):
            return name
    if not problem.command:  # neither the command nor its frameworks are known here
        text = f"{ours.stem}-{theirs.training}-{theirs.frameworks}-{theirs.command}"
        return StudyName.of(text) or theirs
    differing = []
    if theirs.frameworks != ours.frameworks:
        there = ", ".join(f"{name} {_listed(some)}" for name, some in file.header.frameworks.items()) or "none known"
        here = ", ".join(f"{name} {version}" for name, version in problem.frameworks.items()) or "none known"
        differing.append(f"its frameworks are {_shown(there)}, here {here}")
    if theirs.command != ours.command:
        differing.append("its trainer's command is another")
    raise StudyError(
        f"it is of a sibling of this config's study: {'; '.join(differing)}",
        where=str(file.path),
        remedy="Use the same versions and the same command on both machines, or import it without --config, into a "
        "study of its own.",
    )


def _what_differs(file: PortableFile, problem: Problem) -> str:
    here, there = problem.conditions, file.header.hardware
    said = [
        f"{name} {_shown(_listed(there[name]))}, here {here.get(name)}"
        for name in ("gpus", "cpu_model", "cpu_cores", "memory_bytes")
        if there.get(name) and here.get(name) not in there[name]
    ]
    return "; ".join(said) or "its config holds other values besides the knobs, or has another objective"


def _listed(values: Sequence[Scalar]) -> str:
    return " or ".join(str(value) for value in values[:5])


def _shown(text: str) -> str:
    return ascii(text)[1:-1][:200]


def _gain_text(result: SearchResult | None) -> str:
    if result is None:
        return "no answer yet"
    if result.verdict is Verdict.BETTER and (ratio := result.speedup) is not None:
        return f"better: {ratio.ratio:.2f}x (95 % interval {ratio.low:.2f} to {ratio.high:.2f})"
    return result.verdict.value.replace("_", " ")


def _gain(result: SearchResult | None) -> dict[str, Any] | None:
    if result is None:
        return None
    ratio = result.speedup
    speedup = None if ratio is None else {"ratio": ratio.ratio, "low": ratio.low, "high": ratio.high}
    return {"verdict": result.verdict.value, "speedup": speedup}


def _document(facts: StudyFacts) -> dict[str, Any]:
    """Return a study as scripts get it."""
    plainly = ("trials", "endings", "last_utc", "hosts", "hardware", "frameworks", "versions")
    return {
        "study": facts.name,
        **{name: getattr(facts, name) for name in plainly},
        "answer": _gain(facts.answer),
        "searches": [
            {"search": one.name, "trials": one.trials, "ended_utc": one.ended_utc, "answer": _gain(one.result)}
            for one in facts.searches
        ],
        "members": list(map(dict, map(_member, facts.members))),
    }


def _member(one: Member) -> Iterator[tuple[str, str]]:
    for name in ("host", "machine", "role", "search", "phase"):
        yield name, str(getattr(one, name))
    for name in ("since_utc", "renewed_utc"):
        yield name, getattr(one, name).isoformat(timespec="seconds")
    yield "left_because", one.left_because


def _state_text(member: Member, now: datetime) -> str:
    if member.has_left or member.seems_at_work(now):
        return member.phase.value + (f" ({member.left_because})" if member.left_because else "")
    return f"no sign of life since {member.renewed_utc:%Y-%m-%d %H:%M} UTC"
