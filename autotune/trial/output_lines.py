"""Lines of a trainer's output as a person would quote them: without progress bars, boxes, warnings and colours."""

import re

PROGRESS = "\0"
"""Line that stands for an update of a progress bar; no real line holds a NUL after `output_lines`."""

TRACEBACK = "Traceback (most recent call last):"

_MOST_LETTERS = 1000
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_=>])")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_RANK = re.compile(r"^\[(?:rank\d+|[\w-]+\d+)\]:\s?")  # torchrun puts the rank in front of each line

# tqdm's bar, with or without a known end; what another program wrote behind it stands on the same line.
_TQDM = re.compile(
    r"(?:[^|\n]{0,80}:\s*)?\s*\d{1,3}%\|[^|]{0,400}\|\s*[\d.,]+\w*/[\d.,]+\w*\s\[[^\]]*\]"
    r"|(?:[^|\n:]{0,80}:\s*)?\b\d+\w*it\s\[\d+:\d+[^\]]*\]"
)
_BAR = re.compile(r"[━╸╺█▏▎▍▌▋▊▉]{2,}|\[[=>.#\- ]{8,}\]")
_COUNT = re.compile(r"\b\d+/(?:\d+|Unknown|--)(?:\s|$)|\d{1,3}\s?%")

_BOX_HEAD = re.compile(r"^[╭┌+][─-]+\s*Traceback \(most recent call last\)")
_BOX = re.compile(r"^[╭╰│┃┏┗┡├└┌╞╘┠]")
_BOX_ASCII = re.compile(r"^(?:\|.*\||\+[-─ ]{10,}\+)\s*$")
_GROUP_RULE = re.compile(r"^\s+\+(?:-\+)?-{4,}.*$")
_GROUP = re.compile(r"^(?:  )+[|+] ")

_GLOG_REMARK = re.compile(r"^(?:\[\w+\]:)?\[?[IW]\d{4}\s+\d\d:\d\d:\d\d")
_NOISE = re.compile(
    r"^\S*[^:\s]*:\d+: \w*Warning: "
    r"|^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IW] \S+\.cc:\d+\]"
    r"|^E\d{4} .*(?:failed call to cuInit|Unable to register cu|computation placer already registered)"
    r"|^WARNING: All log messages before absl::InitializeLog"
    r"|^To enable the following instructions: "
    r"|^Set the environment variable HYDRA_FULL_ERROR=1|^Error executing job with overrides: "
    r"|^For simplicity, JAX has removed its internal frames"
    r"|^-{20}$"
    r"|^\s*[\^~]+\s*$"  # marks under a line of code
    r"|^wandb: "
    r"|^\[W\d+ "
)
_WARNED_CODE = re.compile(r"^\s+\S")  # the line of code that a warning quotes


def output_lines(text: str) -> list[str]:
    """Return the lines of an output that say something.

    An update of a progress bar becomes `PROGRESS`; the head of a traceback in a box `TRACEBACK`, and its frames go.

    Args:
        text: A part of what a program wrote.
    """
    lines: list[str] = []
    after_warning = False
    for written in text.split("\n"):
        for part in written.split("\r"):
            line = _CONTROL.sub("", _ESCAPE.sub("", _shortened(part))).rstrip()
            kept = _kept(line)
            quotes_code = after_warning and _WARNED_CODE.match(line)
            after_warning = "Warning: " in line and kept is None
            if kept is None or quotes_code:
                continue
            lines.append(kept)
    return lines


def readable(text: str) -> str:
    """Return an output without what is no line to quote."""
    return "".join(f"{line}\n" for line in output_lines(text) if line.strip() and line != PROGRESS)


def _shortened(line: str) -> str:
    """Return a line without its middle if it is very long: patterns take time, and nobody quotes all of it."""
    return line if len(line) <= 2 * _MOST_LETTERS else f"{line[:_MOST_LETTERS]} {line[-_MOST_LETTERS:]}"


def _kept(line: str) -> str | None:
    """Return a line without its decoration; None if nothing is left that says something."""
    line = _RANK.sub("", line)
    if ("%|" in line or "it [" in line) and _TQDM.search(line):
        rest = _TQDM.sub("", line).strip(" ,")
        return _kept(rest) or PROGRESS if rest else PROGRESS
    if _BOX_HEAD.match(line):
        return TRACEBACK
    if _BOX.match(line) or _BOX_ASCII.match(line) or _GROUP_RULE.match(line):
        return None
    if _BAR.search(line) and _COUNT.search(line):
        return PROGRESS
    if _GLOG_REMARK.match(line) or _NOISE.match(line):
        return None
    return _GROUP.sub("", line)
