"""``backend = "tensorrt"``: the model compiled by torch-tensorrt for the shapes that its traffic brings.

Nothing of it is imported unless somebody asks for that backend.
"""
