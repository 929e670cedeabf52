"""Recordings that people already have, as diagnoses: nothing is replayed."""
