"""ACT: numactl arguments, probe and fallback, the wrapper, and the spawn context.

Every side effect on this process is in ``spawn`` (undone on the way out) and ``current`` (asked for).
"""
