"""Code that commands share: options, output, progress, units, exit codes, masking and process setup."""
