"""host.*, locality.*"""
