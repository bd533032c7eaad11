"""A program that has a command run by the process of `preloaded_cli`, and ends with its exit code.

It starts within a hundredth of a second, so it imports only modules that need no reading of files.
"""

import _socket
import marshal
import os
import sys

connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
connection.connect(sys.argv[1])
streams = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
connection.sendmsg([b"."], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
asked = (sys.argv[2:], os.getcwd(), dict(os.environ))  # noqa: PTH109 (pathlib takes long to import)
connection.sendall(marshal.dumps(asked))
connection.shutdown(_socket.SHUT_WR)
code = connection.recv(100)
os._exit(int(code) if code else 255)
