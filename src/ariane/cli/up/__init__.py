"""`ariane up`: all servers on this machine, with demo traffic."""
