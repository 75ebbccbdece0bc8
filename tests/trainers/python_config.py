"""A trainer whose config is Python, as nanoGPT's: ``python train.py config.py --batch_size=16``.

Globals are the config; a file of assignments is executed over them, then each ``--key=value`` in its type.
"""

import sys
import time
from ast import literal_eval
from pathlib import Path

from autotune.trainee import step

batch_size = 4
num_workers = 1
out_dir = "out"

known = [name for name, value in globals().items() if not name.startswith("_") and isinstance(value, int | str)]
for argument in sys.argv[1:]:
    if not argument.startswith("--"):
        exec(Path(argument).read_text())
        continue
    key, _, text = argument[2:].partition("=")
    if key not in known:
        raise ValueError(f"Unknown config key: {key}")
    value = text if isinstance(globals()[key], str) else literal_eval(text)
    assert type(value) is type(globals()[key])
    print(f"Overriding: {key} = {value}")
    globals()[key] = value

Path(out_dir).mkdir(parents=True, exist_ok=True)
for number in range(100_000):
    time.sleep((0.008 + 0.0002 * batch_size) / min(num_workers, 2))
    step(samples=batch_size)
    Path(out_dir, "ckpt.pt").write_text(str(number))
