/* A loop with the store server and two signals. The line on stdout is written once clients can
 * connect. */
#include "launcher/store/serve.h"

#include "base/signals.h"
#include "launcher/output/console.h"
#include "launcher/store/store_server.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

struct serving {
    struct store_server *server;
    uv_signal_t signals[2];
};

static void on_signal(uv_signal_t *handle, int number)
{
    struct serving *s = handle->data;
    (void)number;
    for (int i = 0; i < 2; i++) {
        if (!uv_is_closing((uv_handle_t *)&s->signals[i])) {
            uv_close((uv_handle_t *)&s->signals[i], NULL);
        }
    }
    if (s->server != NULL) {
        store_server_close(s->server, NULL, NULL);
        s->server = NULL;
    }
}

int serve_store(const struct options *o)
{
    static const int numbers[2] = {SIGINT, SIGTERM};
    struct dt_error err;
    struct serving s = {0};
    uv_loop_t loop;
    if (uv_loop_init(&loop) != 0) {
        console_say("dtrun: --serve_store: no event loop\n");
        return DT_EXIT_TEMPORARY;
    }
    int code = DT_EXIT_DONE;
    if (console_open(1, 2, &err) != 0) {
        console_say("dtrun: --serve_store: %s\n", err.text);
        (void)uv_loop_close(&loop);
        return DT_EXIT_TEMPORARY;
    }
    (void)signal(SIGPIPE, SIG_IGN); /* clients are served on when nobody reads our warnings */
    for (int i = 0; i < 2; i++) {   /* before clients know our address and may send a signal */
        (void)uv_signal_init(&loop, &s.signals[i]);
        s.signals[i].data = &s;
        if (dt_signal_wanted(numbers[i])) {
            (void)uv_signal_start(&s.signals[i], on_signal, numbers[i]);
        }
    }
    struct store_server_options options = {
        .host = o->rdzv.master_addr,
        .port = o->rdzv.master_port,
        .range = {o->rdzv.port_lo, o->rdzv.port_hi, 0},
        .access = {.users = o->store.users, .user_count = o->store.user_count, .open = true}};
    if (store_server_open(&s.server, &loop, &options, &err) != 0) {
        console_say("dtrun: --serve_store: %s\n", err.text);
        s.server = NULL;
        code = err.status == DT_INVALID || err.status == DT_NOT_FOUND ? DT_EXIT_USAGE : DT_EXIT_TEMPORARY;
    } else {
        if (store_server_is_open(s.server)) {
            console_say("dtrun: warning: --serve_store: %s serves everybody who reaches it, whatever host and user\n",
                        o->rdzv.master_addr);
        }
        bool brackets = strchr(o->rdzv.master_addr, ':') != NULL;
        bool written = printf("%s%s%s:%d\n", brackets ? "[" : "", o->rdzv.master_addr, brackets ? "]" : "",
                              store_server_port(s.server)) > 0;
        code = written && fflush(stdout) == 0 ? DT_EXIT_DONE : DT_EXIT_FAILED;
    }
    if (code != DT_EXIT_DONE) {
        on_signal(&s.signals[0], 0);
    }
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    (void)uv_loop_close(&loop);
    console_close(CONSOLE_STALL_S);
    return code;
}
