"""Access control: which hosts and web origins may call, and how much each tenant may produce."""
