"""Code that the SQL stores share: column codec, migrations, receipt matching and copying between stores."""
