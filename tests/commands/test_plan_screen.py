"""What a search is about to do, and what was found in a config, as they are shown."""

from tests.command_line import CommandLine

PLAN = """\
data: {batch_size: 8, num_workers: 1, cache: [none]}
accumulation: {steps: 4}
log_dir: logs
save_dir: ${log_dir}/saved
autotune:
    command: "{python} train.py {config}"
    knobs: {data.num_workers: {low: 1, high: 12}, data.batch_size: [4, 8]}
    folder: '.'
"""


def test_a_plan_has_a_line_for_everything(simulated: CommandLine) -> None:
    """Values that are tried, of many the first and the last; outputs, the command, and the time."""
    (simulated.folder / "config.yaml").write_text(PLAN)
    said = simulated("search", "--config", "config.yaml", "--dry-run", "--validate", "1m").well().stdout
    assert "1, 2, 3, 4, 5, 6, …, 12" in said
    assert "redirected into each trial's folder, initially empty: log_dir" in said
    assert "command: {python} train.py {config}\n" in said
    assert "24 combinations; budget 30m, part of it reserved to confirm the best against today's values" in said
    assert (
        ", and to train both for up to 1m; 6m to race both on the loss, if the batch or the precision changes" in said
    )


def test_a_dry_run_names_each_key_that_init_names(simulated: CommandLine) -> None:
    """With the reason for which it is not tuned; where the section lists the knobs, that is the reason."""
    keys = "data: {batch_size: 8, prefetch: []}\nvalidation: {batch_size: 8}\nprecision: half\n"
    (simulated.folder / "plain.yaml").write_text(keys)
    found = simulated("init", "--config", "plain.yaml", "--", "python", "train.py", "{config}").stdout
    left = [line for line in found.splitlines() if line.startswith("not tuned: ")]
    assert [line.split(": ")[1] for line in left] == ["validation.batch_size", "data.prefetch", "precision"]
    shown = simulated("search", "--config", "plain.yaml", "--dry-run", "--", "python", "train.py", "{config}").well()
    assert [line for line in shown.stdout.splitlines() if line.startswith("not tuned: ")] == left
    section = "autotune: {command: 'python train.py {config}', knobs: {data.batch_size: [4, 8]}}\n"
    (simulated.folder / "listed.yaml").write_text(keys + section)
    shown = simulated("search", "--config", "listed.yaml", "--dry-run").well()
    assert "not tuned: data.prefetch, precision: knobs: does not list it\n" in shown.stdout


def test_what_no_value_reaches_is_named(simulated: CommandLine) -> None:
    """A flag of the command that beats a key, and numbers in the code; a dry run of `init` writes nothing."""
    keys = "batch_size: 8\nnum_workers: auto\n"
    (simulated.folder / "plain.yaml").write_text(keys)
    (simulated.folder / "train.py").write_text(
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--batch-size', default=16)\n"
        "prefetch = 2\nmodel.fit(x, y, batch_size=32)\nmodel.evaluate(x_test, batch_size=64)\n"
    )
    trainer = ("--", "python", "train.py", "--config", "{config}", "--batch-size", "8")
    said = simulated("init", "--config", "plain.yaml", "--dry-run", *trainer).well().stdout
    assert (simulated.folder / "plain.yaml").read_text() == keys
    assert "+autotune:" in said
    assert "--batch-size in the command may override batch_size: then no other value of it reaches" in said
    assert (
        "not tuned: train.py:4 prefetch = 2, train.py:5 fit.batch_size = 32: it is a constant in the code; as a flag "
        "or a config key it could be tuned\n"
    ) in said
    assert "num_workers" in said.split("not tuned")[0]


def test_no_workers_are_tried_where_the_loader_is_known_to_work_without(simulated: CommandLine) -> None:
    """Of PyTorch; what other trainers do with 0 is not known."""
    (simulated.folder / "plain.yaml").write_text("batch_size: 8\nnum_workers: 4\n")
    trainer = ("--dry-run", "--", "python", "train.py", "{config}")
    (simulated.folder / "train.py").write_text("pool = ThreadPoolExecutor(workers)\n")
    assert " 0, 1, 2, 4" not in simulated("search", "--config", "plain.yaml", *trainer).well().stdout
    call = "loader = DataLoader(data, num_workers=config['num_workers'])\n"
    (simulated.folder / "train.py").write_text(call)
    assert " 0, 1, 2, 4" not in simulated("search", "--config", "plain.yaml", *trainer).well().stdout
    (simulated.folder / "train.py").write_text(f"from torch.utils.data import DataLoader\n{call}")
    assert " 0, 1, 2, 4" in simulated("search", "--config", "plain.yaml", *trainer).well().stdout


def test_code_that_repeats_its_data_is_named_before_the_first_trial(simulated: CommandLine) -> None:
    """In a dry run and in a search; nothing is said where no value that is tried makes a difference."""
    (simulated.folder / "config.yaml").write_text(PLAN)
    (simulated.folder / "train.py").write_text(
        "import torch.utils.data as data\n\n\nclass Stream(data.IterableDataset):\n    def __iter__(self):\n"
        "        return iter(range(5))\n\n\nfor x in data.DataLoader(Stream(), num_workers=2):\n    print(x)\n"
    )
    line = (
        "train.py:5: Stream does not know of workers: with more than one, each repeats the whole stream; "
        "data.num_workers above 1 is tried last\n"
    )
    assert line in simulated("search", "--config", "config.yaml", "--dry-run").well().stdout
    searched = simulated("search", "--config", "config.yaml", "--budget", "30s").stderr
    assert line in searched
    (simulated.folder / "config.yaml").write_text(PLAN.replace("{low: 1, high: 12}", "[1]"))
    assert "Stream" not in simulated("search", "--config", "config.yaml", "--dry-run").well().stdout


def test_an_inventory_has_a_line_for_everything(simulated: CommandLine) -> None:
    """Keys that are left for one reason share a line: a table of trainings has dozens of them."""
    others = "".join(f"{name}: {{batch_size: 8, prefetch: []}}\n" for name in "abcde")
    (simulated.folder / "plain.yaml").write_text(f"log_dir: logs\nsave_dir: ${{log_dir}}/saved\n{others}")
    said = simulated("init", "--config", "plain.yaml", "--", "python", "train.py", "{config}").stdout
    assert " and 2 more: " in said
    assert "redirected into each trial's folder, initially empty: log_dir" in said
    assert "looks like an output, not redirected: save_dir: " in said
    (simulated.folder / "empty.yaml").write_text("lr: 0.1\n")
    said = simulated("init", "--config", "empty.yaml", "--", "python", "train.py", "{config}").stdout
    assert "No known knob was found. List the keys to tune" in said
