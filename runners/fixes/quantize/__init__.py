"""``quantize.*``: lower precision of weights and activations."""
