"""A report as one HTML file that opens offline: the verdict, a table, every chart, and where it comes from.

`contents` gathers what the page says, `verdict` puts the finding into a sentence, and `write` puts all of it into one
file with the scripts and styles of this folder.
"""
