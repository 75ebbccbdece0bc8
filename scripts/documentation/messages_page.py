"""Page of the sentences of ``autotune diagnose`` in Persian, beside the English ones."""

from autotune.diagnose.persian import PERSIAN
from scripts.documentation.messages import english_templates
from scripts.documentation.tables import prose, table

_PARTS = (
    ("نتیجه", ("verdict.", "count.", "ratio")),
    ("پرسش‌های بررسی‌ها", ("check.",)),
    (
        "اندازه‌گیری با trial",
        ("input.", "fixed-cost.", "steadiness.", "outside.", "switches.", "diagnoser.", "in-force."),
    ),
    ("همسایه‌ها و حافظه", ("neighbours.", "memory-room.", "memory.")),
    ("config", ("config.", "mistake.")),
    ("ماشین، دیسک و framework", ("hardware.", "storage.", "framework.")),
    ("کد trainer", ("rule.", "code.")),
    ("knobها", ("knob.",)),
)


def messages_page() -> str:
    """Return the page."""
    templates = dict(english_templates())
    parts = [_INTRODUCTION]
    for heading, prefixes in _PARTS:
        rows = [
            (f"`{id}`", _cell(PERSIAN[id]), f'<span dir="ltr">{_cell(english)}</span>')
            for id, english in sorted(templates.items())
            if id.startswith(prefixes) and id in PERSIAN
        ]
        parts.append(f"## {heading}\n\n{table(('id', 'فارسی', 'English'), rows)}")
    body = "\n\n".join(parts)
    return f'<div dir="rtl" lang="fa" markdown="1">\n\n{body}\n\n</div>'


def _cell(text: str) -> str:
    return prose(text).replace("*", "\\*").replace("_", "\\_").replace("{", "‹").replace("}", "›").replace("`", "'")


_INTRODUCTION = """# پیام‌های diagnose

جمله‌هایی که `autotune diagnose --lang fa` می‌گوید، کنار جمله‌های انگلیسی. آنچه میان ‹ › است با عدد، نام یا مسیر پر
می‌شود. آنچه دیگران گفته‌اند، مثل پیام driver یا خطای trainer، به همان زبان خودش می‌ماند."""
