"""quantize.*"""
