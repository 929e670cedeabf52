"""Files read and written safely: refused when odd, replaced whole, never half."""
