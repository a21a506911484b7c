"""The web console: pages and a REST API for operators, on any cluster of Ariane or Apache RocketMQ.

    browser ─→ security ─→ pages ─┐                ┌─→ cluster.Admin    details and changes, asked at each request
    script  ─→ security ─→ api ───┴─→ areas ───────┼─→ live             one poll of the cluster for all tabs: lists, totals
                                                   └─→ reports          the pipeline's tables
    areas      reads return view models (`View`), changes take forms; pages and API share them
    web        rendering, errors, paging
    app        wires everything; `server` runs it

No module outside this package imports FastAPI.
"""
