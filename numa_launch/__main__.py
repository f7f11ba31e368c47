"""``python -m numa_launch`` is ``numa-launch``."""

from numa_launch.cli import main

main()
