"""For launchers that build their own srun line: the options that bind its tasks to the nodes of their GPUs.

Example: ``["srun", "--ntasks-per-node=8", *srun_options(read_machine(), config, 8, numa_cpu_bind=True), "worker"]``.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

from numa_launch.apply.asked import what_switches_off
from numa_launch.config import config_error, is_count, launch_config
from numa_launch.idsets import MAX_ID
from numa_launch.launchers.srun_line import CHOICES, given_options, said, srun_line, srun_plan, step_of
from numa_launch.log import say_once
from numa_launch.machine.model import Machine


def srun_options(
    machine: Machine,
    config: Any,
    ntasks_per_node: int,
    numa_cpu_bind: bool | str | None = None,
    *,
    given: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> list[str]:
    """Return what to add to an srun line that starts `ntasks_per_node` tasks a host, task i being rank i.

    `numa_cpu_bind`: None adds nothing, True is auto, False is ``--cpu-bind=none``, or a method by its Slurm name
    (rank_ldom, map_ldom, mask_ldom, map_cpu, mask_cpu). `config` is a LaunchConfig, or an object whose
    ``parallel_config`` carries its names; its parallel sizes play no part. `given` are the srun options that the line
    has otherwise, `environ` the variables that srun will see (default: os.environ). What it warns of is logged.

    Raises ConfigError where Slurm would refuse the binding or would bind other than planned, StrictError where `strict`
    and the memory binding asked for must be left out, and what ``plan`` raises.
    """
    if numa_cpu_bind is None:
        return []
    method = ("auto" if numa_cpu_bind else "none") if isinstance(numa_cpu_bind, bool) else numa_cpu_bind
    if method not in CHOICES:
        raise config_error("numa_cpu_bind", numa_cpu_bind, f"must be None, True, False or one of {', '.join(CHOICES)}")
    if not is_count(ntasks_per_node) or not 1 <= ntasks_per_node <= MAX_ID:
        raise config_error("ntasks_per_node", ntasks_per_node, f"must be a number from 1 to {MAX_ID}")
    if isinstance(given, str | bytes) or not all(isinstance(word, str) for word in given):
        raise config_error("given", given, "must be a list of srun's words, each a text")
    if own := given_options(given).get("cpu-bind"):
        raise config_error("given", own[0], "does not go with numa_cpu_bind: leave one of them out")
    variables = os.environ if environ is None else environ
    asked = launch_config(config)
    off = "numa_cpu_bind=False" if method == "none" else what_switches_off(asked, variables)
    made = srun_plan(machine, asked, ntasks_per_node, switched_off=off)
    line = srun_line(machine, asked, made, method, step_of(given, variables))
    for warned in line.warnings:
        say_once(logging.WARNING, said(warned, made))
    return list(line.added)
