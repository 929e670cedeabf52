"""The model run by another runtime than torch, its answers checked against the original's."""
