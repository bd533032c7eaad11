"""Twilio: SMS and WhatsApp."""
