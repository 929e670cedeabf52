"""The self-test of the diagnosis: faults injected on purpose, and how well a run's record alone tells them."""
