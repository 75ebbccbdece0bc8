"""Recognition of secrets on a command line by their usual names, and masking.

``--password=x``, ``--api-key x``, ``wandb.api_key=x``, ``HF_TOKEN=x``, ``{"token": "x"}``, ``https://user:x@host``.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MASK = "***"
"""Replacement for a secret."""

_SECRET = re.compile(
    r"(?:.*_)?(?:token|secrets?|password|passwd|passphrase|pwd|credentials?|authorization"
    r"|(?:api|access|account|auth|client|encryption|license|private|secret|signing)_?keys?)"
)
_NO_SECRET = re.compile(
    r"(?:(?:use|with|no|is|has|add|skip|ignore|require)_.*"
    r"|(?:.*_)?(?:additional|begin|bos|cls|end|eos|image|mask|max|min|n|new|num|pad|per|prefix|sep|special|start|stop"
    r"|suffix|unk)_token)"
)
"""Names of switches, and of the tokens of language models."""

_NUMBER_OR_SWITCH = re.compile(r"\d{1,9}|true|false|yes|no|on|off|none|null", re.IGNORECASE)
_REFERENCE = re.compile(r"\{!?\w[^{}]*\}|\$\w+|\$\{.*\}")
_FLAG = re.compile(r"--?[A-Za-z][\w.-]*")
_ASSIGNMENT = re.compile(r"([-+~]{0,2}[A-Za-z_][\w./@-]*)=(.*)", re.DOTALL)
_URL = re.compile(r"(?P<head>\b[a-z][\w+.-]*://[^\s/:@]*:)(?P<value>[^\s/@]+)(?=@)", re.IGNORECASE)
_WITHIN = re.compile(
    r"(?P<name>(?<![\w.-])-{0,2}[A-Za-z][\w.-]*)(?P<between>[\"']?\s*[=:]\s*[\"']?|\s+(?=[^-\s]))"
    r"(?P<value>(?:Bearer\s+)?[^\s\"',;&{}\[\]()]+)"
)


@dataclass(frozen=True, kw_only=True)
class Secret:
    """Secret, and the flag, key, variable or URL scheme that it was recognized by."""

    name: str
    value: str


def is_secret_name(name: str) -> bool:
    """Return whether a flag, key or variable of this name usually holds a secret."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.lstrip("-+~"))
    usual = re.sub(r"[^A-Za-z0-9]+", "_", words).lower()
    return _SECRET.fullmatch(usual) is not None and not _NO_SECRET.fullmatch(usual)


def masked(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a command with secrets masked."""
    return tuple(shown for shown, _ in _read(words))


def masked_text(text: str) -> str:
    """Return a text with secrets masked."""
    return _read_text(text)[0]


def secrets_of(words: Sequence[str]) -> list[Secret]:
    """Return the secrets on a command line, in order."""
    return [secret for _, secrets in _read(words) for secret in secrets]


def without(text: str, secrets: Sequence[Secret]) -> str:
    """Mask these secrets in a text that may quote them, except very short ones."""
    for value in sorted({secret.value for secret in secrets}, key=len, reverse=True):
        if len(value) >= 4:  # shorter ones would also match harmless text
            text = text.replace(value, MASK)
    return text


def _read(words: Sequence[str]) -> Iterator[tuple[str, list[Secret]]]:
    next_flag = ""  # the flag whose value comes next
    for word in words:
        flag, next_flag = next_flag, ""
        if flag and not _FLAG.fullmatch(word):
            yield (MASK, [Secret(name=flag, value=word)]) if _is_secret(flag, word) else (word, [])
        elif (match := _ASSIGNMENT.fullmatch(word)) and is_secret_name(match[1]):
            is_one = _is_secret(match[1], match[2])
            yield (f"{match[1]}={MASK}", [Secret(name=match[1], value=match[2])]) if is_one else (word, [])
        elif _FLAG.fullmatch(word):
            next_flag = word if is_secret_name(word) else ""
            yield word, []
        else:
            yield _read_text(word)


def _read_text(text: str) -> tuple[str, list[Secret]]:
    found: list[Secret] = []

    def hide(match: re.Match[str]) -> str:
        if match["value"] == MASK:
            return match[0]
        found.append(Secret(name=match["head"].partition(":")[0], value=match["value"]))
        return f"{match['head']}{MASK}"

    text = _URL.sub(hide, text)
    position = 0
    while match := _WITHIN.search(text, position):
        name, value, position = match["name"], match["value"], match.end("name")
        is_pair = name.startswith("-") or not match["between"].isspace()  # only a flag's value follows a blank
        if is_pair and is_secret_name(name) and _is_secret(name, value):
            found.append(Secret(name=name, value=value))
            text = text[: match.start("value")] + MASK + text[match.end("value") :]
    return text, found


def _is_secret(name: str, value: str) -> bool:
    if not value or value == MASK or _REFERENCE.fullmatch(value):
        return False
    return "token" not in name.lower() or not _NUMBER_OR_SWITCH.fullmatch(value)
