"""PURE: the timeline of a message, from trace events and stored records to a drawing.

    trace messages + stored copies ─→ live_steps    ─┐
    rows of the table `journeys`   ─→ journey_steps ─┴→ step_merge ─→ TraceStep… ─→ time_axis, lane_rows ─→ timeline_drawing

No I/O, no clock. The web console fetches the data (`ariane.console.areas.traces.trace_page`) and renders the drawing as SVG.
"""
