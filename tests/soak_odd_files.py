"""Odd configs given to every command: none of them may be taken for a bug (exit 3), end by a signal, or hang.

``python -m tests.soak odd-files --projects 140 --seed 0 --jobs 2`` prints the slowest, and all that went wrong.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import SHARED

TIMEOUT_S = 60.0
_EMOJI = '"\\ud83d\\ude00"'  # as json.dump writes it; PyYAML makes two lone surrogates of it
_BASE = """\
data: {{batch_size: 4, num_workers: 1}}
out_dir: out
{keys}
autotune:
  command: {command}
{section}
"""
_COMMAND = '"{python} train.py --config {config}"'
_TRAINER = "import sys\nprint(open(sys.argv[2]).read()[:100].encode())\n"


@dataclass(frozen=True, kw_only=True)
class Project:
    """One odd project.

    Attributes:
        name: What is odd about it.
        config: The bytes of config.yaml.
        words: What is typed as the training command.
    """

    name: str
    config: bytes
    words: tuple[str, ...] = ("python", "train.py", "--config", "config.yaml")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Outcome of one command on one project.

    Attributes:
        project: What is odd about the project.
        command: The command's arguments.
        code: Its exit code, negative for a signal; None if it did not end in time.
        said: The last of what it said.
        took_s: How long it took.
    """

    project: str
    command: tuple[str, ...]
    code: int | None
    said: str
    took_s: float

    @property
    def good(self) -> bool:
        """True if the command ended by itself, and not as a bug."""
        return self.code in (0, 1, 2)


def odd_projects(count: int, seed: int) -> list[Project]:
    """Make projects that are odd in a named way, then real configs and the named ones with random bytes changed."""
    projects = list(_named())[:count]
    rng = random.Random(seed)
    sources = [path.read_bytes() for path in sorted((SHARED / "yaml").glob("*.y*ml"))]
    sources += [project.config for project in projects if len(project.config) < 20_000]
    while len(projects) < count:
        changed, how = _mutated(rng.choice(sources), rng)
        projects.append(Project(name=f"changed config {len(projects)}: {how}", config=changed))
    return projects


def look_at(project: Project, *, budget_s: float) -> Iterator[Finding]:
    """Give a project to every command, each time in a new folder.

    Args:
        project: The project.
        budget_s: Of the search that is not only shown; 0 leaves it out.
    """
    config = ("--config", "config.yaml")
    commands: list[tuple[str, ...]] = [
        ("search", *config, "--dry-run"),
        ("search", *config, "--dry-run", "--", *project.words),
        ("init", *config, "--no-preflight", "--yes", "--separate", "--", *project.words),
        (
            "init",
            "--config",
            "new.yaml",
            "--from-flags",
            "--no-preflight",
            "--yes",
            "--",
            *project.words,
            "--batch_size=4",
        ),
        ("apply", *config),
        ("revert", *config),
        ("status", *config, "--json"),
        ("run", *config, "--dry-run"),
    ]
    if budget_s:
        commands.append(("search", *config, "--budget", f"{budget_s:g}s", "--json"))
    for command in commands:
        with tempfile.TemporaryDirectory(prefix="autotune soak ") as folder:
            Path(folder, "config.yaml").write_bytes(project.config)
            Path(folder, "train.py").write_text(_TRAINER)
            yield _run(project, command, folder)


def main(arguments: Sequence[str]) -> int:
    """Run them all, and print what went wrong and what took longest."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak odd-files", description=__doc__)
    parser.add_argument("--projects", type=int, default=140)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--budget", type=float, default=3.0, metavar="SECONDS", help="of one search each; 0: none")
    options = parser.parse_args(arguments)
    projects = odd_projects(options.projects, options.seed)
    with ThreadPoolExecutor(options.jobs) as pool:
        found = [
            finding
            for findings in pool.map(lambda one: list(look_at(one, budget_s=options.budget)), projects)
            for finding in findings
        ]
    codes = Counter("hung" if finding.code is None else f"exit {finding.code}" for finding in found)
    print(f"{len(projects)} odd projects, {len(found)} commands: {dict(codes.most_common())}")
    print("the slowest:")
    for finding in sorted(found, key=lambda one: -one.took_s)[:5]:
        print(f"  {finding.took_s:5.1f} s  {finding.project}: {' '.join(finding.command)[:100]!r}")
    bad = [finding for finding in found if not finding.good]
    for finding in bad:
        print(f"BAD ({finding.code})  {finding.project}: {' '.join(finding.command)[:100]!r}\n    {finding.said!r}")
    return 1 if bad else 0


def _run(project: Project, command: tuple[str, ...], folder: str) -> Finding:
    started_s = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "autotune", *(word.encode(errors="surrogateescape") for word in command)],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        code, said = done.returncode, done.stderr
    except subprocess.TimeoutExpired as error:
        code, said = None, error.stderr or b""
    return Finding(
        project=project.name,
        command=command,
        code=code,
        said=said.decode(errors="backslashreplace")[-300:],
        took_s=time.monotonic() - started_s,
    )


def _named() -> Iterator[Project]:
    for name, keys in _ODD_KEYS.items():
        yield _project(name, keys=keys)
    for name, section in _ODD_SECTIONS.items():
        yield _project(f"section: {name}", section=section)
    for name, command in _ODD_COMMANDS.items():
        yield _project(f"command: {name}", command=command)
    for name, word in _ODD_WORDS.items():
        yield Project(
            name=f"typed: {name}",
            config=_BASE.format(keys="", command=_COMMAND, section="").encode(),
            words=("python", "train.py", "--config", "config.yaml", word),
        )
    for name, content in _ODD_FILES.items():
        yield Project(name=f"file: {name}", config=content)


def _project(name: str, *, keys: str = "", command: str = _COMMAND, section: str = "") -> Project:
    text = _BASE.format(keys=keys, command=command, section=section)
    return Project(name=name, config=text.encode(errors="surrogatepass"))


def _mutated(content: bytes, rng: random.Random) -> tuple[bytes, str]:
    """Change a config at random in a few places; return the changes as well."""
    said = []
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(content) + 1)
        until = min(len(content), at + rng.choice((1, 1, 2, 8, 60)))
        put = rng.choice(_PIECES)
        content = content[:at] + put + (content[at:] if rng.random() < 0.6 else content[until:])
        said.append(f"{put[:12]!r} at {at}")
    return content, ", ".join(said)


_DIGITS = "9" * 5000
_ODD_KEYS = {
    "a long description": f"description: {'word ' * 200}",
    "a long word with slashes": f"description: {'word/' * 2000}",
    "an emoji as json writes it": f"description: {_EMOJI}",
    "an emoji as json writes it, in a path": f'notes: {_EMOJI[:-1]}/x/y"',
    "an emoji as json writes it, in a key": f"? {_EMOJI}\n: 5",
    "an emoji as json writes it, in an output": f'log_dir: {_EMOJI[:-1]}/logs"',
    "half an emoji": 'description: "\\ud83d"',
    "a zero byte": 'description: "a\\0/b"\nlog_dir: "a\\0/b"',
    "a user that is not there": "data_dir: ~nobody-of-this-name/data",
    "a tilde and a zero byte": 'data_dir: "~a\\0/b"',
    "a path through a file": "data_dir: config.yaml/data",
    "a link to itself": "data_dir: /proc/self/fd/loop/../../..",
    "an int that is empty": "x: !!int ''",
    "an int that is a time": "x: !!int '1:30'",
    "an int that is a sign": "x: !!int '-'",
    "a hexadecimal without digits": "x: !!int '0x'",
    "a float that is empty": "x: !!float ''",
    "a bool that is none": "x: !!bool 5",
    "a null that is none": "x: !!null 5",
    "a timestamp that is none": "x: !!timestamp 5",
    "a date that is none": "x: 2020-13-45",
    "a set and an omap": "x: !!set {a, b}\ny: !!omap [a: 1]",
    "bytes": "x: !!binary aGVsbG8=",
    "bytes that are none": 'x: !!binary "\\t"',
    "a number of 5,000 digits": f"x: {_DIGITS}",
    "a number of 5,000 digits in a knob": f"batch_size: {_DIGITS}",
    "a number of 5,000 hexadecimal digits": f"x: 0x{'f' * 5000}",
    "a time of 5,000 digits": f"x: {'1:' * 2500}30",
    "a knob of 10^500": f"train: {{batch_size: 1{'0' * 500}}}",
    "a count of workers of 10^500": f"train: {{num_workers: 1{'0' * 500}}}",
    "a float beyond all": "x: 1.0e+999",
    "a float that is no number": "batch_size: .nan",
    "a batch that is negative": "train: {batch_size: -4}",
    "accumulation of 10^500": f"gradient_accumulation_steps: 1{'0' * 500}",
    "aliases in a circle": "x: &a [*a]",
    "aliases that unfold": "a: &a [1,1,1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: [*b,*b,*b,*b,*b,*b,*b]",
    "an alias as a key": "x: &a k\n*a : 5",
    "a merge of a list": "x: &a [1, 2]\ny: {<<: *a}",
    "a merge of a word": "y: {<<: word}",
    "keys twice": "x: 1\nx: 2\nout_dir: a/b",
    "a key that is a list": "? [a, b]\n: 5",
    "a key that is empty": ": 5",
    "a key that is null": "null: 5\n~: 6",
    "a key of dots": "...: 5\n..: 6\na.b: 1\na: {b: 2}",
    "a long key": f"? {'k' * 3000}\n: 5",
    "deep nesting": f"x: {'[' * 90}{']' * 90}",
    "far too deep nesting": f"x: {'[' * 3000}{']' * 3000}",
    "many keys": "".join(f"k{i}: {i}\n" for i in range(3000)),
    "many comments": "# a comment of some length, as there are many\n" * 20_000,
    "a block of text": "x: |\n  a\n   b\n",
    "a tag of the trainer's": "x: !new:torch.nn.Linear [1, 2]\ny: !ref <x>\nlog_dir: !apply:a <out>/b",
    "a tag that Python builds": "x: !!python/object/apply:os.system ['false']",
    "outputs that are odd": "log_dir: ''\nsave_dir: //\nckpt_dir: ../../..\nresults: ./\nrun_dir: '{x}'\nout_path: https://a/b",
    "an output of many folders": f"log_dir: {'a/' * 3000}b",
    "an output with a long name": f"log_dir: {'a' * 300}/b",
}
_ODD_SECTIONS = {
    "a knob of 10^500": f"  knobs: {{data.batch_size: [4, 1{'0' * 500}]}}",
    "a knob of -10^500": f"  knobs: {{data.batch_size: [4, -1{'0' * 500}]}}",
    "a knob of 5,000 digits": f"  knobs: {{data.batch_size: [4, {_DIGITS}]}}",
    "a range to 10^500": f"  knobs: {{data.batch_size: {{low: 1, high: 1{'0' * 500}}}}}",
    "a range to 10^500 by ratios": f"  knobs: {{data.batch_size: {{low: 1, high: 1{'0' * 500}, log: true}}}}",
    "a range from -1e308 to 1e308": "  knobs: {data.batch_size: {low: -1.0e+308, high: 1.0e+308}}",
    "a range from 1e-320 by ratios": "  knobs: {data.batch_size: {low: 1.0e-320, high: 1.0e+308, log: true}}",
    "a step of 1e-300": "  knobs: {data.batch_size: {low: 1.0, high: 64.0, step: 1.0e-300}}",
    "a step of 1e-320": "  knobs: {data.batch_size: {low: 1.0, high: 64.0, step: 1.0e-320}}",
    "a step that is no number": "  knobs: {data.batch_size: {low: 1.0, high: 64.0, step: .nan}}",
    "100,000 values": f"  knobs: {{data.batch_size: [{', '.join(map(str, range(1, 100_001)))}]}}",
    "values that are alike": "  knobs: {data.batch_size: [4, 4.0, 8]}",
    "values almost alike": "  knobs: {data.batch_size: [9007199254740993, 9007199254740992.0]}",
    "values of all kinds": "  knobs: {data.batch_size: [4, true, null, word, [1]]}",
    "no number": "  knobs: {data.batch_size: [4, .nan, .inf]}",
    "values with an emoji as json writes it": f"  knobs: {{data.batch_size: [{_EMOJI}]}}",
    "a variable with an emoji as json writes it": f"  env: {{X: {_EMOJI}}}",
    "a variable knob with an emoji": f"  env: {{X: a}}\n  knobs: {{autotune.env.X: [a, {_EMOJI}]}}",
    "a variable with a zero byte": '  env: {X: "a\\0b"}',
    "a variable of 5,000 digits": f"  env: {{X: {_DIGITS}}}",
    "a variable of 5,000 digits in quotes": f"  env: {{X: '{_DIGITS}'}}\n  knobs: {{autotune.env.X: ['1', '2']}}",
    "a variable without a name": "  env: {'': a, 'a=b': c}",
    "set with an emoji as json writes it": f"  set: {{out_dir: {_EMOJI}}}",
    "set with a number of 500 digits": f"  set: {{data.batch_size: 1{'0' * 500}}}",
    "a redirect of an emoji": f"  redirect: [{_EMOJI}]",
    "an unknown key": "  budget: 3\n  knbs: {}",
    "a step count of 10^500": f"  trial: {{min_steps: 1{'0' * 500}}}",
    "seconds of 10^500": f"  trial: {{max_s: 1{'0' * 500}, min_s: 1}}",
    "seconds that are no number": "  trial: {max_s: .nan}",
    "lists everywhere": "  knobs: []\n  env: []\n  set: []",
}
_ODD_COMMANDS = {
    "half an emoji": '"{python} train.py --config {config} \\ud800"',
    "half an emoji as the program": '"\\ud800 {config}"',
    "half an emoji in a path": '"/a/\\ud800/b {config}"',
    "an emoji as json writes it": '"{python} train.py --config {config} \\ud83d\\ude00"',
    "a zero byte": '"{python} train.py --config {config} a\\0b"',
    "a zero byte in the program": '"/a\\0b {config}"',
    "a long program": f'"/{"p" * 5000} {{config}}"',
    "a long word": f'"{{python}} train.py --config {{config}} {"w" * 200_000}"',
    "a number": "5",
    "a list": "[python, train.py]",
    "nothing": "",
    "a placeholder that is odd": "'{python} {config} {data} {} {x?'",
    "a placeholder with an emoji": '"{python} {config} {\\ud83d\\ude00}"',
}
_ODD_WORDS = {
    "a long word": "w" * 100_000,
    "a long word after =": f"--description={'w' * 300}",
    "a byte that is no text": "\udcff",
    "a byte that is no text in a path": "--out=/a/\udcff/b",
    "many slashes": "/" * 5000,
    "an operator": "&&",
}
_ODD_FILES = {
    "empty": b"",
    "a comment": b"# nothing\n",
    "a list": b"- a\n- b\n",
    "a word": b"word\n",
    "binary": bytes(range(256)),
    "another version of YAML": b"%YAML 1.3\n---\nbatch_size: 4\n",
    "a version of YAML to come": b"%YAML 2.0\n---\nbatch_size: 4\n",
    "an old version of YAML": b"%YAML 1.1\n---\nbatch_size: 4\n",
    "a version of YAML with many digits": b"%YAML 1." + b"9" * 5000 + b"\n---\nbatch_size: 4\n",
    "a version of YAML that is none": b"%YAML x\n---\nbatch_size: 4\n",
    "a tag directive": b"%TAG ! tag:a,2000:\n---\nbatch_size: !b 4\n",
    "an unknown directive": b"%FOO bar\n---\nbatch_size: 4\n",
    "two documents": b"batch_size: 4\n---\nbatch_size: 5\n",
    "a byte order mark": b"\xef\xbb\xbfbatch_size: 4\n",
    "UTF-16": "batch_size: 4\n".encode("utf-16"),
    "line ends of Windows": b"batch_size: 4\r\nx: 5\r\n",
    "line ends of old": b"batch_size: 4\rx: 5\r",
    "an open quote": b"batch_size: 4\nx: 'abc\n",
    "tabs": b"batch_size:\t4\n\tx: 5\n",
    "JSON": json.dumps({"batch_size": 4, "text": "\U0001f600", "deep": {"a": [1, {"b": None}]}}).encode(),
    "a template": b"batch_size: {{ size }}\n",
    "an escape that is none": b'x: "\\uZZZZ"\nbatch_size: 4\n',
    "an escape beyond all": b'x: "\\UFFFFFFFF"\nbatch_size: 4\n',
    "an escape in a tag": b"x: !%FF 5\nbatch_size: 4\n",
    "an anchor without a name": b"x: & 5\nbatch_size: 4\n",
    "a block with an odd header": b"x: |99999\n  a\nbatch_size: 4\n",
    "5 MiB": b"# " + b"x" * (5 * 2**20) + b"\nbatch_size: 4\n",
}
_PIECES = (
    b"\n",
    b"\r",
    b"\t",
    b" ",
    b"\0",
    b"\xff",
    b"\xe2\x80\xa8",
    b": ",
    b"- ",
    b"{",
    b"}",
    b"[",
    b"]",
    b"'",
    b'"',
    b"#",
    b"&a ",
    b"*a",
    b"!!int ",
    b"!!binary ",
    b"!x ",
    b"|\n",
    b"<<: ",
    b"? ",
    b"%YAML 1.3\n",
    b"---\n",
    b"...\n",
    b"1e999",
    b"9" * 400,
    b"\\ud800",
    b"{{",
    b"${x}",
    b"~",
    b"null",
    b"yes",
)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
