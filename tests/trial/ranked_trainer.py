"""Trainer of several ranks, ``ranked_trainer.py WORLD [SLOW [SHIFT_S]]``; a barrier is its exchange of gradients.

The rank SLOW waits for its data in each step; each other one waits for it at the barrier. With SHIFT_S all ranks but
the first are on a node of their own, as far as the clock tells: in a time namespace of the kernel, which takes root.
With a node's name in OTHER_NODE they are on that node, with a clock of its own that shows the same time.
"""

import ctypes
import multiprocessing
import os
import sys
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path

from autotune.trainee import step

WORLD, SLOW, SHIFT_S = (*map(int, sys.argv[1:]), *(-1, 0)[len(sys.argv) - 2 :])


def train(rank: int, barrier: Barrier) -> None:
    """Make steps of ``8 + rank`` samples until the trial is ended."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(WORLD), LOCAL_RANK=str(rank))
    if rank and "OTHER_NODE" in os.environ:
        os.environ.update(SLURMD_NODENAME=os.environ["OTHER_NODE"], AUTOTUNE_CLOCK="another one")
    while True:
        wait_s = 0.004 if rank == SLOW else 0.0
        time.sleep(wait_s)
        barrier.wait()
        step(samples=8 + rank, wait_s=wait_s)


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    joint = context.Barrier(WORLD)
    ranks = [context.Process(target=train, args=(rank, joint)) for rank in range(WORLD)]
    for number, one in enumerate(ranks):
        if number == 1 and SHIFT_S:
            if ctypes.CDLL(None, use_errno=True).unshare(0x80):  # CLONE_NEWTIME: of the children from now on
                raise OSError(ctypes.get_errno(), "no time namespace")
            Path("/proc/self/timens_offsets").write_text(f"monotonic {SHIFT_S} 0\n")
        one.start()
    for one in ranks:
        one.join()
