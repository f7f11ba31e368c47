"""DECIDE: machine + config -> a binding per process, with its reasons. No I/O, no clock, no environment.

Example: ``plan(read_machine("captured/dgx-a100"), LaunchConfig(tensor_parallel_size=8)).processes[1].nodes == (3,)``
(``decide``).
"""
