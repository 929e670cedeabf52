"""Charts of the pages: matplotlib figures as inline SVG."""
