"""Messages from nodes: decoded, checked, limited per sender, separated by host, acknowledged over the link."""
