"""The self-test of the diagnosis: injects faults on purpose and checks whether it finds them in the run's record."""
