"""Verbs of the command line: a verb is a function of a few lines that calls the library.

A verb imports what it needs inside its function: the training engine and the plots take seconds to import.
"""
