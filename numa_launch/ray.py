"""Ray: bind the workers of a cluster, each actor and task to the node of its own GPUs.

Example: ``ray.init(runtime_env=numa_launch.ray.runtime_env())``, or ``numa_launch.ray.bind_current_actor()`` as the
first line of an actor's ``__init__``. Needs Ray (``pip install 'numa-launch[ray]'``); importing this does not load it.
"""

from numa_launch.launchers.ray import bind_current_actor, runtime_env, setup_worker

__all__ = ["bind_current_actor", "runtime_env", "setup_worker"]
