"""Who is calling: API keys, tenants and roles."""
