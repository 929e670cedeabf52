"""The Python interpreter: its collector and its lock."""
