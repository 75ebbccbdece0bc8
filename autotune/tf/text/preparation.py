"""Text preparation: from lines to tokens, once, before training; in order, in parallel, each distinct line once.

Nothing here imports TensorFlow, and no worker process does unless the function's own module does. Call `prepare`
before TensorFlow is imported: its threads then have the cores for themselves, and mistakes are named at once.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from autotune.tf.options import TextOptions
from autotune.tf.text.packed_tokens import as_tokens
from autotune.tf.text.token_cache import TokenCache
from autotune.tf.text.worker_processes import in_processes

Tokens = list[int]
PrepareLine = Callable[[str], Sequence[int]]
"""Function from a line to its tokens; the same line always gives the same tokens."""


def prepare(
    lines: Sequence[str],
    prepare_line: PrepareLine,
    options: TextOptions | None = None,
    *,
    cache: TokenCache | None = None,
) -> list[Tokens]:
    """Return the tokens of each line, in the order of the lines, the same whatever the options.

    Repeated lines are prepared once. `docs/tensorflow.md` has the numbers.

    Args:
        lines: The lines.
        prepare_line: Prepares one line. For worker processes it must be a function of a module that can be imported.
        options: Workers; None prepares everything here.
        cache: Tokens of earlier calls; lines that are not in it are prepared and added to it.

    Raises:
        ValueError: The function cannot be found by name, which worker processes need.
        TextWorkerError: A worker process ended before its work was done, or the function failed in it.
    """
    distinct = list(dict.fromkeys(lines))
    known = cache.lookup(distinct) if cache else {}
    missing = [line for line in distinct if line not in known]
    known.update(zip(missing, _prepare_distinct(missing, prepare_line, options or TextOptions()), strict=True))
    if cache and missing:
        cache.store(known)
    return [known[line] for line in lines]


def _prepare_distinct(lines: Sequence[str], prepare_line: PrepareLine, options: TextOptions) -> Iterator[Tokens]:
    size = options.chunk_lines
    chunks = [lines[start : start + size] for start in range(0, len(lines), size)]
    workers = min(options.workers, len(chunks))
    if workers <= 1:
        yield from (as_tokens(prepare_line(line)) for line in lines)
    elif options.threads:
        with ThreadPoolExecutor(workers, thread_name_prefix="text") as pool:
            yield from pool.map(lambda line: as_tokens(prepare_line(line)), lines)
    else:
        for chunk in in_processes(chunks, prepare_line, workers):
            yield from chunk
