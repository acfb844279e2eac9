"""What two or more modes share: errors, settings, the HTTP edge. Imports nothing of modes, index or prompts."""
