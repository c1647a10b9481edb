"""Clients and their data, as users give them and as engines read them."""
