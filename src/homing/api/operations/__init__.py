"""Routes for operators: dead letters, jobs, the queue, policies, providers, recipients and templates."""
