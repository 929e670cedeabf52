"""Reading and writing traffic files, exact to the nanosecond."""
