"""Shrink what is already stored, next to live traffic: plan, compact, sweep, erase."""
