"""Safe reading and writing of files: unusual ones are refused, files are replaced atomically."""
