"""Measure reducing-saver against what it wraps and against its peers; see README.md."""
