"""Code that the SQL stores share: columns, leases, commands, receipts, migrations and copying."""
