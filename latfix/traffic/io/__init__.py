"""Traffic from and to files, exact to the nanosecond."""
