"""Typed values that commands find and reports take."""
