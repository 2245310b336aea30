"""Verbs of the command line: a verb is a function of a few lines that calls the library.

What it needs is imported inside it: the training engine and the plots cost seconds that others need not wait.
"""
