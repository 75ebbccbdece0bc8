"""Changing values in JSON, TOML and Python texts: only the values change, or nothing does."""

import ast
import json
import tomllib
from functools import reduce
from operator import getitem

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.config.document import Document
from autotune.config.splice import plan_splices, splice
from autotune.errors import CannotEditYaml, ConfigError


def edited(text: str, name: str, values) -> str:
    """Return the text with other values in it."""
    document = Document(text, name)
    return splice(document, plan_splices(document, values))


@pytest.mark.parametrize(
    ("name", "old", "value", "new"),
    [
        ("c.json", '{"a": 16}', 32, '{"a": 32}'),
        ("c.json", '{\n\t"b": 1,\n\t"a"  :\t16\n}\n', 8, '{\n\t"b": 1,\n\t"a"  :\t8\n}\n'),
        ("c.json", '{"a": 1e-4}', 0.0003, '{"a": 3.0e-04}'),
        ("c.json", '{"a": true}', False, '{"a": false}'),
        ("c.json", '{"a": 3}', None, '{"a": null}'),
        ("c.json", '{"a": "gpu"}', 'no "é"', '{"a": "no \\"\\u00e9\\""}'),
        ("c.json", '{"\\u0061": "\\ud83d\\ude00"}', "x", '{"\\u0061": "x"}'),
        ("c.json", '\ufeff{"b": [{"c": "}"}],\r\n "a": 1}\r\n', 3, '\ufeff{"b": [{"c": "}"}],\r\n "a": 3}\r\n'),
        ("c.toml", "a = 16  # why\n", 32, "a = 32  # why\n"),
        ("c.toml", "a = 0x10", 32, "a = 32"),
        ("c.toml", "a = 0.1", 2, "a = 2.0"),
        ("c.toml", "a = -inf", float("inf"), "a = inf"),
        ("c.toml", "a = true", False, "a = false"),
        ("c.toml", "a = 'x'", "it's", 'a = "it\'s"'),
        ("c.toml", 'a = "x"', "C:\\é\n", 'a = "C:\\\\é\\u000a"'),
        ("c.toml", '"a" = 1 # "a = 2"\n', 3, '"a" = 3 # "a = 2"\n'),
        ("c.toml", "\ufeff# a = 2\r\n\r\na = 1\r\n", 3, "\ufeff# a = 2\r\n\r\na = 3\r\n"),
        ("c.toml", 'b = """\na = 2\n"""\na = 1\n', 3, 'b = """\na = 2\n"""\na = 3\n'),
        ("c.toml", "b = [ # a = 2 ]\n 1,\n]\na = 1\n", 3, "b = [ # a = 2 ]\n 1,\n]\na = 3\n"),
        (
            "c.toml",
            "d = 1979-05-27 07:32:00Z\nt = 07:32:00\na = 1\n",
            3,
            "d = 1979-05-27 07:32:00Z\nt = 07:32:00\na = 3\n",
        ),
        (
            "c.toml",
            'b = [\n  ["a"],\n  ["c"]\n]\na = 1\n[d]\na = 1\n',
            3,
            'b = [\n  ["a"],\n  ["c"]\n]\na = 3\n[d]\na = 1\n',
        ),
        ("c.py", "a = 16  # why\r\n", 32, "a = 32  # why\r\n"),
        ("c.py", "a: int = 0x10", 32, "a: int = 32"),
        ("c.py", "é = 'ü'; a = -1_000", 2, "é = 'ü'; a = 2"),
        ("c.py", "a = 1e-4", 3e-4, "a = 3.0e-04"),
        ("c.py", "a = True\n", False, "a = False\n"),
        ("c.py", "a = None", True, "a = True"),
        ("c.py", "a = 'x'", "it's", 'a = "it\'s"'),
        ("c.py", 'a = "x"', "C:\\é\n", 'a = "C:\\\\é\\x0a"'),
        ("c.py", "\ufeff# a = 2\nb = 'a = 1'\na = 1\n", 3, "\ufeff# a = 2\nb = 'a = 1'\na = 3\n"),
    ],
)
def test_only_the_value_changes(name: str, old: str, value, new: str):
    """Comments, tabs, line ends, quotes and escapes stay; an int stays an int, and a float keeps its point."""
    assert edited(old, name, {"a": value}) == new


CONFIG = """\
import torch
_base_ = ['../base.py']
batch_size, unused = 2, 3
lr = 1e-3
lr *= 2
train_dataloader = dict(
    batch_size=4, num_workers=0,  # none
    dataset=dict(type=torch.utils.data.Dataset, pipeline=[dict(type='Crop', size=(8, 8))]))
test_dataloader = train_dataloader
val = {'batch_size': 1, 2: 3}
val['batch_size'] = 4
dataloader = torch.load('x')
dataloader.train.num_workers = 4
optimizer = L(Adam)(lr=0.1)


def get_config():
    config = ConfigDict()
    config.steps = 10
    config.data = ConfigDict()
    config.data.prefetch = 2
    if torch.cuda.is_available():
        config.steps = 20
    return config
"""


def test_a_python_config_is_read_by_its_syntax():
    """Dicts, calls, attributes, and what `get_config` sets; what changes elsewhere is left alone."""
    document = Document(CONFIG, "c.py")
    values = {
        "train_dataloader.num_workers": 2,
        "train_dataloader.dataset.pipeline.0.size.1": 16,
        "dataloader.train.num_workers": 8,
        "optimizer.lr": 0.2,
        "data.prefetch": 4,
    }
    new = edited(CONFIG, "c.py", values)
    lines = zip(CONFIG.splitlines(), new.splitlines(), strict=True)
    assert [now.strip() for old, now in lines if old != now] == [
        "batch_size=4, num_workers=2,  # none",
        "dataset=dict(type=torch.utils.data.Dataset, pipeline=[dict(type='Crop', size=(8, 16))]))",
        "dataloader.train.num_workers = 8",
        "optimizer = L(Adam)(lr=0.2)",
        "config.data.prefetch = 4",
    ]
    left = [path for path, why in document.refused.items() if "computes it" in why]
    assert left == ["lr", "train_dataloader.dataset.type", "test_dataloader", "val", "steps"]


TABLES = """\
title = "x"
model.size = 1   # dotted

[data]
batch_size = 16
loader = {workers = 4, "pin memory" = true, deep = {x = 1}}
'a.b' = 2

[data.nested]
lr = 0.1
sizes = [1, 2, [3]]

[[stages]]
steps = 10
[stages.optimizer]
lr = 1.0
[[stages]]
steps = 20
[stages.optimizer]
lr = 2.0
"""


def test_tables_of_every_form():
    """Headers, dotted keys, inline tables, lists, and lists of tables are paths like those of YAML."""
    document = Document(TABLES, "c.toml")
    assert document.data == tomllib.loads(TABLES)
    values = {
        "model.size": 2,
        "data.batch_size": 32,
        "data.loader.workers": 8,
        "data.loader.pin memory": False,
        "data.loader.deep.x": 5,
        "data.a.b": 3,
        "data.nested.sizes.2.0": 9,
        "stages.1.optimizer.lr": 4,
    }
    new = edited(TABLES, "c.toml", values)
    assert [now for old, now in zip(TABLES.splitlines(), new.splitlines(), strict=True) if old != now] == [
        "model.size = 2   # dotted",
        "batch_size = 32",
        'loader = {workers = 8, "pin memory" = false, deep = {x = 5}}',
        "'a.b' = 3",
        "sizes = [1, 2, [9]]",
        "lr = 4.0",
    ]


@pytest.mark.parametrize(
    ("text", "name", "value", "why"),
    [
        ("a = 1979-05-27", "c.toml", "x", "date"),
        ('a = """x"""', "c.toml", "y", "block"),
        ("a = 1", "c.toml", None, "TOML has no None"),
        ("a = 1", "c.toml", 2**63, "64 bits"),
        ("a = {b = 1}", "c.toml", 1, "mapping"),
        ("a = '${b}'", "c.toml", "x", "template"),
        ('{"a": 1.0}', "c.json", float("nan"), "JSON has no nan"),
        ("a = 1.0", "c.py", float("inf"), "Python has no inf"),
        ("a = 'x' 'y'", "c.py", "z", "computes it"),
        ("a = f'{1}'", "c.py", "z", "computes it"),
        ("a = 1\nif b:\n    a = 2", "c.py", 3, "computes it"),
        ('{"a": [1]}', "c.json", 1, "list"),
    ],
)
def test_what_cannot_be_kept_is_refused(text: str, name: str, value, why: str):
    """Rather no edit than one that a trainer reads as something else."""
    with pytest.raises(CannotEditYaml, match=why):
        edited(text, name, {"a": value})


@pytest.mark.parametrize(
    ("text", "name", "why", "line"),
    [
        ('{"a": 1,}', "c.json", "not valid JSON", 1),
        ('{"a": 1, "b": "a\\": 1", "a": 16}', "c.json", "duplicate key", None),
        ('{\n  // why\n  "a": 1}', "c.json", "not valid JSON", 2),
        ("[1]", "c.json", "list", 1),
        ('{"a": ' + "9" * 5000 + "}", "c.json", "JSON", None),
        ('{"a": ' * 5000 + "1" + "}" * 5000, "c.json", "JSON|nested", None),
        ("a = 1\na = 2\n", "c.toml", "not valid TOML", 2),
        ("a = 1\nb = \n", "c.toml", "not valid TOML", 2),
        ("a = " + "[" * 5000 + "]" * 5000, "c.toml", "TOML|nested", None),
        ("a = 1\nb = \n", "c.py", "not valid Python", 2),
        ("a = 1\0", "c.py", "Python", None),
        ("a = " + "[" * 5000 + "]" * 5000, "c.py", "Python|nested", None),
        ("train.batch_size = 1", "c.gin", "gin configs are not supported", None),
    ],
)
def test_an_error_names_the_line(text: str, name: str, why: str, line: int | None):
    """As the parser of the standard library sees it, where the text is not valid."""
    with pytest.raises(ConfigError, match=why) as caught:
        Document(text, name)
    if line is not None:
        assert caught.value.where == f"{name}:{line}"
    assert caught.value.remedy


SCALARS = st.one_of(st.booleans(), st.integers(-(2**62), 2**62), st.floats(-1e18, 1e18), st.text(max_size=6))
DATA = st.dictionaries(
    st.text(min_size=1, max_size=4),
    st.recursive(
        SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=80, deadline=None)
@given(DATA, st.sampled_from([None, 1, "\t"]), st.booleans(), st.integers(0, 10**6), SCALARS)
def test_any_json_value_can_be_changed_alone(data, indent, ascii_only, pick, value):
    """Whatever the data and the layout, reading the result gives the old data with the one value changed."""
    text = json.dumps(data, indent=indent, ensure_ascii=ascii_only)
    check_one_edit(text, "c.json", data, json.loads, pick, value)


@settings(max_examples=80, deadline=None)
@given(DATA, st.booleans(), st.sampled_from(["\n", "\r\n", "  # c'\"]\n"]), st.integers(0, 10**6), SCALARS)
def test_any_toml_value_can_be_changed_alone(data, tables, newline, pick, value):
    """As above, for values in tables, inline tables and lists."""
    text = written_as_toml(data, newline, tables=tables)
    check_one_edit(text, "c.toml", data, tomllib.loads, pick, value)


@settings(max_examples=80, deadline=None)
@given(DATA, st.integers(0, 10**6), SCALARS)
def test_any_python_value_can_be_changed_alone(data, pick, value):
    """As above, for dicts and lists that a name is given to."""
    check_one_edit(f"top = {data!r}", "c.py", {"top": data}, read_python, pick, value)


def read_python(text: str):
    """Read what a name is given, without running it."""
    return {"top": ast.literal_eval(text.removeprefix("top = "))}


def check_one_edit(text: str, name: str, data, read, pick: int, value) -> None:
    """Change one value, and read the text with the parser that a trainer has."""
    assert read(text) == data
    document = Document(text, name)
    assert document.text == text
    leaves = [leaf for leaf in document.leaves if not leaf.why_fixed]
    if not leaves:
        return
    leaf = leaves[pick % len(leaves)]
    new = splice(document, plan_splices(document, {leaf.path: value}))
    if new != text:
        assert (new[: leaf.start], new[len(new) - len(text) + leaf.end :]) == (text[: leaf.start], text[leaf.end :])
    expected = json.loads(json.dumps(data))
    reduce(getitem, leaf.path[:-1], expected)[leaf.path[-1]] = value
    assert read(new) == expected


def written_as_toml(data, newline: str, *, tables: bool) -> str:
    """Write a config in TOML, with headers or inline tables."""

    def inline(value) -> str:
        if isinstance(value, dict):
            return "{" + ", ".join(f"{quoted(key)} = {inline(item)}" for key, item in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ", ".join(map(inline, value)) + "]"
        if isinstance(value, str):
            return quoted(value)
        return str(value).lower() if isinstance(value, bool) else repr(value)

    plain = {key: value for key, value in data.items() if not (tables and isinstance(value, dict))}
    lines = [f"{quoted(key)} = {inline(value)}{newline}" for key, value in plain.items()]
    for key in data.keys() - plain.keys():
        lines.append(f"[{quoted(key)}]{newline}")
        lines += [f"{quoted(name)} = {inline(value)}{newline}" for name, value in data[key].items()]
    return "".join(lines)


def quoted(text: str) -> str:
    """Return a basic string of TOML."""
    return '"' + "".join(c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in text) + '"'
