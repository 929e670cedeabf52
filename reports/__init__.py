"""What several media share."""
