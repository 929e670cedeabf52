"""Numbers from samples: percentiles, intervals, resampling, change points, and what a ratio of two arms says."""
