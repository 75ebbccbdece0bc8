"""Traps in a trainer's code: lines marked with ``# <- trap`` are found in these programs, and no others."""

import re
import textwrap
from pathlib import Path

import pytest

from autotune.records import Purpose, Scalar
from autotune.search.traps import TRAPS, find_traps, with_traps
from tests.diagnose.static.problems import problem_of
from tests.search.simulated import Search, Searched, plain

TORCH = "import torch\nfrom torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info\n"
TF = "import random\nimport numpy as np\nimport tensorflow as tf\n"

SNAPPING = {
    "a stream that every worker reads from its beginning": """
        from torch.utils import data as tud

        class Stream(tud.IterableDataset):
            def __init__(self, files):
                self.files = files
            def __iter__(self):  # <- stream-repeated
                for name in self.files:
                    yield from open(name)

        train = Stream(["a", "b"])
        for batch in tud.DataLoader(train, num_workers=cfg.workers):
            step(batch)
        """,
    "files that forked workers share": """
        import h5py
        import zipfile

        class Clips(Dataset):
            def __init__(self, path):
                with h5py.File(path, "r") as file:
                    self.labels = file["labels"][:]
                self.clips = h5py.File(path, "r")  # <- handle-shared
                self.texts = zipfile.ZipFile(path)  # <- handle-shared
                self._open(path)
            def _open(self, path):
                self.index = open(path, "rb")  # <- handle-shared
            def __getitem__(self, i):
                self.index.seek(8 * i)
                return self._read(i), self.labels[i]
            def _read(self, i):
                return self.clips[i], self.texts.read(str(i))

        class Others(Dataset):
            def __init__(self, path):
                self.texts = None
            def __getitem__(self, i):
                self.texts = self.texts or zipfile.ZipFile("a")
                return self.texts.read(str(i))

        options = {"num_workers": 4}
        loader = DataLoader(Clips("a"), **options)
        others = DataLoader(dataset=Others("a"), num_workers=4)
        """,
    "a cache behind a random map, in a function of another name, under a switch of the config": """
        rng = np.random.default_rng()

        def augment(x):
            return x + rng.normal(size=3)

        def load(name):
            return tf.numpy_function(augment, [name], tf.float32)

        clips = tf.data.Dataset.range(8)
        clips = clips.map(load, num_parallel_calls=2).batch(2)
        if cfg["cache"]:
            clips = clips.cache()  # <- cache-after-random-map
        for x in clips.prefetch(2):
            step(x)
        """,
    "a cache behind layers that are random in training, and behind a lambda": """
        flip = tf.keras.Sequential([tf.keras.layers.RandomFlip("horizontal")])

        def pipeline(paths, train=True):
            ds = tf.data.Dataset.from_tensor_slices(paths)
            if train:
                ds = ds.map(lambda x: flip(x))
            return ds.cache().repeat()  # <- cache-after-random-map

        model.fit(pipeline(paths))
        """,
    "samples kept after a random transform": """
        from torchvision import transforms

        class Pictures(Dataset):
            def __init__(self, names, transform):
                self.names, self.transform = names, transform
                self.kept = {}
            def __getitem__(self, i):
                if i in self.kept:
                    return self.kept[i]
                picture = read(self.names[i])
                picture = self.transform(picture)
                self.kept[i] = picture  # <- random-sample-kept
                return picture

        train = Pictures(names, transform=transforms.Compose([transforms.RandomCrop(8), transforms.ToTensor()]))
        loader = DataLoader(train, 8, num_workers=2)
        """,
    "CUDA where samples are made": """
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

        class Clips(Dataset):
            def __getitem__(self, i):
                window = torch.ones(8, device="cuda")  # <- cuda-in-workers
                return self._load(i).to(device) * window  # <- cuda-in-workers
            def _load(self, i):
                return read(i).cuda()  # <- cuda-in-workers

        loader = DataLoader(Clips(), num_workers=2)
        """,
}

FINE = {
    "streams that know of workers, by themselves, their loader, or what they call": """
        import itertools

        def own_part(items):
            info = get_worker_info()
            return items if info is None else itertools.islice(items, info.id, None, info.num_workers)

        class Clips(IterableDataset):
            def __iter__(self):
                yield from own_part(range(100))

        class Set(IterableDataset):
            def __init__(self):
                self.first = 0
            def __iter__(self):
                return iter(range(self.first, 100))

        def set_up(worker_id):
            torch.utils.data.get_worker_info().dataset.first = worker_id

        DataLoader(Clips(), num_workers=4)
        DataLoader(Set(), num_workers=4, worker_init_fn=set_up)
        """,
    "streams that are random, that are another's, that no loader reads, that evaluate": """
        class Episodes(IterableDataset):
            def __iter__(self):
                while True:
                    yield self.draw()
            def draw(self):
                return torch.rand(3)

        class Packed(IterableDataset):
            def __init__(self, dataset):
                self.dataset = dataset
            def __iter__(self):
                for x in self.dataset:
                    yield x[:8]

        class Steps(IterableDataset):
            def __init__(self, play):
                self.play = play
            def __iter__(self):
                steps = self.play()
                for one in steps:
                    yield one

        class Alone(IterableDataset):
            def __iter__(self):
                return iter(range(5))

        class Held(IterableDataset):
            def __iter__(self):
                return iter(range(5))

        class Sharded(Sharding, IterableDataset):
            def __iter__(self):
                return iter(range(5))

        DataLoader(Sharded(), num_workers=4)
        DataLoader(Episodes(), num_workers=4)
        DataLoader(Packed(stream), num_workers=4)
        DataLoader(Steps(play), num_workers=4)
        for x in Alone():
            step(x)
        val_loader = DataLoader(Held(), num_workers=4)
        """,
    "files that each worker opens, that are read at once, that are closed, read by position or written": """
        import h5py
        import json
        import lmdb
        import mmap
        import os

        class Clips(Dataset):
            def __init__(self, path):
                self.path, self.file = path, None
                with open(path) as lines:
                    self.names = lines.readlines()
                self.index = json.load(open(path))
                self.labels = h5py.File(path)["labels"][:]
                self.other = h5py.File(path)
                self.length = len(self.other["clips"])
                self.other.close()
                self.raw = open(path, "rb")
                self.map = mmap.mmap(self.raw.fileno(), 0)
                self.log = open("log", "a")
                self.env = lmdb.open(path, readonly=True, lock=False)
                self.late = h5py.File(path)
            def __getitem__(self, i):
                if self.file is None:
                    self.file = h5py.File(self.path)
                self.log.write("x")
                os.pread(self.raw.fileno(), 8, i)
                clip = self.file["clips"][i], self.other, self.late
                return clip, self.labels[i], self.map[i], self.names[i], self.env

        def reopen(worker_id):
            dataset = get_worker_info().dataset
            dataset.late = h5py.File(dataset.path)

        DataLoader(Clips("a"), num_workers=4, worker_init_fn=reopen)
        """,
    "a file that a class which is no dataset keeps, and workers that are spawned": """
        class Log:
            def __init__(self, path):
                self.file = open(path)
            def __getitem__(self, i):
                return self.file.read(i)

        class Clips(Dataset):
            def __init__(self, path):
                self.file = open(path)
                self.window = torch.zeros(3).cuda()
            def __getitem__(self, i):
                return self.file.read(i), self.window

        Log("a")
        DataLoader(Clips("a"), num_workers=4, multiprocessing_context="spawn")
        """,
    "caches before the random map, of what is the same in each pass, and of evaluation": """
        def load(x):
            random_part = tf.random.stateless_uniform([3], seed=[x, 0])
            return x * random_part

        def seeded(x):
            rng = np.random.default_rng(int(x))
            return rng.normal(size=3)

        def augment(x):
            return tf.image.random_flip_left_right(x)

        def prepare(x, training):
            if training:
                x = augment(x)
            return x

        def early(x, training=False):
            if not training:
                return x
            return augment(x)

        def slow(x):
            time.sleep(random.random())
            return cast(x)

        def cast(x):
            return tf.cast(x, tf.float32)

        class Mixer:
            def shuffle(self, x):
                return tf.random.shuffle(x)
            def decode_png(self, x):
                return tf.random.shuffle(x)

        def decode(x):
            return tf.io.decode_png(x)

        Mixer().shuffle(1)

        raw = tf.data.Dataset.range(9).shuffle(9).map(decode).map(load).map(seeded).map(early).map(slow)
        flip = tf.keras.layers.RandomFlip("horizontal")
        raw = raw.map(lambda x: flip(x, training=False))
        train = raw.map(lambda x: prepare(x, training=False)).cache().map(augment).prefetch(2)
        val = raw.map(augment).cache().prefetch(2)
        ds = tf.data.Dataset.range(9)
        if not cfg.augment:
            ds = ds.cache()
        if cfg.augment:
            ds = ds.map(augment)
        ds = ds.prefetch(2)
        """,
    "caches and random maps in branches that exclude each other, also by what calls say": """
        def augment(x):
            return tf.image.random_flip_left_right(x)

        def make(paths, training, cache=False):
            ds = tf.data.Dataset.from_tensor_slices(paths)
            if training:
                ds = ds.map(augment)
            if cache:
                ds = ds.cache()
            return ds.prefetch(2)

        def either(ds, training):
            ds = tf.data.Dataset.from_tensor_slices(ds)
            if training:
                ds = ds.map(augment)
            else:
                ds = ds.cache()
            return ds.prefetch(2)

        model.fit(make(paths, training=True), validation_data=make(paths, training=False, cache=True))
        model.fit(either(paths, True))
        """,
    "samples kept before the transform, and by transforms that are not random": """
        from torchvision import transforms

        class Pictures(Dataset):
            def __init__(self, names, transform, resize):
                self.names, self.transform, self.resize = names, transform, resize
                self.kept = {}
                self.sizes, self.noise = [], {}
            def __getitem__(self, i):
                if i not in self.kept:
                    picture = self.resize(read(self.names[i]))
                    self.kept[i] = picture
                picture = self.transform(self.kept[i])
                self.sizes.append(picture)
                if i not in self.noise:
                    self.noise[i] = torch.randn(3)
                return picture + self.noise[i]

        turn = transforms.Compose([transforms.RandomCrop(8)])
        loader = DataLoader(Pictures(names, turn, transforms.Resize(9)), 8, num_workers=2)
        """,
    "samples kept after a transform where none is random": """
        class Pictures(Dataset):
            def __init__(self, names, transform):
                self.names, self.transform = names, transform
                self.kept = {}
            def __getitem__(self, i):
                if i not in self.kept:
                    self.kept[i] = self.transform(read(self.names[i]))
                return self.kept[i]

        order = torch.utils.data.RandomSampler(names)
        loader = DataLoader(Pictures(names, resize), 8, num_workers=2, sampler=order)
        """,
    "CUDA outside of datasets, or asked for only": """
        class Clips(Dataset):
            def __init__(self, device):
                self.pins = torch.cuda.is_available()
            def __getitem__(self, i):
                return read(i).to(torch.float32), self.pins

        for x in DataLoader(Clips("cuda"), num_workers=2):
            model(x.cuda())
        """,
}


def found_in(folder: Path, text: str, *, has_gpu: bool = True) -> set[tuple[str, str]]:
    """Return pairs of place and trap for a script."""
    path = folder / "train.py"
    path.write_text(text)
    return {(one.place, one.trap.id) for one in find_traps([path], folder, (), has_gpu=has_gpu)}


def program(body: str) -> str:
    """Return the text of a script: a body behind its imports."""
    return (TF if "tf." in body else TORCH) + textwrap.dedent(body)


def marked(text: str) -> set[tuple[str, str]]:
    """Return the pairs of place and trap that a script is marked with."""
    lines = enumerate(text.splitlines(), start=1)
    return {(f"train.py:{number}", trap) for number, line in lines for trap in re.findall(r"# <- ([\w-]+)", line)}


@pytest.mark.parametrize("name", [*SNAPPING, *FINE])
def test_traps_are_found_with_their_lines_and_fine_code_gives_no_alarm(tmp_path: Path, name: str) -> None:
    """Each marked line; code that looks so and is not is left alone."""
    text = program({**SNAPPING, **FINE}[name])
    assert bool(marked(text)) is (name in SNAPPING)
    assert found_in(tmp_path, text) == marked(text)


def test_every_trap_is_shown_by_a_program() -> None:
    """No trap is in the table that no test has seen found."""
    assert {trap.id for trap in TRAPS} == {trap for text in SNAPPING.values() for _, trap in marked(text)}


def test_what_a_script_imports_by_name_is_found_in_its_own_file(tmp_path: Path) -> None:
    """A dataset and a random map that stand in other modules of the trainer; a class of the same name does no harm."""
    (tmp_path / "lib").mkdir()
    streams, maps = tmp_path / "lib" / "streams.py", tmp_path / "maps.py"
    streams.write_text(
        TORCH + "class Lines(IterableDataset):\n    def __iter__(self):\n        return iter(range(5))\n"
    )
    maps.write_text(TF + "class Lines:\n    pass\n\ndef turn(x):\n    return tf.image.random_flip_up_down(x)\n")
    script = tmp_path / "train.py"
    script.write_text(
        f"{TORCH}{TF}from lib.streams import Lines\nimport maps\n\nDataLoader(Lines(), num_workers=2)\nmaps.Lines()\n"
        "train = tf.data.Dataset.range(3).map(maps.turn).cache()\nmodel.fit(train)\n"
    )
    found = find_traps([script, streams, maps], tmp_path, (), has_gpu=False)
    assert [(one.place, one.trap.id) for one in found] == [
        ("lib/streams.py:4", "stream-repeated"),
        ("train.py:11", "cache-after-random-map"),
    ]


def test_cuda_in_workers_matters_with_a_gpu_only(tmp_path: Path) -> None:
    """Without one, ``cuda`` is never what a device is."""
    text = program(SNAPPING["CUDA where samples are made"])
    assert not found_in(tmp_path, text, has_gpu=False)


STREAM = program(SNAPPING["a stream that every worker reads from its beginning"])


@pytest.mark.parametrize(
    ("workers", "said", "late"),
    [
        (0, "data.num_workers above 1 is tried last", (2,)),
        (4, "data.num_workers: 0 or 1 or 2 is tried last", (0, 1, 2)),
    ],
)
def test_values_that_give_other_data_than_todays_are_tried_last(
    tmp_path: Path, workers: int, said: str, late: tuple[int, ...]
) -> None:
    """Where today's training repeats its data already, any other number of workers gives other data."""
    config = f"data: {{num_workers: {workers}}}\nautotune: {{knobs: {{data.num_workers: [0, 1, 2]}}}}\n"
    problem = problem_of(tmp_path, config, trainer=STREAM)
    assert [one.removeprefix(f"{tmp_path}/") for one in problem.trap_remarks] == [
        "train.py:9: Stream does not know of workers: with more than one, each repeats the whole stream; " + said
    ]
    assert with_traps(problem.space, problem.traps).knob("data.num_workers").late == late


def test_a_trap_that_no_knob_makes_snap_is_not_worth_a_line(tmp_path: Path) -> None:
    """The search varies the batch alone."""
    config = "data: {batch_size: 4, num_workers: 4}\nautotune: {knobs: {data.batch_size: [4, 8]}}\n"
    problem = problem_of(tmp_path, config, trainer=STREAM)
    assert problem.traps
    assert not problem.trap_remarks


def test_a_search_tries_the_values_of_a_trap_after_the_others(search: Search) -> None:
    """The first proposal of an expert is more workers: it comes after the cache."""
    without = search(plain, budget_s=200.0)
    Path("train.py").write_text(STREAM)
    done = search(plain, budget_s=200.0, fresh=True)
    assert _first(without, "num_workers", 2) == 0
    assert _first(done, "num_workers", 2) > _first(done, "cache", "memory")


def _first(done: Searched, name: str, value: Scalar) -> int:
    """Return the place of the first exploring trial with a value."""
    tried = [trial.values[f"data.{name}"] for trial in done.of(Purpose.EXPLORE)]
    return tried.index(value)
