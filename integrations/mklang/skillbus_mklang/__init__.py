"""The tools of a mklang machine, each a call of a Skillbus skill over RabbitMQ.

A tool takes the input of its state and returns text: the observation as JSON, or the plain string of `calc`. It never
raises; what went wrong is the observation's `error`. `close` ends the connection; so does the end of the process.
"""

import mklang.tools

from .line import close
from .tool import Tool

calc = Tool("calc", safe=True)
list_files = Tool("list_files", safe=True)
read_file = Tool("read_file", safe=True)
search = Tool("search", safe=True)
search_kb = Tool("search_kb", safe=True)
send_reply = Tool("send_reply")
write_file = Tool("write_file")
skillbus = Tool()

# mklang registers these itself, by entry points too. Of two with one name the one that is listed last wins, and which
# that is depends on the file system: with its functions replaced, both lead here.
for _tool in (calc, search, search_kb, send_reply):
    setattr(mklang.tools, _tool.skill, _tool)

__all__ = [
    "Tool",
    "calc",
    "close",
    "list_files",
    "read_file",
    "search",
    "search_kb",
    "send_reply",
    "skillbus",
    "write_file",
]
