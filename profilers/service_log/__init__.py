"""Records a user's own service while it serves: one row per request, sampled, in segments of bounded total size."""
