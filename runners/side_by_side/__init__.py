"""``latfix try``: ideas on the same traffic in turns, each scored and compared with the workload as it is."""
