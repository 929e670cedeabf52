"""The same attribution for records that do not fit into memory, chunk by chunk."""
