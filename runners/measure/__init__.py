"""Measurements of a loaded service without a replay: accuracy, compute pace, sensitivity of layers."""
