"""The diagnosis: its share of correct causes, against simpler methods; its time, memory and intervals; its cost."""
