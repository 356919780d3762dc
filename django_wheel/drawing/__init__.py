"""Charts of the pages: their numbers, and the SVG of them.

::

    due_load     due tasks of the next minute, hour, day and year; herds      bars         its SVG
    rings        the levels of a wheel as rings of arcs                       sparkline    lines of the last minutes
    times        instants near the present, as people say them                linear_axis  scales of values and of time
    due_bars     due tasks by equal spans        heat_map     hours by line   timeline     the life of a task
    lateness_chart   points and percentiles over time

A drawing has no inline style and no script, so that a strict Content-Security-Policy allows it, and every text in it is
escaped. The page that updates each second joins strings, because a template takes ten times the CPU for a thousand
bars; templates draw the others.
"""
