"""What tests share: stand-ins for servers and machines, daemons as processes, made-up data."""
