"""A backend of `search`: a file of bookmarks, a line for each, its address before its title."""

from pathlib import Path

from skills.host import BackendContext, Unconfigured


class Bookmarks:
    def __init__(self, file: Path) -> None:
        self._rows = [line.split(maxsplit=1) for line in file.read_text().splitlines() if line.strip()]

    async def search(
        self, query: str, *, max_results: int, days: int | None, topic: str | None
    ) -> list[dict[str, str]]:
        rows = [{"url": url, "title": " ".join(title), "snippet": ""} for url, *title in self._rows]
        words = query.lower().split()
        return [row for row in rows if all(word in row["title"].lower() for word in words)][:max_results]


def bookmarks(context: BackendContext) -> Bookmarks:
    if not context.option("file"):
        raise Unconfigured("set SKILLBUS_SEARCH_FILE, or `file` in [tools.search]")
    return Bookmarks(Path(context.option("file")))
