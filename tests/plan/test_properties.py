"""What holds for every machine and every config: made by hypothesis."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from numa_launch import ConfigError, LaunchConfig
from numa_launch.apply.numactl import candidates, numactl_args
from numa_launch.idsets import format_ids, parse_ids
from numa_launch.machine.gpu import Gpu
from numa_launch.machine.model import Limits, Machine, Node
from numa_launch.plan.decide import plan
from numa_launch.plan.model import Binding, Plan

CPUS = st.frozensets(st.integers(0, 31), min_size=1)


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """A machine of up to five nodes, some without memory, of sparse ids, with GPUs and limits of any kind."""
    ids = draw(st.lists(st.integers(0, 300), min_size=1, max_size=5, unique=True))
    owner = draw(st.lists(st.sampled_from(ids), min_size=32, max_size=32))
    online = draw(CPUS)
    nodes = tuple(
        Node(i, frozenset(cpu for cpu in online if owner[cpu] == i), draw(st.sampled_from([None, 0, 1024])))
        for i in sorted(ids)
    )
    limits = Limits(
        affinity=draw(st.none() | CPUS),
        cpuset=draw(st.none() | CPUS),
        memory_nodes=draw(st.none() | st.frozensets(st.sampled_from(ids))),
    )
    gpus = tuple(Gpu(None, node=node) for node in draw(st.lists(st.none() | st.sampled_from(ids), max_size=6)))
    return Machine(
        nodes=nodes,
        online=online,
        limits=limits,
        gpus=gpus,
        visible=tuple(range(len(gpus))),
        priority_cpus=draw(st.frozensets(st.integers(0, 31))),
        has_node_directory=draw(st.booleans()),
    )


@st.composite
def configs(draw: st.DrawFn) -> LaunchConfig:
    entries = draw(st.integers(1, 6))
    lists: dict[str, Any] = {}
    if draw(st.booleans()):
        lists["numa_bind_cpus"] = [format_ids(draw(CPUS)) for _ in range(entries)]
    if draw(st.booleans()):
        lists["numa_bind_nodes"] = [draw(st.integers(0, 300)) for _ in range(entries)]
    return LaunchConfig(
        numa_bind=draw(st.sampled_from([None, True])),
        memory_policy=draw(st.sampled_from(["auto", "membind", "preferred", "interleave", "none"])),
        tensor_parallel_size=draw(st.integers(1, 3)),
        data_parallel_size=2,
        data_parallel_size_local=draw(st.integers(1, 2)),
        **lists,
    )


def plan_or_refusal(machine: Machine, config: LaunchConfig) -> Plan | None:
    try:
        return plan(machine, config)
    except ConfigError as refusal:
        assert "\n" not in str(refusal)
        return None


def ids_of(argument: str) -> frozenset[int]:
    return parse_ids(argument.partition("=")[2])


def cpus_named(machine: Machine, args: list[str]) -> frozenset[int]:
    named: set[int] = set()
    for argument in args:
        if argument.startswith("--physcpubind"):
            named |= ids_of(argument)
        elif argument.startswith("--cpunodebind"):
            named |= {cpu for node in ids_of(argument) for cpu in machine.node_of_id[node].cpus}
    return frozenset(named)


@given(machines(), configs())
def test_no_argument_names_a_cpu_or_node_that_may_not_be_used(machine: Machine, config: LaunchConfig) -> None:
    made = plan_or_refusal(machine, config)
    for binding in made.processes if made else ():
        for args in candidates(binding) if binding.bound else []:
            assert cpus_named(machine, args) == binding.cpus <= machine.usable_cpus
            memory = {node for argument in args if "cpu" not in argument for node in ids_of(argument)}
            assert all(machine.has_memory(node) and machine.may_use_memory_of(node) for node in memory)


@given(machines(), configs())
def test_an_engine_core_covers_its_workers(machine: Machine, config: LaunchConfig) -> None:
    made = plan_or_refusal(machine, config)
    bindings: tuple[Binding, ...] = made.processes if made else ()
    for engine in (binding for binding in bindings if binding.kind == "EngineCore"):
        workers = [b for b in bindings if b.kind == "worker" and b.dp_local_rank == engine.dp_local_rank]
        assert all(worker.cpus <= engine.cpus and set(worker.nodes) <= set(engine.nodes) for worker in workers)


@given(machines(), configs())
def test_auto_mode_binds_all_or_none(machine: Machine, config: LaunchConfig) -> None:
    made = plan_or_refusal(machine, config)
    if made and made.mode == "auto":
        assert len({binding.bound for binding in made.processes}) == 1
        assert made.bound == (made.skip_reason is None)


@given(machines(), configs())
def test_an_unbound_process_has_nothing_to_set_and_a_bound_one_has(machine: Machine, config: LaunchConfig) -> None:
    made = plan_or_refusal(machine, config)
    for binding in made.processes if made else ():
        has_any = bool(binding.nodes or binding.memory_nodes or binding.memory_policy or numactl_args(binding))
        assert has_any == binding.bound


@given(machines(), configs())
def test_a_plan_is_a_function_of_machine_and_config(machine: Machine, config: LaunchConfig) -> None:
    assert plan_or_refusal(machine, config) == plan_or_refusal(machine, config)
