/* Inside of the backend for several hosts: who is where, and the three files that share it:
 * tcp.c (opening, local sums, the table of the backend), tcp_mesh.c (connections between the
 * leaders of hosts, and what travels beside the data: failures and farewells), tcp_pass.c (one
 * exchange: streams in both directions with every other leader, merged while they arrive).
 *
 *   host a   rank 0 (leader) rank 1     inner communicator: shm among them, arenas included
 *               |  data, control        two connections between each two leaders
 *   host b   rank 2 (leader) rank 3
 *
 * A host sums the nodes of the canonical tree that it holds completely; leaders exchange these,
 * slice by slice. */
#ifndef DT_COLLECTIVES_TCP_H
#define DT_COLLECTIVES_TCP_H

#include "base/text.h"
#include "collectives/comm.h"
#include "collectives/net.h"
#include "collectives/shm.h"
#include "collectives/tree.h"

#include <sys/uio.h>

#define TCP_MAGIC 0x32504354u
/* up to here every host merges everything: one way instead of two */
#define TCP_SMALL_BYTES ((size_t)16384)
/* merged at a time: stays in the second-level cache until it travels on */
#define TCP_BLOCK_BYTES ((size_t)64 * 1024)
/* blocks of each node that may arrive before they are merged */
#define TCP_RING 4
#define TCP_STAGE_BYTES ((size_t)4 * 1024 * 1024) /* of ranks that share a host, per pass */
#define TCP_LOOK_S 0.05
#define TCP_SPIN_S 20e-6
/* Blocks of sums that travel before a merged one: what is on its way between two hosts is about
 * twice as much. On one machine more only gets cold (25 MiB: 6.7 ms with 2; with 3 that, too,
 * but 11.5 in one run of four; 11 with 8); on a wire it must cover its delay. */
#define TCP_LAG_NEAR 2
#define TCP_LAG_FAR 16
#define TCP_NAME_BYTES 48

/* What a host is about to do; precedes the data of every collective. */
struct tcp_head {
    uint32_t magic;
    int32_t kind, op, type, root, rank;
    int64_t number, count;
    char name[TCP_NAME_BYTES];
};

/* On the control connection, at most once in each direction; stays there to be looked at. */
struct tcp_word {
    uint32_t magic;
    int32_t status;                                /* enum dt_status; DT_OK: closed in good order */
    int32_t teller;                                /* the rank of the job that says it */
    int32_t fault, rank, told, first_teller, host; /* struct dt_blame */
    char text[480];
};

/* A node of the tree, and the host that holds it. */
struct tcp_part {
    int host, index; /* its number among that host's */
};

struct tcp_segment {
    char *at;
    size_t size;
};

/* One direction of a stream: segments in order; those before `ready` may travel. */
struct tcp_way {
    struct tcp_segment *segments;
    size_t count, ready, at, done; /* done: bytes of segment `at` */
    size_t capacity;
};

struct tcp_host {
    char key[64], address[64];
    int port;
    int *ranks, rank_count; /* in rank order; the first is the leader */
    int part_count;
    int data, control;  /* sockets, or -1 */
    size_t lag;         /* TCP_LAG_NEAR or TCP_LAG_FAR: whoever connected has said it */
    size_t block_count; /* of its share, in the running pass */
    bool checked;       /* its head was compared */
    struct tcp_head head;
    struct tcp_way out, in;
    char *ring; /* part_count * TCP_RING blocks */
};

struct tcp {
    struct dt_comm *inner; /* ranks of this host, in rank order */
    bool leader, open;
    bool staged; /* some host holds several ranks: all go by passes that fit its stage */
    uint64_t nonce;
    struct dt_net listener;
    int here; /* this host's index */
    int host_count;
    struct tcp_host *hosts;  /* in the order of their first ranks */
    int *host_of, *local_of; /* by rank */
    int part_count;
    struct dt_tree_part *nodes; /* all hosts' nodes in rank order, with their owners */
    struct tcp_part *parts;
    const void **merge_in; /* room for one merge */
    const char **sums;     /* where this host's parts of the running pass lie */
    struct tcp_head head;
    void *polls;               /* struct pollfd, 2 per host */
    double spin_s, spin_now_s; /* how long to try again before sleeping: at most, and as
                                * experience goes */
    uint32_t wait_count;
    _Atomic int word_sent; /* the one word was said */
    struct {
        int64_t first, count;
    } * blocks; /* those that this host merges in a pass */
    size_t block_capacity;
    char *stage, *common; /* inner arenas: own part of the stage; the leader's area */
    size_t stage_stride;
};

/* One exchange between the leaders. Elements are those of the pass: `n` of each slot (of the
 * whole for all_reduce and broadcast). */
struct tcp_pass {
    const struct dt_collective *x;
    const struct shm_call *call;
    double deadline_s;
    int64_t n, stride; /* stride: from one slot to the next in the buffers below */
    bool with_head;
    const char *const *sums; /* of this host's nodes, by index; null without a reduction */
    bool failed;             /* in the exchange with other hosts, whose errors do not say where */
    char *result;            /* element 0 of the pass; those not written may lie outside the
                              * buffer */
};

/* tcp_mesh.c */
/* Listens where the others can reach this rank; address of at least 64 bytes. */
int tcp_listen(struct dt_comm *c, char *address, int *port, struct dt_error *err);
/* The leaders' connections. */
int tcp_connect_all(struct dt_comm *c, struct dt_error *err);
/* The cheap part of a look: this rank's orders and aborts. */
int tcp_ordered(struct dt_comm *c, struct dt_error *err);
/* Orders, aborts, failures told by others, peers that are gone. */
int tcp_look(struct dt_comm *c, struct dt_error *err);
/* Tells all other ranks, on this host and others, why this one fails. From any thread. */
void tcp_tell(struct dt_comm *c, const struct dt_error *why);
/* The peer's data ended: why? Returns -1. */
int tcp_lost(struct dt_comm *c, const struct tcp_host *h, const char *cause, struct dt_error *err);
void tcp_disconnect(struct dt_comm *c);
/* "host g1 (ranks 2, 3)" */
void tcp_describe_host(const struct tcp_host *h, struct dt_text *out);

/* tcp_pass.c */
int tcp_exchange(struct dt_comm *c, const struct tcp_pass *p, struct dt_error *err);
/* Bytes of an element of the sum of a node. */
size_t tcp_sum_width(enum dt_dtype type, int rank_count);

#endif
