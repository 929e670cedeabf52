"""The package file, and the documented `python -m latfix.runners.launch`."""
