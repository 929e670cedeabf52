"""Diagnoses of existing recordings, made by other tools: nothing is replayed."""
