"""One injector a module."""
