"""What a record and a service show, for the fixes' own conditions."""
