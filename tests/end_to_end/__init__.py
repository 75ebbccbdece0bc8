"""The real thing, from shell to file: real processes, trainers, signals, disks and servers.

Each test says why it has to be real. They assert states and their order, never seconds or speedups: what a search
decides is tested in virtual time (`tests/command_line.py`).
"""
