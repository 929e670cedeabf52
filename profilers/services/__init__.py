"""A service that latfix does not run: kernel counters of its process, its own metrics, figures and advice."""
