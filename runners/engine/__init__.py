"""The service under test: prepare threads, workers, one batch through the model."""
