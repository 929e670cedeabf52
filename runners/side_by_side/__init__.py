"""``latfix try``: ideas on the same traffic in turns, each scored and compared with the unmodified workload."""
