"""Work that slows down with age, and what grew at the same time."""
