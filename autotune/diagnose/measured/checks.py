"""Table of the measured checks, in the order in which they are shown."""

from autotune.diagnose.check import Check
from autotune.diagnose.measured import (
    fixed_cost,
    in_force,
    input_limit,
    memory_room,
    neighbours,
    outside_steps,
    steadiness,
    switches,
)

MEASURED_CHECKS: tuple[Check, ...] = (
    Check(
        id=in_force.CHECK,
        question="Is in force what the config says?",
        how="the frameworks in the trainer's process are asked during training: precision, threads, eager mode, GPUs",
        threshold="any difference to a known knob, and a GPU that is there and not seen",
    ),
    Check(
        id=neighbours.CHECK,
        question="Does anybody else use the machine, or does heat hold it back?",
        how="the CPU time of all processes against the trainer's; what the driver says of other kernels and of clocks",
        threshold="25 % of the cores; 5 % of the GPU's time, where two kernels in turn cost both more than noise",
    ),
    Check(
        id=input_limit.CHECK,
        question="Is the input the limit, and what of it?",
        how="one trial in turn trains, trains on the same few batches again and again, and only loads",
        threshold="5 % to be gained for certain: rounds of one trial differ by 3 %",
    ),
    Check(
        id=fixed_cost.CHECK,
        question="How much of a step is taken whatever the batch?",
        how="steps with free data at two sizes of the batch: t = a + b * batch",
        threshold="60 % of the step, and 5 % to be gained, for certain",
    ),
    Check(
        id=steadiness.CHECK,
        question="Do slow steps recur?",
        how="steps of more than three times the median, what they add up to, and their distances",
        threshold="5 % of the time, in three steps at least",
    ),
    Check(
        id=outside_steps.CHECK,
        question="How much time passes outside of steps?",
        how="evaluations and checkpoints of a longer trial",
        threshold="5 % of the time",
    ),
    Check(
        id=memory_room.CHECK,
        question="How much room does the memory leave?",
        how="the most that was in use, its growth, and a line through two sizes of the batch",
        threshold="92 %, which an odd batch goes beyond; full within a day",
    ),
    Check(
        id=switches.CHECK,
        question="Which single change helps?",
        how="trials of today's config and of each change in turn, in an order that a steady drift cancels out of",
        threshold="2 % to be gained for certain: points that differ by less cannot be told apart",
    ),
)
