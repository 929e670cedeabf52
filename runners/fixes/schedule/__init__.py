"""``schedule.*``: order in which requests leave the queue."""

from latfix.runners.fixes.schedule import memory_aware, priority, shortest_expected

__all__ = ["memory_aware", "priority", "shortest_expected"]
