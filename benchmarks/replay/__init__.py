"""The replayer: when requests are sent, and what sending costs."""
