"""Drivers of local Ray clusters, each of which prints what became of its actors and tasks as one line of JSON.

Example: ``python -m tests.launchers.actors in_init``. Ray counts GPUs that it is told of, so none are needed.
"""

import json
import os
import sys
from typing import Any

import ray

from numa_launch import LaunchConfig
from numa_launch.ray import bind_current_actor, runtime_env
from tests.host import CPU_A, CPU_B
from tests.vm.truth import allowed_cpus, policy

LISTS = [str(CPU_B), str(CPU_A), str(CPU_B), str(CPU_A)]
CONFIG = LaunchConfig(numa_bind_cpus=LISTS)

Facts = dict[str, Any]


def facts() -> Facts:
    """Return what the kernel and Ray show of the calling worker."""
    tasks = os.listdir("/proc/self/task")
    return {
        "pid": os.getpid(),
        "gpus": ray.get_runtime_context().get_accelerator_ids()["GPU"],
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "handed_over": os.environ.get("NUMA_LAUNCH_BOUND"),
        "threads": len(tasks),
        "cpus": sorted({allowed_cpus(f"/proc/self/task/{task}") for task in tasks}),
        "policy": policy("/proc/thread-self"),
        "main_policy": policy(),
        "user_hook": os.environ.get("USER_HOOK"),
    }


def bind_and_see(config: LaunchConfig | None = CONFIG) -> Facts:
    """Return the facts of a worker that has bound itself, with what the call returned."""
    binding, not_reached = bind_current_actor(config)
    return {
        **facts(),
        "binding": [binding.kind, binding.local_rank, binding.gpu_index, binding.nodes],
        "reasons": [reason.code for reason in binding.reasons],
        "not_reached": not_reached,
    }


class Binds:
    """An actor that binds itself where it is made."""

    def __init__(self, config: LaunchConfig | None = CONFIG) -> None:
        self.made = bind_and_see(config)

    def seen(self) -> Facts:
        return self.made

    def seen_later(self) -> Facts:
        return facts()


class AsyncBinds(Binds):
    """One whose methods run in an event loop, so that it is not made in the main thread."""

    async def seen(self) -> Facts:  # type: ignore[override]
        return self.made


class Bound:
    """An actor that knows nothing of binding."""

    def seen(self) -> Facts:
        return facts()


def start(gpus: int = 4, **options: Any) -> None:
    ray.init(num_cpus=8, num_gpus=gpus, include_dashboard=False, log_to_driver=False, **options)


def got(reference: Any) -> Any:
    return ray.get(reference, timeout=60)


def made(kind: type, *arguments: object, **options: Any) -> Any:
    return ray.remote(kind).options(**options).remote(*arguments)


def ran(function: Any, *arguments: object, **options: Any) -> Any:
    return got(ray.remote(function).options(**options).remote(*arguments))


def error_of(call: Any) -> str:
    """Return what a call that must fail says."""
    try:
        return f"no error: {call()}"
    except ray.exceptions.RayError as error:
        return str(error)


def in_init() -> dict[str, Any]:
    """Actors of every kind that bind themselves."""
    start()
    actors = [made(Binds, num_gpus=1) for _ in range(4)]
    four = [got(actor.seen.remote()) for actor in actors]
    later = [got(actor.seen_later.remote()) for actor in actors]
    for actor in actors:
        ray.kill(actor)
    halves = [made(Binds, num_gpus=0.5) for _ in range(2)]
    found = {
        "four": four,
        "later": later,
        "halves": [got(actor.seen.remote()) for actor in halves],
        "two_gpus": got(made(Binds, num_gpus=2).seen.remote()),
        "no_gpu": got(made(Binds, num_gpus=0).seen.remote()),
    }
    found["in_event_loop"] = got(made(AsyncBinds, num_gpus=1).seen.remote())
    found["task"] = ran(bind_and_see, num_gpus=0.5)
    short = LaunchConfig(numa_bind_cpus=LISTS[:1])
    found["past_the_end"] = error_of(lambda: got(made(Binds, short, num_gpus=2).seen.remote()))
    found["driver"] = bind_and_see()
    return found


def thread_pool() -> dict[str, Any]:
    """An actor with threads for its methods, which Ray starts after it is made."""
    start(gpus=1)
    actor = made(Binds, num_gpus=1, max_concurrency=4)
    return {"made": got(actor.seen.remote()), "method": got(actor.seen_later.remote())}


def by_hook() -> dict[str, Any]:
    """Workers that the hook binds, of a Ray that was started with a list of GPUs, beside a hook of the user's."""
    os.environ["CUDA_VISIBLE_DEVICES"] = "7,GPU-1b2c,5,3"
    start(runtime_env=runtime_env(CONFIG, worker_process_setup_hook=user_hook))
    actors = [made(Bound, num_gpus=1) for _ in range(4)]
    four = [got(actor.seen.remote()) for actor in actors]
    for actor in actors:
        ray.kill(actor)
    return {
        "four": four,
        "two_gpus": got(made(Bound, num_gpus=2).seen.remote()),
        "no_gpu": got(made(Bound, num_gpus=0).seen.remote()),
        "task": ran(facts, num_gpus=1),
    }


def user_hook() -> None:
    os.environ["USER_HOOK"] = "ran"


def used_again() -> dict[str, Any]:
    """A worker that serves tasks with other GPUs: those that it had first are taken meanwhile, one after another."""
    start(runtime_env=runtime_env(CONFIG))
    held, seen = [], []
    for _ in range(3):
        seen.append(ran(facts, num_gpus=1))
        held.append(made(Bound, num_cpus=0, num_gpus=1))
        got(held[-1].seen.remote())
    return {"seen": seen}


def strictly() -> dict[str, Any]:
    """Workers whose CPUs do not exist: strict, and not."""
    lists = ["9999"] * 4
    start(runtime_env=runtime_env(LaunchConfig(numa_bind_cpus=lists, strict=True)))
    strict = error_of(lambda: got(made(Bound, num_gpus=1).seen.remote()))
    no_gpu = got(made(Bound, num_gpus=0).seen.remote())
    ray.shutdown()
    start(runtime_env=runtime_env(LaunchConfig(numa_bind_nodes=[4096] * 4)))
    return {"strict": strict, "no_gpu": no_gpu, "lenient": got(made(Bound, num_gpus=1).seen.remote())}


def by_itself() -> dict[str, Any]:
    """Without lists: to the nodes of the GPUs, whatever the environment of all workers says."""
    os.environ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"] = "1"
    start(gpus=3, runtime_env=runtime_env())
    actors = [made(Bound, num_gpus=1) for _ in range(3)]
    found = {"each": [got(actor.seen.remote()) for actor in actors]}
    ray.kill(actors[0])
    ray.shutdown()
    start(gpus=3)
    actors = [made(Binds, None, num_gpus=1) for _ in range(3)]
    return {**found, "in_init": [got(actor.seen.remote()) for actor in actors]}


if __name__ == "__main__":
    result = globals()[sys.argv[1]]()
    ray.shutdown()
    print(json.dumps(result))
