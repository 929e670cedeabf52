"""What a loaded service is apart from a replay: accuracy, compute pace, sensitivity of layers."""
