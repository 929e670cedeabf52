"""Commands that run a service or examine the machine."""
