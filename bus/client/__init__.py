"""The calling side: one request, one answer or one stream, over as many attempts as that takes."""
