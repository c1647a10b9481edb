"""Audit the clients' results of any system: tables, exports of trackers and frameworks, to the same findings."""
