"""Small experiments on our Transformer that show what each training technique does: pure functions, numbers out.

Each is decided by its arguments and its seed alone, and runs on the CPU; the Training tab draws what it gives.
"""
