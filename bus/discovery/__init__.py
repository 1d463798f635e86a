"""Who is there: what servers say of themselves, asked for or heard."""
