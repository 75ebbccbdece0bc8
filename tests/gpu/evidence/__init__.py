"""GPU evidence: one prepared run of at most eight minutes on a machine with an NVIDIA GPU; ``scripts/gpu-evidence``.

`__main__` is the command, `pack` what travels to the machine, `driver` the run with its time limits, `report` the page
that it writes, `notes` what one part has to say, `parts` the parts, and `trainers/` what they train.

The driver needs the standard library alone: it is started by the Python that has PyTorch. Parts run in an environment
with autotune, which the run makes from the pack; trainers run without it, as a user's do.
"""
