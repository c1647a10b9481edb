"""Charts as Vega-Lite specifications, one definition each: the page mounts them, `saving` draws them.

A module for each kind of picture; `report` gathers them.
"""
