"""Rows and phrases that the terminal, the pages and the CI outputs share."""
