"""`mqadmin`: the commands of Java's tool of the same name. [MQAdminStartup]

    main.py       command line ─→ command_registry ─→ one module per area ─→ Admin ─→ Output ─→ text or JSON
    command.py    AdminCommand, Option, Output: what a module of commands declares

A module is imported when one of its commands runs, so that a simple command starts in a fraction of a second.
"""
