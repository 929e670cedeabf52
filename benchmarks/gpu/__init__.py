"""What needs a GPU: tests, measurements and their judgement, in one go by ``run.py``."""
