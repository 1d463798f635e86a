"""The start of a Python host, by path: nothing of Skillbus but this folder is loaded, under a name of its own."""

import importlib
import sys
import types
from pathlib import Path

NAME = "skillbus_guest"


def main() -> None:
    package = types.ModuleType(NAME)
    package.__path__ = [str(Path(__file__).parent)]
    sys.modules[NAME] = package
    importlib.import_module(f"{NAME}.serve").main(sys.argv[1:])


if __name__ == "__main__":
    main()
