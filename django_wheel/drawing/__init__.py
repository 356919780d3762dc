"""Charts of the pages: their numbers, and the SVG of them.

A drawing has no inline style and no script, for a strict Content-Security-Policy, and every text in it is escaped. The
parts of the page that updates each second join strings: a template takes ten times the CPU for a thousand bars.
"""
