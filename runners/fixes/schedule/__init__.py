"""In which order requests leave the queue."""
