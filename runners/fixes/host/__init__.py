"""``host.*``: workers, threads and cores."""
