"""What the library's calls check before anything else: the process asked about, and whether binding is on at all.

Example: ``what_switches_off(LaunchConfig(numa_bind=False), {})`` is ``"numa_bind=False"``.
"""

import logging
from collections.abc import Mapping
from typing import Any

from numa_launch.config import is_count
from numa_launch.errors import ConfigError
from numa_launch.idsets import shortened
from numa_launch.log import say_once
from numa_launch.reasons import note

FALSE_WORDS = ("0", "false", "no", "off", "n", "f")
TRUE_WORDS = ("1", "true", "yes", "on", "y", "t")
"""What click takes for false and true, so that the library and the command line agree."""


def check_process(local_rank: object, dp_local_rank: object, process_kind: object) -> None:
    """Raise ConfigError for a process that cannot be."""
    if not is_count(local_rank):
        raise ConfigError(f"local_rank: {local_rank!r} must be a number from 0 on")
    if dp_local_rank is not None and not is_count(dp_local_rank):
        raise ConfigError(f"dp_local_rank: {dp_local_rank!r} must be a number from 0 on, or None")
    if process_kind not in ("worker", "EngineCore"):
        raise ConfigError(f"process_kind: {process_kind!r} must be 'worker' or 'EngineCore'")


def what_switches_off(config: Any, environ: Mapping[str, str]) -> str | None:
    """Return what switches binding off: the environment for a whole fleet, or the config, valid otherwise or not."""
    value = environ.get("NUMA_LAUNCH_BIND", "").strip()
    if value.lower() in FALSE_WORDS:
        return f"NUMA_LAUNCH_BIND={value}"
    theirs = getattr(config, "parallel_config", config)
    if value and value.lower() not in TRUE_WORDS:
        say_once(logging.WARNING, note("bind-unreadable", value=shortened(value)).message)
    lists = (getattr(theirs, name, None) for name in ("numa_bind_nodes", "numa_bind_cpus"))
    return "numa_bind=False" if getattr(theirs, "numa_bind", None) is False and not any(lists) else None
