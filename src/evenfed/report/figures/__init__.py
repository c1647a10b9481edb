"""Figures as Vega-Lite specifications, one for all formats (extra `evenfed[report]`).

A module for each thing they are drawn of: a comparison, its report, a choice, a search, a federation.
"""
