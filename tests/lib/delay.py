#!/usr/bin/python3
"""Holds each packet of netfilter queue 0 of this network namespace for so many milliseconds, in order; what netem does where a kernel has it.

    iptables -A INPUT -i eth0 -j NFQUEUE --queue-num 0; delay.py MS       says "ready"; remove the rule before ending it, a queue without a reader drops

Speaks netlink itself: linux/netfilter/nfnetlink_queue.h."""

import collections
import select
import socket
import struct
import sys
import time

QUEUE_SUBSYSTEM, PACKET, VERDICT, CONFIG = 3 << 8, 0, 1, 2
CFG_CMD, CFG_PARAMS, CFG_MAXLEN, PACKET_HDR, VERDICT_HDR = 1, 2, 3, 1, 2
BIND, COPY_META, ACCEPT = 1, 1, 1


def attribute(kind, data):
    return struct.pack("=HH", 4 + len(data), kind) + data + b"\0" * (-len(data) % 4)


def message(kind, *attributes):
    body = struct.pack(">BBH", socket.AF_UNSPEC, 0, 0) + b"".join(attributes)
    return struct.pack("=IHHII", 16 + len(body), QUEUE_SUBSYSTEM | kind, 1, 0, 0) + body  # 1: NLM_F_REQUEST


def packet_ids(data):
    while len(data) >= 16:
        size, kind = struct.unpack_from("=IH", data)
        at = 20
        while kind == QUEUE_SUBSYSTEM | PACKET and at + 4 <= size:
            length, attr = struct.unpack_from("=HH", data, at)
            if attr & 0x3FFF == PACKET_HDR:
                yield struct.unpack_from(">I", data, at + 4)[0]
            at += length + -length % 4
        data = data[size + -size % 4:]


def main():
    wait_s, held = float(sys.argv[1]) / 1000, collections.deque()
    s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)  # NETLINK_NETFILTER
    s.bind((0, 0))
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    s.send(message(CONFIG, attribute(CFG_CMD, struct.pack(">BBH", BIND, 0, 0))))
    s.send(message(CONFIG, attribute(CFG_PARAMS, struct.pack(">IB", 0, COPY_META)), attribute(CFG_MAXLEN, struct.pack(">I", 60000))))
    print("ready", flush=True)
    while True:
        left_s = max(0, held[0][0] - time.monotonic()) if held else None
        if select.select([s], [], [], left_s)[0]:
            due_s = time.monotonic() + wait_s
            held.extend((due_s, x) for x in packet_ids(s.recv(1 << 20)))
        while held and held[0][0] <= time.monotonic():
            s.send(message(VERDICT, attribute(VERDICT_HDR, struct.pack(">II", ACCEPT, held.popleft()[1]))))


if __name__ == "__main__":
    main()
