"""latfix: find out why the latency of model inference jitters, fix it, and prove the fix.

What a workload's adapter needs is here: :class:`Request`, :class:`Workload` and :class:`span`.
"""

from latfix.request import Request
from latfix.spans import span
from latfix.workload import Workload

__version__ = "0.1.0"

__all__ = ["Request", "Workload", "__version__", "span"]
