"""When in the run something happened: windows, active intervals."""
