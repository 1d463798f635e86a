"""Who may: grants, what narrows them, what the host never allows, and the law that decides."""
