"""Charts of the pages: their numbers, and the SVG of them.

A drawing has no inline style and no script, so that a strict Content-Security-Policy allows it, and every text in it is
escaped. The page that updates each second (``due_load``, ``rings``, and the lines of ``charts``) joins strings, because
a template takes ten times the CPU for a thousand bars; templates draw the others.
"""
