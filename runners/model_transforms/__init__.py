"""Changes of a model in place: precision, compilation, memory layout."""
