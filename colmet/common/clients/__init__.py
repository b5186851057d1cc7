"""Clients of HTTP servers and of databases."""
