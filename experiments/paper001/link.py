"""Slows a TCP connection down: a process in the middle that holds bytes back.

    python -m experiments.paper001.link --to HOST:PORT --megabits 1000 --delay-ms 25

Each direction takes its bytes at the given rate and delivers them after the given delay, so a round trip takes twice
the delay. It prints the port that it listens on, and ends when its standard input does.
"""

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

PIECE = 1 << 16  # bytes read at once
BUFFERED = 1 << 26  # bytes on their way: more than rate times delay of any link here


@contextmanager
def shaped(port: int, megabits: float, delay_ms: float) -> Iterator[int]:
    """Opens a port of this machine that leads to another one through a link."""
    command = [sys.executable, "-m", "experiments.paper001.link", "--to", f"127.0.0.1:{port}"]
    command += ["--megabits", str(megabits), "--delay-ms", str(delay_ms)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.stdin.close()


async def carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, bytes_per_second: float, delay: float
) -> None:
    """One direction, until its sender closes."""
    on_the_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(BUFFERED // PIECE)

    async def deliver() -> None:
        while True:
            due, piece = await on_the_way.get()
            await asyncio.sleep(due - time.monotonic())
            if not piece:
                writer.close()
                return
            writer.write(piece)
            await writer.drain()

    delivering = asyncio.create_task(deliver())
    free = 0.0  # when the link has taken what came before
    piece = b"-"
    while piece:
        piece = await reader.read(PIECE)
        free = max(free, time.monotonic()) + len(piece) / bytes_per_second
        await on_the_way.put((free + delay, piece))
    await delivering


async def serve(to: str, megabits: float, delay_ms: float) -> None:
    host, port = to.rsplit(":", 1)

    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        shape = megabits * 1e6 / 8, delay_ms / 1e3
        both = carry(reader, far_writer, *shape), carry(far_reader, writer, *shape)
        await asyncio.gather(*both, return_exceptions=True)  # a side that resets ends its own direction

    server = await asyncio.start_server(join, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", required=True, metavar="HOST:PORT")
    parser.add_argument("--megabits", type=float, required=True, help="a second, each direction")
    parser.add_argument("--delay-ms", type=float, required=True, help="each direction")
    chosen = parser.parse_args()
    asyncio.run(serve(chosen.to, chosen.megabits, chosen.delay_ms))


if __name__ == "__main__":
    main()
