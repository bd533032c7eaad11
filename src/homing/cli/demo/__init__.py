"""`homing demo`: an outage, retries, a failover, a dead letter and its resend, shown live."""
