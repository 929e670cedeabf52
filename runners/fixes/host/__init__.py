"""``host.*``: workers, threads and cores."""

from latfix.runners.fixes.host import parallel, pin, priority, routing, threads, wait_policy, workers

__all__ = ["parallel", "pin", "priority", "routing", "threads", "wait_policy", "workers"]
