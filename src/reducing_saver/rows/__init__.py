"""Rewrite and delete stored rows, for jobs and for retention: one thread at a time, or many."""
