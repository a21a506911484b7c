"""The remoting protocol without I/O: frames, commands, typed requests, stored records."""
