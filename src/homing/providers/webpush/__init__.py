"""Web Push: notifications to browsers, encrypted and signed with VAPID."""
