"""CHECK: where processes really run and where their memory really is."""
