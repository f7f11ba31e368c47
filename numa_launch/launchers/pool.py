"""``process_pool``: a ProcessPoolExecutor whose workers are bound, one rank each.

Example::

    with process_pool(LaunchConfig(tensor_parallel_size=8), ranks=8) as pool:
        results = list(pool.map(step, batches))

The standard library starts workers late: at a submit, and under ``max_tasks_per_child`` from a thread of its own. So
each is bound where it is started, in ``start()`` of its process, whoever calls that. What a worker unpickles is the
plain process: it imports nothing of ours.
"""

import multiprocessing
import os
import queue
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, InvalidStateError, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing.context import SpawnProcess
from typing import Any, ParamSpec, TypeVar

from numa_launch.apply.spawn import configure_subprocess, prepare, start_method_of
from numa_launch.apply.swap import spawner
from numa_launch.config import is_count
from numa_launch.errors import ConfigError
from numa_launch.idsets import MAX_ID
from numa_launch.machine.read import require_linux
from numa_launch.plan.model import Process
from numa_launch.reasons import note

P = ParamSpec("P")
T = TypeVar("T")


def process_pool(
    config: Any,
    ranks: int | Iterable[int],
    *,
    max_tasks_per_child: int | None = None,
    initializer: Callable[..., object] | None = None,
    initargs: tuple[Any, ...] = (),
    mp_context: Any = None,
) -> ProcessPoolExecutor:
    """Return a pool with one worker for each local rank, each bound as ``configure_subprocess(config, rank)`` binds.

    `config` is a LaunchConfig, or any object with a `parallel_config` of the same names. `ranks` is how many there are,
    or which. In a worker LOCAL_RANK is its rank; which worker takes a task is not said. One that ends after
    `max_tasks_per_child` tasks (Python 3.11 and newer) is replaced by one of its rank. `initializer` runs once in each
    worker, bound already. `mp_context` is a multiprocessing context that spawns, or ``"spawn"`` (None:
    multiprocessing's).

    Raises ConfigError for malformed ranks, for another start method and for what cannot be planned, and StrictError
    where `config.strict` and a rank would be less bound than planned. A worker that cannot be started later breaks the
    pool as one that dies does: its futures raise BrokenProcessPool (``worker-not-started``).
    """
    require_linux()
    chosen = checked(ranks)
    if max_tasks_per_child is not None and sys.version_info < (3, 11):
        raise ConfigError(f"max_tasks_per_child: {max_tasks_per_child!r} needs Python 3.11 or newer")
    method = "spawn" if mp_context is None else start_method_of(mp_context)
    if method != "spawn":
        raise ConfigError(f"mp_context: {note('start-method', what='its workers are', method=method).message}")
    named = mp_context is None or isinstance(mp_context, str)
    context = multiprocessing.get_context(method) if named else mp_context.get_context()
    with spawner.lock:
        for rank in chosen:
            prepare(config, Process("worker", rank), context)
    workers = Workers(config, chosen, context)
    options: dict[str, Any] = {} if max_tasks_per_child is None else {"max_tasks_per_child": max_tasks_per_child}
    return BoundPool(workers, initializer=initializer, initargs=initargs, **options)


def checked(ranks: object) -> tuple[int, ...]:
    """Return the ranks, each once: those of a range for a number."""
    if is_count(ranks) and ranks <= MAX_ID:  # type: ignore[operator]
        ranks = range(ranks)  # type: ignore[call-overload]
    if not isinstance(ranks, Iterable) or isinstance(ranks, str | bytes):
        raise ConfigError(f"ranks: {ranks!r} must be the number of ranks, or a list of ranks from 0 on")
    chosen: dict[int, None] = {}
    for rank in ranks:
        if not is_count(rank):
            raise ConfigError(f"ranks: {rank!r} must be a number from 0 on")
        if rank in chosen:
            raise ConfigError(f"ranks: {rank} is there more than once, but a rank has one worker")
        chosen[rank] = None
    if not chosen:
        raise ConfigError("ranks: there must be at least one")
    return tuple(chosen)


class Workers:
    """The pool's workers by rank; it stands in for the context, of which a pool takes queues and processes.

    It does not know the executor, whose end the standard library notices by its being collected: only the executor's
    own processes by PID, its pending items by number, the numbers still to be handed out and the queue to the workers.
    """

    def __init__(self, config: Any, ranks: tuple[int, ...], context: Any) -> None:
        self.config = config
        self.context = context
        self.latest: dict[int, Any] = dict.fromkeys(ranks)
        self.processes: Any = {}
        self.pending: Any = {}
        self.numbers: Any = None
        self.calls: Any = None
        self.broken: BrokenProcessPool | None = None
        self.process_class = type("BoundProcess", (BoundProcess, context.Process), {})
        # Always ready to read, and opened here, as there may be no descriptor left when a worker cannot be started.
        self.ended = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self.ended)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.context, name)

    def Process(self, *args: Any, **kwargs: Any) -> Any:  # noqa: N802 - a context's name for it
        """Return a worker to be started; its rank is found then."""
        process = self.process_class(*args, **kwargs)
        process.workers = self
        return process

    def free_rank(self) -> int:
        """Return the first rank without a worker, which is that of the one that a new one replaces."""
        kept = self.processes.values()
        return next(rank for rank, worker in self.latest.items() if worker not in kept)

    def breaks(self, rank: int, error: Exception) -> None:
        """Keep why the pool is broken."""
        why = str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
        self.broken = BrokenProcessPool(note("worker-not-started", rank=rank, why=why).message)
        self.broken.__cause__ = error

    def fail_pending(self) -> None:
        """Give every future that waits the reason, in the executor's own thread: no other may take items away.

        The executor may be shut down before it sees that it is broken, and would then wait for calls to be written
        that no worker is left to read: without a reader they are dropped.
        """
        self.calls._reader.close()
        with suppress(queue.Empty):
            while True:
                self.numbers.get_nowait()
        for item in list(self.pending.values()):
            with suppress(InvalidStateError):  # one that was cancelled
                item.future.set_exception(self.broken)
        self.pending.clear()


class BoundProcess(SpawnProcess):
    """A worker that is bound while it starts, as the rank that has none.

    One that cannot be started is to the executor one that has ended at once, which breaks the pool as it should.
    """

    workers: Workers | None = None

    def start(self) -> None:
        """Start it inside a block of its rank; never raises an Exception."""
        workers = self.workers
        assert workers is not None, "a pool's process is started in the process that made it"
        rank = workers.free_rank()
        try:
            with configure_subprocess(workers.config, rank, context=workers.context), local_rank(rank):
                super().start()
        except Exception as error:
            if self._popen is None:  # type: ignore[has-type]
                self._popen = NotStarted(workers.ended)
                self._sentinel = workers.ended
            workers.breaks(rank, error)
        workers.latest[rank] = self

    @property
    def sentinel(self) -> int:
        """What the executor's thread waits for, and asks for before each wait."""
        if self.workers and self.workers.broken:
            self.workers.fail_pending()
        return super().sentinel

    def __reduce__(self) -> tuple[Any, ...]:
        state = {name: value for name, value in vars(self).items() if name != "workers"}
        return object.__new__, (type(self).__bases__[1],), state


class NotStarted:
    """What stands in for the child where there is none."""

    pid = 0
    returncode = 255

    def __init__(self, sentinel: int) -> None:
        self.sentinel = sentinel

    def poll(self) -> int:
        """Return its exit status."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit status at once."""
        return self.returncode

    def terminate(self) -> None:
        """Do nothing: it has ended."""

    kill = terminate


@contextmanager
def local_rank(rank: int) -> Iterator[None]:
    """Set LOCAL_RANK for the child that is started meanwhile, and put back what was there."""
    before = os.environ.get("LOCAL_RANK")
    os.environ["LOCAL_RANK"] = str(rank)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("LOCAL_RANK", None)
        else:
            os.environ["LOCAL_RANK"] = before


class BoundPool(ProcessPoolExecutor):
    """The executor: the standard library's but for when it starts workers, and what it says where it cannot."""

    def __init__(self, workers: Any, **options: Any) -> None:
        super().__init__(len(workers.latest), workers, **options)
        self._workers = workers
        workers.processes, workers.pending = self._processes, self._pending_work_items
        workers.numbers, workers.calls = self._work_ids, self._call_queue  # type: ignore[attr-defined]

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Submit, but not inside a block: a worker that another thread starts would wait for it, and it for that."""
        if spawner.is_held_here():
            raise ConfigError("submit to a process_pool outside configure_subprocess, as its workers are bound anyway")
        if self._workers.broken:
            raise BrokenProcessPool(str(self._workers.broken)) from self._workers.broken.__cause__
        future = super().submit(fn, *args, **kwargs)
        # Woken before the worker was started, the executor's thread may not watch that one yet.
        with self._shutdown_lock:
            if self._executor_manager_thread_wakeup:
                self._executor_manager_thread_wakeup.wakeup()
        return future

    def _adjust_process_count(self) -> None:
        """Start a worker where there are fewer than tasks that are not done.

        Python 3.11 to 3.13 count idle workers, and those that end by themselves later too: with no worker left they
        would wait for one of them for ever.
        """
        workers = self._workers
        if len(workers.processes) >= min(len(workers.latest), len(workers.pending)):
            return
        if self._processes is None:  # after shutdown(wait=False), which drops what a new worker needs
            if not workers.processes:
                workers.broken = BrokenProcessPool(CANNOT_REPLACE)
                workers.fail_pending()
            return
        while self._idle_worker_semaphore.acquire(blocking=False):
            pass
        super()._adjust_process_count()


CANNOT_REPLACE = (
    "tasks are left, but after shutdown(wait=False) no worker that has ended after max_tasks_per_child tasks is "
    "replaced: call shutdown() instead"
)
