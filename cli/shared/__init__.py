"""Options, outputs and flows that several commands share."""
