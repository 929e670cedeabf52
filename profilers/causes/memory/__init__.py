"""The heap, its pages, and the device's memory."""
