"""One module a format: whether a file is one, and what it holds as columns. Field names are those of its writer."""
