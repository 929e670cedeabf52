"""Matplotlib to inline SVG."""
