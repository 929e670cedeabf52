"""fuse.*"""
