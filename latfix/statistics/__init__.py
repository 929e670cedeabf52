"""Numbers from samples: percentiles, intervals, resampling, change points, and verdicts on the ratio of two arms."""
