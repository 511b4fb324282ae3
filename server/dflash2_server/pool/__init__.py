"""Loaded pairs."""
