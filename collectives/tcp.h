/* Internals of the backend for several hosts: which rank is where, and three files: tcp.c
 * (opening, local sums, the row of the backend), tcp_mesh.c (connections between the leaders of
 * hosts, and what travels beside the data: failures and farewells), tcp_pass.c (one exchange:
 * streams in both directions with every other leader, merged while they arrive).
 *
 *   host a   rank 0 (leader) rank 1     inner communicator: shm among them, arenas included
 *               |  data, control        two connections between each two leaders
 *   host b   rank 2 (leader) rank 3
 *
 * A host sums the nodes of the canonical tree that it holds completely. Leaders exchange these
 * sums, slice by slice. */
#ifndef DT_COLLECTIVES_TCP_H
#define DT_COLLECTIVES_TCP_H

#include "base/text.h"
#include "collectives/comm.h"
#include "collectives/net.h"
#include "collectives/shm.h"
#include "collectives/tree.h"

#include <sys/uio.h>

#define TCP_MAGIC 0x32504354u
/* Up to this size every host merges everything: one trip over the wire instead of two. */
#define TCP_SMALL_BYTES ((size_t)16384)
/* merged at a time; stays in the second-level cache until it is sent */
#define TCP_BLOCK_BYTES ((size_t)64 * 1024)
/* blocks of each node that may arrive before they are merged */
#define TCP_RING 4
/* of each rank that shares its host; one pass fits it */
#define TCP_STAGE_BYTES ((size_t)4 * 1024 * 1024)
#define TCP_LOOK_S 0.05
#define TCP_SPIN_S 20e-6
/* Blocks of sums that are sent before a merged block. About twice as many are in flight between two
 * hosts. On one machine more blocks only leave the cache: 25 MiB take 6.7 ms with 2, the same with
 * 3 but 11.5 ms in one run of four, and 11 ms with 8. On a wire they must cover its delay. */
#define TCP_LAG_NEAR 2
#define TCP_LAG_FAR 16
#define TCP_NAME_BYTES 48

/* The operation that a host is about to do; sent before the data of every collective. */
struct tcp_head {
    uint32_t magic;
    int32_t kind, op, type, root, rank;
    int64_t number, count;
    char name[TCP_NAME_BYTES];
};

/* A message on the control connection, at most one in each direction. It is peeked at and never
 * consumed. */
struct tcp_word {
    uint32_t magic;
    int32_t status;                                /* enum dt_status; DT_OK: closed in good order */
    int32_t teller;                                /* the job's rank that sends it */
    int32_t fault, rank, told, first_teller, host; /* struct dt_blame */
    char text[480];
};

/* A node of the tree, and the host that holds it. */
struct tcp_part {
    int host, index; /* index: the node's number among those of that host */
};

struct tcp_segment {
    char *at;
    size_t size;
};

/* One direction of a stream: segments in order. Those before `ready` may be sent or received. */
struct tcp_way {
    struct tcp_segment *segments;
    size_t count, ready, at, done; /* done: bytes of segment `at` that are done */
    size_t capacity;
};

struct tcp_host {
    char key[64], address[64];
    int port;
    int *ranks, rank_count; /* in rank order; the first is the leader */
    int part_count;
    int data, control;  /* sockets, or -1 */
    size_t lag;         /* TCP_LAG_NEAR or TCP_LAG_FAR, chosen by the host that connected */
    size_t block_count; /* of the host's share in the current pass */
    bool checked;       /* its head was compared with ours */
    struct tcp_head head;
    struct tcp_way out, in;
    char *ring; /* part_count * TCP_RING blocks */
};

struct tcp {
    struct dt_comm *inner; /* ranks of this host, in rank order */
    bool leader, open;
    bool staged; /* some host holds several ranks, so all hosts go by passes that fit a stage */
    uint64_t nonce;
    struct dt_net listener;
    int here; /* this host's index */
    int host_count;
    struct tcp_host *hosts;  /* in the order of their first ranks */
    int *host_of, *local_of; /* by rank */
    int part_count;
    /* the nodes of all hosts in rank order; parts[i] says who holds nodes[i] */
    struct dt_tree_part *nodes;
    struct tcp_part *parts;
    const void **merge_in; /* room for the inputs of one merge */
    const char **sums;     /* where this host's sums of the current pass are */
    struct tcp_head head;
    void *polls; /* struct pollfd, 2 per host */
    /* longest time to try again before sleeping: the limit, and the current value by experience */
    double spin_s, spin_now_s;
    uint32_t wait_count;
    _Atomic int word_sent; /* this rank has sent its one word */
    struct {
        int64_t first, count;
    } * blocks; /* the blocks that this host merges in a pass */
    size_t block_capacity;
    /* in the inner arenas: this rank's part of the stage; the leader's area */
    char *stage, *common;
    size_t stage_stride;
};

/* One exchange between the leaders. Elements are those of the pass: `n` of each slot (of the whole
 * for all_reduce and broadcast). */
struct tcp_pass {
    const struct dt_collective *x;
    const struct shm_call *call;
    double deadline_s;
    int64_t n, stride; /* stride: elements from one slot to the next in `sums` and `result` */
    bool with_head;
    const char *const *sums; /* of this host's nodes, by index; null without a reduction */
    /* the exchange with other hosts failed; its errors do not name the collective */
    bool failed;
    /* address of element 0 of the pass; elements that are not written may lie outside the buffer */
    char *result;
};

/* tcp_mesh.c */
/* Listens at an address that the other hosts can reach. address has at least 64 bytes. */
int tcp_listen(struct dt_comm *c, char *address, int *port, struct dt_error *err);
/* Makes the connections between the leaders. */
int tcp_connect_all(struct dt_comm *c, struct dt_error *err);
/* The cheap part of looking around: fails on this rank's orders and aborts. */
int tcp_ordered(struct dt_comm *c, struct dt_error *err);
/* Fails on orders, aborts, failures that other ranks have told, and lost peers. */
int tcp_look(struct dt_comm *c, struct dt_error *err);
/* Tells all other ranks, on this host and others, why this one fails. Any thread may call it. */
void tcp_tell(struct dt_comm *c, const struct dt_error *why);
/* The data connection to h has ended: makes the error that explains it. Returns -1. */
int tcp_lost(struct dt_comm *c, const struct tcp_host *h, const char *cause, struct dt_error *err);
void tcp_disconnect(struct dt_comm *c);
/* "host g1 (ranks 2, 3)" */
void tcp_describe_host(const struct tcp_host *h, struct dt_text *out);

/* tcp_pass.c */
int tcp_exchange(struct dt_comm *c, const struct tcp_pass *p, struct dt_error *err);
/* Bytes of one element of a node's sum. */
size_t tcp_sum_width(enum dt_dtype type, int rank_count);

#endif
