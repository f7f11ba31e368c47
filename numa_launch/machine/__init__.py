"""READ: what the host is, and what this process may use of it.

Example: ``read_machine().nodes[0].cpus``; ``read_machine("captured/dgx-a100")`` reads a captured host (``read``).
"""
