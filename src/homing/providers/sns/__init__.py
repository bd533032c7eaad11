"""Amazon SNS: SMS and mobile push."""
