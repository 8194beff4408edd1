"""Jobs on several hosts, each played by an agent of this machine: their command lines, their endpoint, their ends."""

import random
import socket


def free_port():
    """A port below those that the kernel gives to outgoing connections: one of these could take it before the first agent does."""
    while True:
        port = random.randrange(15000, 30000)
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


def static(port, rank, nnodes, *rest, host="127.0.0.1"):
    return [f"--nnodes={nnodes}", f"--master_addr={host}", f"--master_port={port}", f"--node_rank={rank}", *rest]


def c10d(port, nnodes, *rest, host="127.0.0.1"):
    return [f"--nnodes={nnodes}", "--rdzv_backend=c10d", f"--rdzv_endpoint={host}:{port}", "--rdzv_id=story",
            "--rdzv_conf=last_call_timeout=1", *rest]


def finish(*jobs):
    results = [job.finish() for job in jobs]
    for job in jobs:
        job.wait_gone()
    return results


NUMBERS = "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE $MASTER_ADDR $MASTER_PORT"
# Says which round it is in and stays until the file `go` is there.
STAY = 'echo "$GROUP_RANK $GROUP_WORLD_SIZE $MASTER_PORT" >> "$1/$2"; while [ ! -e "$1/go" ]; do sleep 0.05; done'


def listens(port):
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0
