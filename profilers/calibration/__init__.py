"""What one fault, switch or driver call costs on this machine."""
