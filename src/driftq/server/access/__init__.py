"""Who may call: origins, hosts, tenant rates."""
