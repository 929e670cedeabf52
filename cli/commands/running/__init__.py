"""Commands that run a service or look at the machine."""
