"""Time stamp of a trainer's start: ``python stamped_main.py -m module ...`` or ``... script ...``.

The stamp, the time on the monotonic clock, goes into the file ``main_started`` in the trial's folder; the module or
script then runs as ``__main__``.
"""

import os
import runpy
import sys
import time

_started_s = time.monotonic()
with open(os.path.join(os.environ["AUTOTUNE_TRIAL_DIR"], "main_started"), "w", encoding="ascii") as _file:
    _file.write(repr(_started_s))
del sys.argv[0]
if sys.argv[0] == "-m":
    sys.path[0] = os.getcwd()
    _module = sys.argv.pop(1)
    runpy.run_module(_module, run_name="__main__", alter_sys=True)
else:
    sys.path[0] = os.path.dirname(os.path.realpath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
