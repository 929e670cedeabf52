"""``latfix.load_runner``: compared with a replay, and with other servers."""
