"""Shows all that a script can see of how it was started, then ends in the way its first argument says."""

import sys

LOADED = sorted({"numpy", "json", "socket", "ctypes", "runpy", "argparse"} & set(sys.modules))

import atexit  # noqa: E402 - it has to be seen first what is loaded already
import multiprocessing  # noqa: E402
import os  # noqa: E402
import pickle  # noqa: E402
import signal  # noqa: E402
import threading  # noqa: E402
from pathlib import Path  # noqa: E402

import numpy  # noqa: E402

WORD = "not this one"
if Path("word.txt").exists():
    WORD = Path("word.txt").read_text()


class Thing:
    """Something to pickle."""


def twice(number: int) -> tuple[int, str]:
    """Work for a pool."""
    return 2 * number, Thing.__module__


def show() -> None:
    """Prints everything."""
    main = sys.modules["__main__"]
    print(LOADED, numpy.__version__)
    print(sys.argv, sys.orig_argv, sys.path, sys.flags, sys.executable, sys.warnoptions, sys._xoptions)
    print(__name__, __file__, __package__, type(__loader__), __doc__, __spec__ and __spec__.name, __debug__)
    print(sorted(name for name in vars(main) if name.startswith("__")), vars(main) is globals())
    trial = os.environ["AUTOTUNE_TRIAL_DIR"]
    environ = {
        name: value.replace(trial, "RUN") for name, value in os.environ.items() if not name.startswith("AUTOTUNE_")
    }
    print(os.getcwd(), sorted(environ.items()))
    print(sorted(os.listdir("/proc/self/fd")), os.readlink("/proc/self/fd/0"), os.getsid(0) == os.getpid())
    print([stream.encoding for stream in (sys.stdin, sys.stdout, sys.stderr)], sys.stdout.line_buffering)
    print([(number.name, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)])
    print(threading.current_thread() is threading.main_thread(), threading.active_count(), os.nice(0))
    print(pickle.loads(pickle.dumps(Thing())).__class__, sys.excepthook is sys.__excepthook__)
    umask = os.umask(0)
    print(umask)


def fails() -> None:
    """Raises an error because of an error."""
    try:
        {}["key"]
    except KeyError as error:
        raise ValueError("there is no such layer") from error


def main() -> None:
    """Shows, and ends."""
    show()
    how = sys.argv[1] if len(sys.argv) > 1 else ""
    if how == "fails":
        fails()
    elif how == "exits":
        sys.exit(int(sys.argv[2]))
    elif how == "exits with words":
        sys.exit("words")
    elif how == "exits at once":
        os._exit(7)
    elif how == "is interrupted":
        raise KeyboardInterrupt
    elif how == "kills itself":
        os.kill(os.getpid(), signal.SIGTERM)
    elif how == "has a hook":
        sys.excepthook = lambda kind, error, trace: print(kind, error, trace.tb_frame.f_code.co_name, trace.tb_lineno)
        fails()
    elif how == "has a last word":
        atexit.register(print, "the last word")
    elif how == "leaves a thread":
        threading.Timer(0.05, print, ["the thread's word"]).start()
    elif how == "spawns":
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(pool.map(twice, [1, 2]))


if __name__ == "__main__":
    main()
