"""Data in object storage: URLs, requests, and stores whose files come through a local cache."""
