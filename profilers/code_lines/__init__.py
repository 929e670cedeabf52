"""Which lines of the user's code take longer in slow work than in typical."""
