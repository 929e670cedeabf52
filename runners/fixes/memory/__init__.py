"""Fixes of allocators and pages, on the host and on a device."""
