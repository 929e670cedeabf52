"""The injectors of faults."""
