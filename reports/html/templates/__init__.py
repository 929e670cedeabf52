"""Page template and style sheet."""
