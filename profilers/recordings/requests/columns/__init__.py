"""Requests from columns of any name: which column plays which role, the values, and what may be an input."""
