"""The model run by something else than torch, and checked against the original."""
