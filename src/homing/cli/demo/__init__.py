"""`homing demo`: an outage, retries, a failover, a dead letter with its resend and a killed worker, shown
live.
"""
