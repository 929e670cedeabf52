"""latfix backends: which can serve this model, how fast, same answers?"""
