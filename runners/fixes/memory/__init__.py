"""memory.*"""
