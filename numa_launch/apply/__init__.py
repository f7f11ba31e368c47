"""ACT: numactl arguments, probe and fallback, the wrapper, and the spawn context.

Side effects on this process: ``swap`` and ``detect.carried`` (undone on the way out), ``current`` (asked for), and
``command.become`` (does not return). ``probe`` starts short-lived processes.
"""
