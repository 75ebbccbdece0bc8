"""``scripts/gpu-evidence``: what autotune does on a real GPU, in at most eight minutes; or the pack for that."""

import argparse
import sys
import tempfile
import time
from pathlib import Path

BEGAN_S = time.monotonic()

from tests.gpu.evidence.driver import PARTS, RUN_S, Run  # noqa: E402 - the clock runs from the beginning on
from tests.gpu.evidence.pack import ROOT, PackError, make_pack  # noqa: E402

OUT = ROOT / "docs" / "gpu-evidence"


def main() -> int:
    """Make a pack, or a run."""
    version = ".".join(map(str, sys.version_info[:2]))
    parser = argparse.ArgumentParser(
        prog="scripts/gpu-evidence",
        description=f"Runs the parts of the GPU evidence ({RUN_S:.0f} s at most) by this Python, which needs PyTorch "
        "and nothing else, and writes a report. Exits 0 only if every part passed.",
    )
    parser.add_argument(
        "--pack",
        type=Path,
        nargs="?",
        const=ROOT / "build" / "gpu-evidence-pack",
        metavar="FOLDER",
        help="only make the folder to carry to a machine without network (default: build/gpu-evidence-pack)",
    )
    parser.add_argument("--python-version", default=version, help="of the Python there (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="folder of the report (default: docs/gpu-evidence)")
    names = [part.name for part in PARTS]
    parser.add_argument("--parts", metavar="NAMES", help=f"only these, with commas between: {', '.join(names)}")
    parser.add_argument("--fake", action="store_true", help="rehearse on the tests' fake GPU; needs a C compiler")
    parser.add_argument("--scale", type=float, default=1.0, help="with --fake: factor on the budgets (default: 1)")
    arguments = parser.parse_args()
    if arguments.pack is not None:
        return _pack(arguments.pack, arguments.python_version)
    chosen = [name.strip() for name in (arguments.parts or ",".join(names)).split(",")]
    if unknown := set(chosen) - set(names):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    if arguments.fake and arguments.out is None:
        parser.error("a report of a fake GPU is no evidence: name a folder for it with --out")
    if arguments.scale != 1.0 and not arguments.fake:
        parser.error("--scale is for rehearsals with --fake")
    with tempfile.TemporaryDirectory(prefix="gpu-evidence-", ignore_cleanup_errors=True) as work:
        run = Run(
            out=arguments.out or OUT,
            work=Path(work),
            is_fake=arguments.fake,
            chosen=chosen,
            scale=arguments.scale,
            began_s=BEGAN_S,
        )
        code = run.make()
        print(run.file)
        return code


def _pack(folder: Path, python_version: str) -> int:
    try:
        size_bytes = make_pack(folder, python_version)
    except PackError as error:
        print(f"gpu-evidence: {error}", file=sys.stderr)
        return 1
    print(f"{folder}: {size_bytes / 1e6:.1f} MB, for Python {python_version} on Linux, x86-64")
    print(f"There: PYTHON=/path/to/python-with-pytorch {folder.name}/scripts/gpu-evidence")
    return 0


if __name__ == "__main__":
    sys.exit(main())
