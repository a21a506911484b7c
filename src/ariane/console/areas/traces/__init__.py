"""Traces: search, and the timeline of one message from trace events and stored records to a drawing.

    trace_sources ─┬→ trace messages + stored copies ─→ live_steps    ─┐
                   └→ rows of the table `journeys`   ─→ journey_steps ─┴→ step_merge ─→ TraceStep… ─→ trace_page
    trace_page ─→ time_axis, lane_rows ─→ timeline_drawing; a template renders it as SVG

`ariane.reports` has journey_steps and TraceStep, which `ariane trace` lists, too.
I/O is in trace_page, trace_search and trace_sources; all other modules are pure.
"""
