"""The pages for people: HTML without a build step, external resources or required JavaScript."""
