"""``backend = "tensorrt"``: torch-tensorrt compiles the model for the shapes of its traffic.

Imported only if this backend is requested.
"""
