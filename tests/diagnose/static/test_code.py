"""Rules about sources: lines marked with ``# <- rule`` are found, and no others."""

import re
import textwrap
from pathlib import Path

import pytest

from autotune.clock import SystemClock
from autotune.diagnose.code_scan import TrainerMachine, check_code, scan
from autotune.diagnose.findings import Diagnosis, Verdict
from autotune.diagnose.look import Look
from autotune.diagnose.tables import RULES
from autotune.report.diagnosis import diagnosis_document
from autotune.search.problem import open_problem
from tests.diagnose.static.problems import problem_of

GPU = TrainerMachine(cores=8, has_gpu=True)
_MARK = re.compile(r"# <- ([\w-]+)")

KERAS_BY_HAND = """
import tensorflow as tf
model = make_model()
model.compile(optimizer="adam", run_eagerly=True)  # <- eager-by-hand
tf.config.run_functions_eagerly(True)  # <- eager-by-hand
model.run_eagerly = True  # <- eager-by-hand
tf.data.experimental.enable_debug_mode(True)  # <- eager-by-hand
tf.debugging.enable_check_numerics()  # <- checks-every-number
"""
EAGER_LOOP = """
import tensorflow as tf
import tensorflow.keras as keras

def train(model, data, optimizer, loss_of):
    for x, y in data:
        with tf.GradientTape() as tape:
            loss = loss_of(model, x, y)
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables))  # <- eager-step
        print(loss.numpy())  # <- numbers-fetched
        if int(optimizer.iterations.numpy()) % 100 == 0:
            print(loss.numpy())

data = tf.data.Dataset.from_generator(read, output_types=tf.float32)  # <- from-generator
data = data.map(tf.io.decode_png).batch(8)  # <- serial-map  # <- no-prefetch
train(keras.Model(), data, None, None)
"""
PYTHON_IN_GRAPH = """
from tensorflow import numpy_function as call_numpy
import tensorflow.compat.v1 as tf1
from tensorflow.data import Dataset as D, AUTOTUNE

def load(name):
    return call_numpy(read, [name], "float32")  # <- python-in-graph

def load_old(name):
    return tf1.py_func(read, [name], "float32")  # <- python-in-graph

names = D.list_files("*.wav")
train = names.map(load, num_parallel_calls=4).map(load_old, 4).batch(8).prefetch(AUTOTUNE)
fit(train)
"""
RETRACING = """
import tensorflow as tf

@tf.function
def step(x, n):
    return x * n

signed = tf.function(step, input_signature=[tf.TensorSpec(()), tf.TensorSpec(())])

for epoch in range(3):
    compiled = tf.function(other)  # <- function-made-in-loop
    for index, batch in enumerate(data):
        step(batch, index)  # <- counter-as-argument
        step(batch, n=epoch)  # <- counter-as-argument
        step(batch, tf.constant(index))
        signed(batch, index)

for model in models:
    compiled = tf.function(model)
"""
TORCH_LOOP = """
import gc
import torch
from torch.utils.data import DataLoader
import torch.utils.data as tud

WORKERS = 0

def main(args):
    torch.autograd.set_detect_anomaly(True)  # <- anomalies-detected
    loader = DataLoader(Clips(), batch_size=4, pin_memory=True)  # <- loader-without-workers
    second = tud.DataLoader(Clips(), num_workers=WORKERS, pin_memory=True)  # <- loader-without-workers
    third = DataLoader(Clips(), num_workers=args.workers)  # <- loader-without-pinning
    model.cuda()
    for epoch in range(args.epochs):
        total = 0.0
        for x, y in loader:
            x = next(iter(loader))  # <- loader-restarted
            loss = model(x.cuda()).mean()
            loss.backward()
            optimizer.step()
            total += loss.item()  # <- numbers-fetched
            shown = y.detach().cpu().numpy()  # <- numbers-fetched
            print(f"loss {loss}")  # <- numbers-fetched
            torch.cuda.empty_cache()  # <- memory-cleaned
            gc.collect()  # <- memory-cleaned
            if epoch % 10 == 0:
                print(loss.item())
        print(total)
        gc.collect()

main(None)
"""
STEP_FUNCTION = """
import torch
import lightning as L

class Trainer:
    def train_batch(self, x):
        loss = self.model(x)
        self.scaler.scale(loss).backward()
        return loss.item()  # <- numbers-fetched

    def train_epoch(self, loader):
        for x in loader:
            self.train_batch(x)

class Module(L.LightningModule):
    def training_step(self, batch, index):
        loss = self(batch)
        self.seen.append(loss.item())  # <- numbers-fetched
        return loss

    def validation_step(self, batch, index):
        return self(batch).item()

Trainer().train_epoch(Module())
"""

SLOW = {
    "Keras by hand": KERAS_BY_HAND,
    "eager loop": EAGER_LOOP,
    "Python in the graph": PYTHON_IN_GRAPH,
    "retracing": RETRACING,
    "PyTorch loop": TORCH_LOOP,
    "step function": STEP_FUNCTION,
}
FINE = {
    "compiled steps": """
        import tensorflow as tf
        import functools

        @tf.function(jit_compile=True)
        def step(x):
            with tf.GradientTape() as tape:
                loss = model(x)
            update(tape.gradient(loss, model.trainable_variables))

        def update(grads):
            optimizer.apply_gradients(zip(grads, model.trainable_variables))

        class Own:
            def one(self, x):
                optimizer.apply_gradients(zip(grads(x), model.trainable_variables))

            def prepare(self):
                self.compiled = tf.function(self.one) if self.config.graph else self.one

        maybe = tf.function if config.graph_mode else (lambda function: function)

        @maybe
        def other(x):
            optimizer.apply_gradients(x)

        def wrapped(x):
            optimizer.apply_gradients(x)

        for x in data:
            step(x)
            other(x)
            Own().prepare()
        compile_step(wrapped)(x)
        """,
    "Keras models": """
        from tensorflow import keras
        import tensorflow as tf

        class Mine(keras.Model):
            def train_step(self, data):
                with tf.GradientTape() as tape:
                    loss = self(data)
                self.optimizer.apply_gradients(zip(tape.gradient(loss, self.weights), self.weights))

        model = Mine()
        model.compile(run_eagerly=settings.eager)
        if DEBUGGING:
            tf.debugging.enable_check_numerics()
            tf.config.run_functions_eagerly(True)
        """,
    "optimizers that are only set up, and other modes": """
        import tensorflow as tf

        def set_up(optimizer, model):
            optimizer.apply_gradients(zip(zeros(model), model.trainable_variables))

        def restore(optimizer, model):
            for part in model.parts:
                set_up(optimizer, part)

        if FLAGS.mode == "eager_tf":
            for x in data:
                with tf.GradientTape() as tape:
                    loss = model(x)
                optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        restore(optimizer, model)
        """,
    "methods that every subclass has of its own": """
        import tensorflow as tf

        class Abstract:
            def create(self):
                return tf.data.Dataset.from_generator(self.generator)

        class Records(Abstract):
            def create(self):
                return tf.data.TFRecordDataset(self.files)

        Records().create()
        """,
    "sessions of TensorFlow 1": """
        import tensorflow.compat.v1 as tf
        tf.disable_eager_execution()
        train = tf.train.AdamOptimizer().apply_gradients(grads)
        """,
    "evaluation": """
        import torch
        import tensorflow as tf
        from torch.utils.data import DataLoader

        val_loader = DataLoader(data)
        testloader = DataLoader(data)
        other = DataLoader(val_data)
        loaders = {"valid": DataLoader(data)}
        fit(validation_data=tf.data.Dataset.from_generator(read))

        def evaluate(x):
            return tf.numpy_function(compute, [x], tf.float32)

        def only_for_evaluation(x):
            return tf.py_function(compute, [x], tf.float32)

        def test():
            only_for_evaluation(1)

        @torch.no_grad()
        def score(loader):
            for x in loader:
                total += loss_of(x).item()

        if args.eval:
            tf.numpy_function(compute, [x], tf.float32)
        evaluate(1); test(); score(other)
        """,
    "what is never used": """
        import tensorflow as tf

        def old_loader(x):
            return tf.numpy_function(compute, [x], tf.float32)

        # tf.numpy_function(compute, [x], tf.float32)
        text = "tf.py_function(compute)"
        """,
    "values of the config, and what cannot be seen": """
        from torch.utils.data import DataLoader, TensorDataset, random_split
        import torch

        options = {"num_workers": 4}
        DataLoader(data, num_workers=cfg.workers, pin_memory=cfg.pin)
        DataLoader(data, **options)
        DataLoader(data, 4, True, None, None, 2, None, True)
        model.cuda()
        pairs = TensorDataset(x, y)
        train, rest = random_split(pairs, [8, 2])
        DataLoader(train, batch_size=2, pin_memory=True)
        """,
    "other things of the same name": """
        import tensorflow as tf
        import pandas
        from datasets import load_dataset
        from loaders import DataLoader

        DataLoader(files)
        frame["x"].map(str)
        pool.map(work, items)
        load_dataset("x").map(tokenize).shuffle(3)
        for row in rows:
            print(row.item())
        """,
    "numbers that are not fetched in each step": """
        import torch
        import numpy as np

        for x in loader:
            loss = model(x)
            loss.backward()
            mean = np.mean(x).item()
            try:
                optimizer.step()
            except RuntimeError:
                torch.cuda.empty_cache()
            losses.append(loss.detach())
            log(lambda: loss.item())
        print(loss.item())
        """,
}


def found_in(folder: Path, sources: dict[str, str], around: TrainerMachine = GPU) -> set[tuple[str, str]]:
    """Return pairs of place and rule for sources of which the first one is the script."""
    paths = []
    for name, text in sources.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        paths.append(path)
    done = scan(paths, folder, (), around)
    assert not done.unread
    return {(place, rule.id) for rule, places in done.found for place in places}


def marked(text: str) -> set[tuple[str, str]]:
    """Return the pairs of place and rule that a source is marked with."""
    lines = enumerate(text.splitlines(), start=1)
    return {(f"train.py:{number}", rule) for number, line in lines for rule in _MARK.findall(line)}


@pytest.mark.parametrize("name", SLOW)
def test_slow_code_is_found_with_its_line(tmp_path: Path, name: str) -> None:
    """Each marked line, under whatever name things are imported; the fine lines beside them are not found."""
    text = SLOW[name]
    assert marked(text)
    assert found_in(tmp_path, {"train.py": text}) == marked(text)


@pytest.mark.parametrize("name", FINE)
def test_fine_code_gives_no_false_alarm(tmp_path: Path, name: str) -> None:
    """Nothing is found."""
    assert found_in(tmp_path, {"train.py": FINE[name]}) == set()


def test_every_rule_is_shown_by_a_source() -> None:
    """No rule is in the table that no test has seen find something."""
    assert {rule.id for rule in RULES} == {rule for text in SLOW.values() for _, rule in marked(text)}


def test_modules_count_as_far_as_the_script_reaches_them(tmp_path: Path) -> None:
    """A loader in a module of the trainer's is found there; its own demonstration under ``__main__`` is not."""
    module = """
        import tensorflow as tf

        def load(x):
            return tf.numpy_function(compute, [x], tf.float32)

        def unused(x):
            return tf.numpy_function(compute, [x], tf.float32)

        if __name__ == "__main__":
            unused(1)
            tf.numpy_function(compute, [1], tf.float32)
        """
    sources = {"train.py": "from data.loading import load\nload(1)\n", "data/loading.py": module}
    assert found_in(tmp_path, sources) == {("data/loading.py:5", "python-in-graph")}


def test_newer_tensorflow_is_not_told_what_it_does_itself(tmp_path: Path) -> None:
    """From 2.13 on maps without a state are made parallel, and a prefetch is put in; those with one are still found."""
    text = """
        import tensorflow as tf

        def augment(x):
            return tf.image.random_flip_left_right(x)

        data = tf.data.Dataset.list_files("*").map(tf.io.read_file)
        data = data.map(lambda x: augment(x)).batch(4)
        fit(data)
        """
    older = {("train.py:7", "serial-map"), ("train.py:8", "serial-map"), ("train.py:8", "no-prefetch")}
    assert found_in(tmp_path, {"train.py": text}) == older
    newer = TrainerMachine(cores=8, has_gpu=True, tensorflow=(2, 16))
    assert found_in(tmp_path, {"train.py": text}, newer) == {("train.py:8", "serial-map")}


def test_rules_about_a_gpu_or_cores_are_left_out_where_there_is_none(tmp_path: Path) -> None:
    """A loader without workers is right on one core, and a number costs nothing to fetch without a GPU."""
    small = TrainerMachine(cores=1, has_gpu=False)
    rules = {rule for _, rule in found_in(tmp_path, {"train.py": TORCH_LOOP}, small)}
    assert rules == {"anomalies-detected", "loader-restarted", "memory-cleaned"}


def test_a_finding_carries_the_id_of_its_rule(tmp_path: Path) -> None:
    """Scripts tell findings of one check apart by it, also in the JSON object."""
    problem = problem_of(tmp_path, "batch_size: 8\n", trainer=textwrap.dedent(KERAS_BY_HAND))
    result = check_code(Look(problem=problem, clock=SystemClock()))
    assert {issue.rule for issue in result.issues} == {"eager-by-hand", "checks-every-number"}
    found = Diagnosis(verdict=Verdict(sentence="Not measured."), results=(result,))
    (check,) = diagnosis_document(found, elapsed_s=None, failed_on=None, paths={})["checks"]
    assert {issue["rule"] for issue in check["issues"]} == {"eager-by-hand", "checks-every-number"}


def test_a_module_that_is_installed_is_named_and_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``python -m package`` is no silence; one that lies below the working directory is read."""
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "config.yaml"
    config.write_text("batch_size: 8\n")
    command = ["python", "-m", "mine.train", "--config", "{config}"]
    look = Look(problem=open_problem(config, command=command, state_dir=tmp_path / "state"), clock=SystemClock())
    assert check_code(look).why_not == (
        "the module mine.train is not below this directory; installed packages are not read"
    )
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "train.py").write_text(KERAS_BY_HAND)
    assert check_code(look).issues


def test_sources_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    """One that is no Python, one that is no UTF-8, one that is huge and one that is not there; the rest is scanned."""
    files = {name: tmp_path / name for name in ("train.py", "old.py", "latin.py", "huge.py", "gone.py")}
    files["train.py"].write_text("import tensorflow as tf\ntf.numpy_function(f, [], 1)\n")
    files["old.py"].write_text("# py_function\nprint 'hello'\n")
    files["latin.py"].write_bytes(b"# py_function\nname = 'caf\xe9'\n")
    files["huge.py"].write_text("x = 1\n" * 200_000)
    done = scan(list(files.values()), tmp_path, (), GPU)
    assert [place for _, places in done.found for place in places] == ["train.py:2"]
    assert [why.split()[0] for why in done.unread] == ["old.py:2", "latin.py:2", "huge.py"]
