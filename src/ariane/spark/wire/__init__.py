"""Blocking connections of planners and tasks to servers, without an event loop. `access.ClusterAccess` holds their options."""
