"""Code that all commands share: options, output, units, exit codes, masking and process setup."""
