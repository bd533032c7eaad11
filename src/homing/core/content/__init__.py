"""Message content: email parts, SMS segments, templates and locales."""
