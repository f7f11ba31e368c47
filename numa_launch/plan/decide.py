"""The plan of a host: which processes there are, and what is set on each.

Example: ``plan(machine, LaunchConfig(tensor_parallel_size=8))`` has one EngineCore and eight workers.
"""

from collections.abc import Sequence
from typing import NamedTuple

from numa_launch.config import LaunchConfig, Mode, named
from numa_launch.errors import ConfigError, StrictError
from numa_launch.machine.model import Machine
from numa_launch.plan.auto import gpu_node_unknown, no_gpu, skip_reason
from numa_launch.plan.bind import bind
from numa_launch.plan.entries import Entries, Entry, entries_of
from numa_launch.plan.model import CAPTURED, Binding, Circumstances, Plan, Process
from numa_launch.plan.ranks import gpu_index, local_processes, shard_indices, shard_of, spread_indices
from numa_launch.reasons import Note, note


class _Target(NamedTuple):
    """A process, as yet unbound, and the gpu indices it takes its nodes from; None: all there are."""

    unbound: Binding
    indices: range | None


def plan(
    machine: Machine,
    config: LaunchConfig,
    *,
    processes: Sequence[Process] | None = None,
    circumstances: Circumstances = CAPTURED,
) -> Plan:
    """Return the binding of each of `processes` (default: all that this host starts) on `machine`.

    Auto mode binds all of the host's processes or none, whichever are asked about. Raises ConfigError where an
    explicit binding cannot be planned (a node without CPUs, an index past the end, a GPU whose node is unknown), and
    StrictError where `config.strict` and a process may use no CPU of its nodes.
    """
    asked = local_processes(config) if processes is None else list(processes)
    mode: Mode = "off" if circumstances.switched_off else config.mode
    targets = [target_of(machine, config, process, circumstances) for process in asked]
    unbound = tuple(target.unbound for target in targets)

    def stays_unbound(reason: Note) -> Plan:
        return Plan(mode, reason, machine.visible_gpus, unbound, machine.notes)

    if mode == "off":
        return stays_unbound(note("disabled", by=circumstances.switched_off or "numa_bind=False (--no-bind)"))
    skip = skip_reason(machine, config, circumstances) if mode == "auto" else None
    if skip:
        return stays_unbound(skip)

    entries = entries_of(machine, config, circumstances.spread_ranks)
    relevant = targets
    if mode == "auto":
        others = [] if any(process.takes_only_gpu for process in asked) else local_processes(config)
        relevant = targets + [target_of(machine, config, process, circumstances) for process in others]
        skip = entry_obstacle(machine, entries, relevant)
        if skip:
            return stays_unbound(skip)

    bindings = {target: bind(machine, config, target.unbound, taken(machine, entries, target)) for target in relevant}
    refused = tuple(dict.fromkeys(b.reasons[0] for b in bindings.values() if not b.bound))
    if refused and config.strict:
        raise StrictError.of(refused[0])
    if refused and mode == "auto":
        return stays_unbound(refused[0])
    bound = tuple(bindings[target] for target in targets)
    return Plan(mode, None, machine.visible_gpus, bound, machine.notes + refused)


def target_of(machine: Machine, config: LaunchConfig, process: Process, circumstances: Circumstances) -> _Target:
    shard = shard_of(config, process.dp_local_rank)
    unbound = Binding(process.kind, process.local_rank, shard)
    spreads = circumstances.spread_ranks is not None
    if process.kind == "EngineCore":
        indices_of = spread_indices if spreads else shard_indices
        return _Target(unbound, None if process.over_all else indices_of(config, process.dp_local_rank))
    if spreads:
        index = spread_indices(config, process.dp_local_rank)[0] + process.local_rank
        return _Target(unbound, range(index, index + 1))
    index = gpu_index(config, process.local_rank, process.dp_local_rank)
    lists = config.numa_bind_nodes or config.numa_bind_cpus or ()
    takes_only = process.takes_only_gpu and machine.only_gpu_left
    unbound = unbound._replace(gpu_index=(0 if takes_only else index) if machine.visible else None)
    if takes_only and len(lists) < 2:
        index = 0
    return _Target(unbound, range(index, index + 1))


def taken(machine: Machine, entries: Entries, target: _Target) -> tuple[Entry, ...]:
    """Return the entries of a process; raises ConfigError for an index past the end or a GPU of unknown node."""
    if target.indices is None:
        chosen = entries.entries
        indices: Sequence[int] = range(entries.size)
    else:
        indices = target.indices
        chosen = entries.entries[indices[0] : indices[-1] + 1]
    if not entries.size:
        raise ConfigError.of(no_gpu(machine))
    if target.indices and target.indices[-1] >= entries.size:
        raise ConfigError.of(past_the_end(entries, target))
    absent = [entry.absent for entry in chosen if entry.absent is not None]
    if absent:
        raise ConfigError(f"{named('assigned_physical_gpu_ids')} names {absent[0]}, past the end: {entries.counted}")
    unknown = [i for i, entry in zip(indices, chosen, strict=True) if entry.nodes is None]
    if unknown:
        raise ConfigError.of(gpu_node_unknown(machine, unknown))
    return chosen


def past_the_end(entries: Entries, target: _Target) -> Note:
    """Return what is wrong with a process whose last index there is no entry for."""
    first = max(target.indices[0], entries.size) if target.indices else 0
    return note("gpu-index-out-of-range", process=target.unbound.name, index=first, counted=entries.counted)


def entry_obstacle(machine: Machine, entries: Entries, targets: Sequence[_Target]) -> Note | None:
    """Return why auto mode cannot take the nodes of all these processes from the entries."""
    for target in targets:
        if target.indices and target.indices[-1] >= entries.size:
            return past_the_end(entries, target)
    for target in targets:
        for i, entry in enumerate(taken(machine, entries, target), start=target.indices[0] if target.indices else 0):
            if entry.own_node is not None:
                return note("node-without-cpus", index=i, node=entry.own_node)
    return None
