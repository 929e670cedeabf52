"""One module per format: recognizes a file, and reads it as columns. Field names are those of the format's writer."""
